"""Trees on a node's disk, shared by the jobs of one user: made whole, locked while made, removed when space is short.

``CACHE/UID/DIGEST/own/tree`` is the tree. ``own`` is the user's, for nobody else to pass; all above is root's, so that
no user can put anything in another's way. ``DIGEST/jobs`` has a file for each job that uses it, which names the job's
record; a mark whose record is gone counts for nothing.
"""

# ruff: noqa: PTH100, PTH102, PTH104, PTH108, PTH112, PTH114, PTH116, PTH120, PTH123, PTH208

from __future__ import annotations

import fcntl
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from burstd.transfer.agent.unmount import mount_points, unmount_tree
from burstd.transfer.agent.user_process import AgentFault, chown_to_user

_BOOT = "/proc/sys/kernel/random/boot_id"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class SealRecord:
    """What is recorded of a whole tree. ``at``: in nanoseconds; nothing of it was touched after that."""

    sealed_ns: int
    boot: str
    size: int


class TreeCache:
    """The cache of one node. ``keep_free``: bytes that stay free on its file system."""

    def __init__(self, directory: str, keep_free: int) -> None:
        self._directory = os.path.abspath(directory)
        self._keep_free = keep_free
        make_root_directories(self._directory, 0o711)
        self.device = os.stat(self._directory).st_dev
        """The file system that it is on."""
        with open(_BOOT, encoding="ascii") as file:
            self.boot = file.read().strip()

    def entry(self, uid: int, digest: str) -> CacheEntry:
        """The path of a tree, whether it is there or not."""
        if len(digest) != 64 or not _HEX.issuperset(digest):
            raise AgentFault("agent", f"{digest!r} is no digest of a tree")
        make_root_directories(f"{self._directory}/{uid}", 0o711)
        return CacheEntry(f"{self._directory}/{uid}", digest, self.boot)

    def free_bytes(self, *, reserved: int = 0) -> int:
        """Bytes that may be used, beyond what stays free and ``reserved``."""
        about = os.statvfs(self._directory)
        return about.f_bavail * about.f_frsize - self._keep_free - reserved

    def evict_until_free(self, size: int, what: str, *, reserved: int = 0) -> None:
        """Removes trees that no job uses, least recently used first, until ``size`` bytes fit. Raises AgentFault."""
        if self.free_bytes(reserved=reserved) >= size:
            return
        for entry in sorted(self._entries(), key=lambda e: e.last_used()):
            with entry.lock(wait=False) as held:
                if held and not entry.referencing_jobs():
                    entry.remove()
            if self.free_bytes(reserved=reserved) >= size:
                return
        free = max(self.free_bytes(reserved=reserved), 0)
        also = f", {reserved} are for the job's copies and scratch" if reserved else ""
        raise AgentFault(
            "space",
            f"{what} needs {size} bytes on the node, and {free} are to be had below {self._directory} "
            f"({self._keep_free} stay free{also}; no tree is left that no job uses): take a type with a larger disk, "
            "or ask for less",
        )

    def remove_leftovers(self) -> None:
        """Removes what a try that was killed left of trees that nobody makes now."""
        for user in self._users():
            for name in os.listdir(user):
                if name.startswith(".gone-"):
                    remove_tree(f"{user}/{name}")
                elif name.startswith(".new-"):
                    entry = CacheEntry(user, name[5:], self.boot)
                    with entry.lock(wait=False) as held:
                        if held and not entry.resumable():
                            remove_tree(f"{user}/{name}")

    def _users(self) -> list[str]:
        return [f"{self._directory}/{name}" for name in os.listdir(self._directory) if name.isdigit()]

    def _entries(self) -> Iterator[CacheEntry]:
        for user in self._users():
            digests = {n.removeprefix(".new-") for n in os.listdir(user)}
            yield from (CacheEntry(user, n, self.boot) for n in digests if len(n) == 64 and _HEX.issuperset(n))


class CacheEntry:
    """One tree's directory."""

    def __init__(self, user: str, digest: str, boot: str) -> None:
        self._user = user
        self._boot = boot
        self.digest = digest
        self.path = f"{user}/{digest}"
        self.unfinished = f"{user}/.new-{digest}"

    @property
    def tree(self) -> str:
        """Where jobs find it."""
        return f"{self.path}/own/tree"

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Whoever makes or removes the tree holds it. Yields whether it is held, which is so if it may wait."""
        name = f"{self._user}/.lock-{self.digest}"
        while True:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                yield False
                return
            # Who removes a tree removes its lock as well.
            with suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == os.stat(name).st_ino:
                    break
            os.close(descriptor)
        try:
            yield True
        finally:
            os.close(descriptor)

    def read_seal(self) -> SealRecord | None:
        """What is known of it if it is whole, and was made since the node booted: a crash may have cut files short."""
        try:
            with open(f"{self.path}/sealed", encoding="ascii") as file:
                row = json.load(file)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        seal = SealRecord(row["at"], row["boot"], row["size"])
        return seal if seal.boot == self._boot else None

    def resumable(self) -> bool:
        """Whether an earlier try's part is there, made since the node booted."""
        try:
            with open(f"{self.unfinished}/boot", encoding="ascii") as file:
                return file.read() == self._boot
        except (FileNotFoundError, NotADirectoryError):
            return False

    def prepare(self, uid: int, gid: int) -> bool:
        """Makes the folder that the tree is made in; returns whether an earlier try's part is in it."""
        if self.resumable():
            return True
        remove_tree(self.unfinished)
        make_root_directories(self.unfinished, 0o711)
        os.mkdir(f"{self.unfinished}/own", 0o700)
        chown_to_user(f"{self.unfinished}/own", uid, gid)
        os.mkdir(f"{self.unfinished}/jobs", 0o700)
        _write(f"{self.unfinished}/boot", self._boot)
        return False

    def seal(self, size: int) -> None:
        """The tree is whole: nobody writes to it, and from now on it is found."""
        own = os.open(f"{self.unfinished}/own", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        os.fchmod(own, 0o500)
        os.close(own)
        file = f"{self.unfinished}/sealed"
        # The file system's clock, not ours.
        _write(file, "")
        at = os.stat(file).st_ctime_ns
        _write(file, json.dumps({"at": at, "boot": self._boot, "size": size}))
        self.touch(self.unfinished)
        if os.path.lexists(self.path):
            # Its owner has changed it. Jobs that use it find what it was, from the next moment on.
            gone = f"{self._user}/.gone-{secrets.token_hex(8)}"
            references = f"{self.path}/jobs"
            for reference in os.listdir(references) if os.path.isdir(references) else []:
                os.rename(f"{references}/{reference}", f"{self.unfinished}/jobs/{reference}")
            os.rename(self.path, gone)
            os.rename(self.unfinished, self.path)
            remove_tree(gone)
        else:
            os.rename(self.unfinished, self.path)

    def add_reference(self, job: str, record: str) -> None:
        """A job uses it, as long as its record is there."""
        _write(f"{self.path}/jobs/{job}", record)
        self.touch(self.path)

    def referencing_jobs(self) -> list[str]:
        """Those that use it."""
        using = []
        with suppress(FileNotFoundError):
            for job in os.listdir(f"{self.path}/jobs"):
                with open(f"{self.path}/jobs/{job}", encoding="utf-8", errors="surrogateescape") as file:
                    if os.path.lexists(file.read()):
                        using.append(job)
        return using

    def last_used(self) -> float:
        """When it was last used, in seconds since 1970; 0 for what is unfinished."""
        try:
            return os.stat(f"{self.path}/used").st_mtime
        except OSError:
            return 0.0

    def touch(self, folder: str) -> None:
        """It was used now."""
        _write(f"{folder}/used", "")
        os.utime(f"{folder}/used")

    def remove(self) -> None:
        """Removes it and what is unfinished of it; its lock is held."""
        for path in (self.path, self.unfinished):
            if os.path.lexists(path):
                gone = f"{self._user}/.gone-{secrets.token_hex(8)}"
                os.rename(path, gone)
                remove_tree(gone)
        with suppress(FileNotFoundError):
            os.unlink(f"{self._user}/.lock-{self.digest}")


def remove_reference(path: str, job: str) -> None:
    """A job does not use the entry at ``path`` any more, up to now it did."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(f"{path}/jobs/{job}")
        os.utime(f"{path}/used")


def make_root_directories(path: str, mode: int) -> None:
    """Makes a directory and what is missing above it, for root. Raises AgentFault where a user could replace it.

    Where the agent is no root there is nobody else who could.
    """
    missing = []
    above = path
    while not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    about = os.stat(above)
    others = about.st_uid != 0 or (about.st_mode & 0o022 and not about.st_mode & 0o1000)
    if others and os.geteuid() == 0:
        raise AgentFault(
            "rights",
            f"{above} is not root's alone, so {path} cannot be kept safe there: set staging.job_dir and the cache to "
            "directories below one that only root may write",
        )
    for each in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(each, 0o700)
            os.chmod(each, mode if each == path else 0o755)  # noqa: PTH101 - whatever the umask is


def remove_tree(path: str) -> None:
    """Removes all that is there, following nothing; nothing there is no error. Raises AgentFault.

    What is mounted there is unmounted, and nothing of it removed.
    """
    if os.geteuid() == 0:
        if not unmount_tree(path):
            raise AgentFault("agent", f"{mount_points(path)[0]} cannot be unmounted on the node")
    elif os.path.isdir(path) and not os.path.islink(path):
        # Only root can empty a directory that may not be written.
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    done = subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", path], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise AgentFault("agent", f"{path} cannot be removed: {said[-1] if said else done.returncode}")


def _write(path: str, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(content)
