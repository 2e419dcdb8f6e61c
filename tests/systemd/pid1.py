"""A box in which Debian's own systemd runs as process 1 of a process namespace, with the units of the packages."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.lab import Lab

_SYSTEMD = "/lib/systemd/systemd"
_BOOT = f"""
set -e
# As systemd has it outside of containers: what it mounts for a service is seen by the service.
mount --make-rshared /
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount {{run}} /run
: > /etc/fstab
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin {_SYSTEMD} systemd.unit=multi-user.target \
    --log-target=console >/dev/console 2>&1 </dev/null
"""
# What a box lacks, or has its own of.
_MASK = ("console-getty", "getty@tty1", "systemd-modules-load", "systemd-networkd-wait-online", "networking")


def cgroup2() -> Path | None:
    """Where the machine has its cgroup v2 tree; None where it has none."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        fields = line.split(" ")
        if fields[2] == "cgroup2":
            return Path(fields[1])
    return None


class SystemdBox:
    """A box and the systemd in it."""

    def __init__(self, box: Box, pid: int) -> None:
        self.box = box
        self._pid = pid

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command among the processes of systemd."""
        words = ["nsenter", f"--target={self._pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        words += [f"--root=/proc/{self._pid}/root", "--wd=/", "--", "env", "-i", "HOME=/root", "LANG=C.UTF-8"]
        words += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *argv]
        return subprocess.run(words, capture_output=True, text=True, check=check, timeout=timeout)

    @property
    def runs(self) -> bool:
        """It has not powered itself off."""
        return Path(f"/proc/{self._pid}").exists()

    def systemctl(self, *words: str, check: bool = True) -> str:
        """What systemctl says."""
        return self.run(["systemctl", "--no-pager", *words], check=check).stdout.strip()

    def shows(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.systemctl("show", "--value", f"--property={name}", unit)

    def journal(self, unit: str) -> str:
        """What a unit has said."""
        return self.run(["journalctl", "--no-pager", "-q", "-o", "cat", "-u", unit]).stdout


@contextmanager
def systemd_box(lab: Lab, spec: BoxSpec) -> Iterator[SystemdBox]:
    """Boots systemd in a box; given when multi-user.target is reached. All its cgroups are gone at the end."""
    box = lab.start(spec)
    try:
        box.wait_booted()
        with systemd_in(box) as made:
            yield made
    finally:
        box.stop()


@contextmanager
def systemd_in(box: Box, *, shared_run: bool = False, mask: Sequence[str] = ()) -> Iterator[SystemdBox]:
    """The same in a box that has booted, beside what runs there. ``mask``: services that are not to be started.

    With ``shared_run`` /run is the box's, so that both sides reach each other's sockets.
    """
    root = cgroup2()
    assert root is not None
    group = root / f"burstd-test-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        for unit in (*_MASK, *mask):
            box.run(["ln", "-sf", "/dev/null", f"/etc/systemd/system/{unit}.service"])
        words = ["unshare", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "--mount-proc"]
        boot = _BOOT.format(run="--bind /run" if shared_run else "-t tmpfs -o mode=755 tmpfs")
        # The machine's shell moves itself into the group, so that the cgroup namespace begins there.
        entering = box.path("/")
        inner = ["nsenter", f"--target={entering.parts[2]}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        inner += ["--", "env", "--chdir=/", *words, "sh", "-c", boot]
        shell = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *inner]
        with subprocess.Popen(shell, stdin=subprocess.DEVNULL) as parent:
            try:
                yield _booted(box, group)
            finally:
                parent.kill()
                (group / "cgroup.kill").write_text("1", encoding="ascii")
    finally:
        _remove(group)


def _booted(box: Box, group: Path) -> SystemdBox:
    def pid(_box: Box) -> int:
        scope = group / "init.scope" / "cgroup.procs"
        pids = scope.read_text(encoding="ascii").split() if scope.exists() else []
        return int(pids[0]) if pids else 0

    box.wait(lambda b: bool(pid(b)), 30, "running systemd")
    made = SystemdBox(box, pid(box))
    ended = ("running", "degraded")
    box.wait(lambda _b: made.systemctl("is-system-running", check=False) in ended, 60, "booted by systemd")
    return made


def _remove(group: Path) -> None:
    """What was killed leaves its cgroup a moment later."""
    deadline = time.monotonic() + 10
    while group.exists():
        for directory in sorted((group, *(d for d in group.rglob("*") if d.is_dir())), reverse=True):
            try:
                directory.rmdir()
            except OSError:
                assert time.monotonic() < deadline, f"{directory} is still in use"
                time.sleep(0.05)
                break
