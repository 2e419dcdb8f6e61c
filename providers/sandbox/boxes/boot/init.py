"""Process 1 of a box. Run alone (python -I -S), in new namespaces, with the machine's root still in sight.

Builds the box's root from the description in argv[1], makes it the root, and becomes the box's init. The standard
library only, and nothing imported late: once the root is changed there is no library to import from.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC = 1, 2, 4, 8, 32, 4096, 16384
_DETACH = 2
READY = b"ready"
_PR_CAPBSET_DROP = 24
# What root in a box must not do to the machine: load modules, set its clock, reach its memory, read its log.
FORBIDDEN_CAPABILITIES = {"sys_module": 16, "sys_rawio": 17, "sys_time": 25, "syslog": 34}
_DEVICES = {
    "null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0),
    "fuse": (10, 229),
}  # fmt: skip
_READ_ONLY = ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs")

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2). Raises OSError that names the target."""
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} while mounting {kind or source}", str(target))


def bind(source: Path, target: Path, *, read_only: bool) -> list[Path]:
    """Shows a file or directory of the machine at ``target``. Returns what had to be made for it, outermost first."""
    made = [p for p in reversed((target, *target.parents)) if not p.exists()]
    if made:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir()
        else:
            target.touch()
    mount(str(source), target, flags=_BIND | _REC)
    if read_only:
        mount("none", target, flags=_BIND | _REMOUNT | _RDONLY)
    return made


def overlay(layers: list[str], scratch: Path, upper: str | None, disk_mib: int) -> Path:
    """Mounts the layers, the first on top, with writes to ``upper`` or else to memory. Returns the new root."""
    if upper is None:
        mount("tmpfs", scratch, "tmpfs", options=f"size={disk_mib}m,mode=755")
        above, work = scratch / "upper", scratch / "work"
    else:
        above, work = Path(upper), Path(upper).with_name("work")
    root = scratch / "root"
    for directory in (above, work, root):
        directory.mkdir(exist_ok=True)
    # Not "redirect_dir": a kept upper directory must mean the same on any kernel.
    lower = ":".join(layer.replace("\\", "\\\\").replace(":", "\\:") for layer in layers)
    mount("overlay", root, "overlay", options=f"lowerdir={lower},upperdir={above},workdir={work},redirect_dir=off")
    return root


def devices(root: Path, gpus: int) -> None:
    """A private /dev. /dev/console is a pipe: see ``main``. A fake GPU is a null device: Slurm looks at its name."""
    dev = root / "dev"
    mount("tmpfs", dev, "tmpfs", _NOSUID | _NOEXEC, "size=1m,mode=755")
    nodes = _DEVICES | {f"nvidia{index}": _DEVICES["null"] for index in range(gpus)}
    for name, numbers in nodes.items():
        os.mknod(dev / name, stat.S_IFCHR, os.makedev(*numbers))
        (dev / name).chmod(0o666)
    os.mkfifo(dev / "console")
    (dev / "console").chmod(0o622)
    for link, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (dev / link).symlink_to(target)
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "pts").mkdir()
    mount("devpts", dev / "pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")
    (dev / "shm").mkdir()
    mount("tmpfs", dev / "shm", "tmpfs", _NOSUID | _NODEV, "mode=1777")


def kernel_mounts(root: Path) -> None:
    """/proc (its switches of the whole machine read-only), /sys (read-only), /run."""
    mount("proc", root / "proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    for name in _READ_ONLY:
        path = root / name
        if path.exists():
            bind(path, path, read_only=True)
    mount("sysfs", root / "sys", "sysfs", _NOSUID | _NODEV | _NOEXEC | _RDONLY)
    mount("tmpfs", root / "run", "tmpfs", _NOSUID | _NODEV, "mode=755")


def kernel_log(root: Path) -> None:
    """What burstd's watch reads in place of the kernel's log (node/scripts/watch.sh), which is the whole machine's."""
    os.mkfifo(root / "run/burstd-kernel-log", 0o600)


def change_root(root: Path) -> None:
    """Makes ``root`` the root of this mount namespace and lets go of the machine's."""
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    if _libc.umount2(b".", _DETACH) != 0:
        raise OSError(ctypes.get_errno(), "the machine's root could not be let go")
    os.chdir("/")


def write_files(files: list[dict[str, Any]]) -> None:
    """Writes the files of the description: path, base64 content, mode, owner (a name of the box, or numbers)."""
    for entry in files:
        path = Path(entry["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        path.write_bytes(base64.b64decode(entry["content"]))
        path.chmod(entry["mode"])
        user, _, group = entry["owner"].partition(":")
        os.chown(path, _number("/etc/passwd", user), _number("/etc/group", group or user))


def _number(table: str, name: str) -> int:
    if name.isdigit():
        return int(name)
    for line in Path(table).read_text(encoding="utf-8").splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2])
    raise OSError(errno.ENOENT, f"{table} has no {name!r}")


def record(file: str) -> None:
    """Writes our own pid and start time, as the machine sees them, so that whoever finds the file may end us."""
    # The machine's /proc is still mounted here, so its "self" is our pid there, not 1.
    pid = int(str(Path("/proc/self").readlink()))
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    target = Path(file)
    unfinished = target.with_name(target.name + ".new")
    unfinished.write_text(json.dumps({"pid": pid, "start": int(fields[19]), "boot": boot}), encoding="ascii")
    unfinished.rename(target)


def enter(description: dict[str, Any]) -> tuple[int, list[Path]]:
    """Makes the box's root ours. Returns its console's log, open for appending, and what was made to mount on."""
    log = os.open(description["console"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    root = overlay(description["layers"], Path(description["scratch"]), description["upper"], description["disk_mib"])
    kernel_mounts(root)
    devices(root, description["gpus"])
    kernel_log(root)
    made: list[Path] = []
    for source, target, read_only in description["binds"]:
        made += bind(Path(source), root / target.lstrip("/"), read_only=read_only)
    if description["hostname"]:
        socket.sethostname(description["hostname"])
    change_root(root)
    write_files(description["files"])
    for capability in FORBIDDEN_CAPABILITIES.values():
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return log, [Path("/") / point.relative_to(root) for point in made]


def boot(description: dict[str, Any], log: int) -> NoReturn:
    """Starts the boot script with its output on the console and becomes init: tini around the console's reader.

    The console is a pipe, because programs open it with O_TRUNC, which would empty a plain log file. The box ends
    when the reader does.
    """
    console = os.open("/dev/console", os.O_RDWR)
    nothing = os.open("/dev/null", os.O_RDONLY)
    if os.fork() == 0:
        os.setsid()
        for source, target in ((nothing, 0), (console, 1), (console, 2)):
            os.dup2(source, target)
        os.execve("/bin/sh", ["sh", description["boot"]], description["environment"])  # noqa: S606 - no shell is wanted
    for source, target in ((console, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.execve("/usr/bin/tini", ["tini", "--", "/bin/cat"], description["environment"])  # noqa: S606 - no shell is wanted


def build(description: dict[str, Any], made: list[Path]) -> NoReturn:
    """Runs a command with our own output and ends with its code, having removed what was made to mount on."""
    child = os.fork()
    if child == 0:
        os.execvpe(description["main"][0], description["main"], description["environment"])  # noqa: S606 - no shell is wanted
    code = 1
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            break
    for _, target, _ in description["binds"]:
        _libc.umount2(os.fsencode(target), _DETACH)
    for point in reversed(made):
        try:
            point.rmdir() if point.is_dir() else point.unlink()
        except OSError:
            continue  # the command put something beside it, so it stays
    os._exit(code if code >= 0 else 1)


def main() -> None:
    """``init.py DESCRIPTION.json READY``: tells the descriptor READY "ready" or what went wrong."""
    description = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    ready = int(sys.argv[2])
    os.set_inheritable(ready, False)
    os.umask(0o022)
    try:
        record(description["record"])
        log, made = enter(description)
        os.write(ready, READY)
        if description["main"]:
            build(description, made)
        boot(description, log)
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        os.write(ready, str(error).encode())
        sys.exit(1)


if __name__ == "__main__":
    main()
