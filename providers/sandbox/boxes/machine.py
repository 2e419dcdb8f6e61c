"""What the sandbox asks of the machine: programs, root, space, mounts, and a place for its cache."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from providers.sandbox.boxes.errors import BuildFailed, MissingTool, NoSpace, NotRoot

_PACKAGE_OF = {
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "losetup": "mount",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "pivot_root": "util-linux",
}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool_path(name: str) -> str:
    """The path of a program, looked for in root's own directories too. Raises MissingTool."""
    found = shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise MissingTool(name, _PACKAGE_OF.get(name, name))
    return found


def need_root(what: str) -> None:
    """Raises NotRoot unless we are root; ``what`` begins the sentence."""
    if os.geteuid() != 0:
        raise NotRoot(what)


def need_space(directory: Path, mib: int) -> None:
    """Raises NoSpace unless ``mib`` MiB are free where ``directory`` is."""
    free = shutil.disk_usage(directory).free >> 20
    if free < mib:
        raise NoSpace(
            f"{directory} has {free} MiB free and {mib} MiB are needed",
            "free some space or set XDG_CACHE_HOME to a larger file system",
        )


def default_cache() -> Path:
    """$XDG_CACHE_HOME/burstd, else ~/.cache/burstd; under sudo that of the user who ran sudo."""
    home = os.environ.get("XDG_CACHE_HOME")
    if home:
        return Path(home) / "burstd"
    user = os.environ.get("SUDO_USER")
    if os.geteuid() == 0 and user:
        try:
            return Path(pwd.getpwnam(user).pw_dir) / ".cache" / "burstd"
        except KeyError:
            return Path.home() / ".cache" / "burstd"
    return Path.home() / ".cache" / "burstd"


def mounts_under(directory: Path) -> list[str]:
    """Mount points of this mount namespace in ``directory`` or equal to it."""
    root = str(directory.resolve())
    points = [
        line.split(" ")[4].encode().decode("unicode_escape")
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    ]
    return [p for p in points if p == root or p.startswith(root + "/")]


def remove_tree(directory: Path) -> None:
    """Removes a directory of ours, if it is there. Raises BuildFailed when something is mounted in it."""
    if not directory.exists():
        return
    mounted = mounts_under(directory)
    if mounted:
        raise BuildFailed(f"{mounted[0]} is still mounted, so {directory} was not removed", f"umount {mounted[0]}")
    shutil.rmtree(directory)


def output_of(argv: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, with text output; the caller looks at the return code."""
    return subprocess.run([tool_path(argv[0]), *argv[1:]], input=stdin, capture_output=True, text=True, check=False)


def loop_devices(file: Path) -> list[str]:
    """The loop devices of a file; one that is let go stays until nothing has it mounted."""
    if not file.exists():
        return []
    return output_of(["losetup", "--noheadings", "--output", "NAME", "--associated", str(file)]).stdout.split()
