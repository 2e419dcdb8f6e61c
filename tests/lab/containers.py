"""Apptainer and Skopeo for the boxes of tests, and a registry of images on a head."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from providers.sandbox.boxes.box import Box
from providers.sandbox.boxes.images import apt
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs
from tests.lab import image_registry

_SCRIPT = """set -e
cat >/etc/apt/apt.conf.d/90build <<'END'
{settings}
END
list=/etc/apt/sources.list.d/unstable.list
grep -h '^deb ' /etc/apt/sources.list | head -1 | sed 's/ {suite} / sid /' >$list
apt-get -q update
apt-get -q -y --no-install-recommends install -t {suite} libseccomp2 libsqlite3-0 squashfs-tools squashfuse uidmap
apt-get -q -y --no-install-recommends install -t {suite} skopeo
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
    """A layer with Skopeo and Apptainer, which of Debian only unstable has. SandboxError: it cannot be had."""
    script = _SCRIPT.format(settings="\n".join(apt.settings()), suite=rootfs.suite)
    return ensure_layer(rootfs, script, ["sh", "-c", script], progress=progress)


IMAGE_ROOT = """set -e
mkdir -p root/bin root/etc root/tmp root/proc root/dev root/sys root/home root/var
for file in /bin/bash /bin/cat /bin/sleep $(ldd /bin/bash /bin/cat | grep -o '/[^ :]* ' | sort -u); do
  mkdir -p root$(dirname $file); cp -L $file root$file
done
ln -s bash root/bin/sh
echo in-the-image >root/etc/os-release
chmod 1777 root/tmp
cp /bin/cat root/bin/setuid-cat
chmod 4755 root/bin/setuid-cat
"""
"""Makes the root directory of an image in the working directory."""
_PORT = 5055
REGISTRY = f"127.0.0.1:{_PORT}"
_START = f"""set -e
mkdir -p /etc/containers/registries.conf.d
cat >/etc/containers/registries.conf.d/lab.conf <<'END'
[[registry]]
location = "{REGISTRY}"
insecure = true
END
setsid python3 /home/registry/image_registry.py /home/registry {_PORT} </dev/null >/dev/null 2>&1 &
"""
CONVERT = """
import json, sys
from pathlib import Path
from burstd.transfer.images.client import ConversionLimits, open_image_worker
from burstd.transfer.privsep.client import UserWorkerError, account, user_worker_for

name, limits, worker_socket, image_socket = json.loads(sys.argv[1])
try:
    home = user_worker_for(account("bob"), socket_path=worker_socket and Path(worker_socket))
    with home, open_image_worker(
        name, home, ConversionLimits(**limits), socket_path=image_socket and Path(image_socket)
    ) as worker:
        worker.resolve()
        print(worker.convert(), "bytes")
except UserWorkerError as error:
    print(error.errno, error)
"""
"""Has an image converted for bob: name, limits, and the sockets of user workers and image workers (null: none)."""


def start_registry(head: Box, homes: Path) -> Path:
    """A registry on a head; its folder for image_registry. ``homes``: where this machine has the head's /home."""
    folder = homes / "registry"
    folder.mkdir()
    shutil.copy(str(image_registry.__file__), folder)
    head.run(["sh", "-c", _START])
    return folder
