"""Apptainer for the boxes of tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from providers.sandbox.boxes.images import apt
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs

_SCRIPT = """set -e
cat >/etc/apt/apt.conf.d/90build <<'END'
{settings}
END
list=/etc/apt/sources.list.d/unstable.list
grep -h '^deb ' /etc/apt/sources.list | head -1 | sed 's/ {suite} / sid /' >$list
apt-get -q update
apt-get -q -y --no-install-recommends install -t {suite} libseccomp2 libsqlite3-0 squashfs-tools squashfuse uidmap
cd /tmp
apt-get -q download apptainer/sid
dpkg -x apptainer_*.deb /
# Debian 12 has an older libc, without C23's names of two functions: it runs with the names of before.
python3 - /usr/bin/apptainer /usr/lib/*/apptainer/bin/starter <<'END'
import re, sys
from pathlib import Path
new, old = (0x069691B8).to_bytes(4, "little"), (0x09691A75).to_bytes(4, "little")  # hashes of GLIBC_2.38, GLIBC_2.2.5
for path in map(Path, sys.argv[1:]):
    content = path.read_bytes()
    for name in (b"strtol", b"strtoul"):
        content = content.replace(b"__isoc23_" + name + b"\\0", name + bytes(10))
    name = re.search(re.escape(old) + b"\\0\\0..(....)", content, re.DOTALL)[1]
    entry = re.compile(re.escape(new) + b"(\\0\\0..)....", re.DOTALL)
    path.write_bytes(entry.sub(lambda found: old + found[1] + name, content))
END
# Part of /proc is covered in a box, as in a pod: there the kernel lets no user mount another.
sed -i 's/^mount proc = yes/mount proc = no/; s/^mount sys = yes/mount sys = no/' /etc/apptainer/apptainer.conf
printf 'bind path = /proc\\nbind path = /sys\\n' >>/etc/apptainer/apptainer.conf
rm -rf $list /etc/apt/apt.conf.d/90build /tmp/* /var/lib/apt/lists/*
apt-get clean
apptainer --version
"""


def apptainer(rootfs: Rootfs, progress: Callable[[str], None] = lambda _step: None) -> Path:
    """A layer with Apptainer, which of Debian only unstable has. Raises SandboxError where it cannot be had."""
    script = _SCRIPT.format(settings="\n".join(apt.settings()), suite=rootfs.suite)
    return ensure_layer(rootfs, script, ["sh", "-c", script], progress=progress)
