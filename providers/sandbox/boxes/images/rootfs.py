"""Debian root file systems for boxes: built once with mmdebstrap, kept in a cache, shared read-only by every box."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from providers.sandbox.boxes.errors import BuildFailed, NoSpace
from providers.sandbox.boxes.images import apt
from providers.sandbox.boxes.machine import default_cache, need_root, need_space, remove_tree, tool_path

SUITES = ("bookworm", "trixie", "forky")
PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "munge", "openssh-server", "openssh-client", "iproute2", "iputils-ping",
    "mount", "python3", "python3-venv", "cloud-init", "sudo", "rsync", "procps", "ca-certificates", "less", "vim-tiny",
    "sshfs", "tini", "tzdata",
)  # fmt: skip
# Nobody reads manuals in a box. Debian's policy wants the copyright files kept wherever packages are handed on; a
# cache is not handed on, but they cost little.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
# Keys that package scripts made must not be the same in every box, and a box gets its own of these files.
_STRIP = 'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/munge/munge.key "$1"/etc/slurm/slurm.conf; : > "$1"/etc/resolv.conf'
# A box sees no control groups, and slurmd wants to be told. Slurm 22.05 has no "disabled", but does not look for them
# when it is told which kind to use.
_CGROUPS = 'mkdir -p "$1"/etc/slurm; echo CgroupPlugin={plugin} > "$1"/etc/slurm/cgroup.conf'
_STEPS = ("I: running apt", "I: downloading", "I: extracting", "I: installing", "I: cleaning")
_RECIPE = "1"
_BUILD_MIB = 1200


@dataclass(frozen=True, slots=True)
class Rootfs:
    """A finished root file system. ``key`` changes when its packages or the recipe do."""

    suite: str
    key: str
    path: Path


def rootfs_key(suite: str, packages: tuple[str, ...] = PACKAGES) -> str:
    """Suite and a hash of all that decides the content, apart from the archive's state on the day."""
    recipe = "\n".join((_RECIPE, _STRIP, _CGROUPS, *_DPKG_OPTIONS, *sorted(packages)))
    return f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def ensure_rootfs(
    suite: str, cache: Path | None = None, progress: Callable[[str], None] = lambda _step: None
) -> Rootfs:
    """The root file system of a Debian release, built when the cache has none (30-60 s, 250-350 MB).

    Two builders of one suite wait for each other. Raises MissingTool, NotRoot, NoSpace, NoMirror, BuildFailed.
    """
    if suite not in SUITES:
        raise BuildFailed(f"there is no root file system of {suite}", f"choose one of {', '.join(SUITES)}")
    store = (cache or default_cache()) / "rootfs"
    key = rootfs_key(suite)
    target = store / key
    if target.is_dir():
        return Rootfs(suite, key, target)
    need_root("building a root file system")
    tool_path("mmdebstrap")
    source = apt.mirror()
    store.mkdir(parents=True, exist_ok=True)
    with file_lock(store / f"{key}.lock", lambda: progress(f"{suite}: waiting for another builder")) as lock:
        if target.is_dir():
            return Rootfs(suite, key, target)
        need_space(store, _BUILD_MIB)
        unfinished = store / f"{key}.unfinished"
        remove_tree(unfinished)  # of a builder that was killed: the lock is ours, so it builds no more
        progress(f"{suite}: building a root file system")
        try:
            _mmdebstrap(suite, source, unfinished, lock, progress)
            unfinished.rename(target)
        except BaseException:
            remove_tree(unfinished)
            raise
    progress(f"{suite}: root file system ready")
    return Rootfs(suite, key, target)


@contextmanager
def file_lock(file: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Holds an exclusive lock on ``file`` and gives its descriptor; calls ``waiting`` once when another holds it."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _mmdebstrap(suite: str, source: str, target: Path, lock: int, progress: Callable[[str], None]) -> None:
    """Builds into ``target``. Its mounts live and die in a mount and pid namespace of its own."""
    argv = [tool_path("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", tool_path("mmdebstrap")]
    argv += ["--variant=apt", "--mode=root", "--format=directory", "--skip=check/empty"]
    argv += ["--aptopt=APT::Install-Recommends false", *(f"--aptopt={line}" for line in apt.settings())]
    argv += [f"--dpkgopt={option}" for option in _DPKG_OPTIONS]
    cgroups = _CGROUPS.format(plugin="cgroup/v1" if suite == "bookworm" else "disabled")
    argv += [
        f"--customize-hook={_STRIP}",
        f"--customize-hook={cgroups}",
        f"--include={','.join(PACKAGES)}",
        suite,
        str(target),
        source,
    ]
    errors: list[str] = []
    # The child inherits the lock: when only we are killed, the next builder waits until mmdebstrap has ended too.
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pass_fds=(lock,)
    ) as process:
        if process.stdout is None:
            raise AssertionError
        for line in process.stdout:
            step = line.strip()
            if step.startswith(_STEPS):
                progress(f"{suite}: {step[3:].rstrip('.')}")
            elif step.startswith(("E: ", "W: ", "dpkg: error")) or "No space left" in step:
                errors.append(step)
    if process.returncode == 0:
        return
    if any("No space left" in e or "enough free space" in e for e in errors):
        raise NoSpace(f"the disk filled up while {suite} was built", "free some space and try again")
    why = next((e for e in errors if e.startswith("E: ")), f"mmdebstrap ended with code {process.returncode}")
    raise BuildFailed(f"the root file system of {suite} could not be built: {why}", f"is {source} reachable?")
