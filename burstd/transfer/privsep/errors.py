"""Answers and errors of user workers, and the accounts they work for."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from dataclasses import dataclass
from typing import Any

from burstd.domain.errors import BurstdError


class UserWorkerError(BurstdError):
    """What a user's rights did not allow, or a file system did not do. ``errno``: 0 where it is none of a file."""

    def __init__(self, path: str, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.path = path
        self.errno = number
        self.sentence = sentence


class UserWorkerTimeout(UserWorkerError):
    """The time that it had is over."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user as the head node knows him. ``groups``: all of his groups' ids, ``gid`` among them."""

    user: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def account(user: str | int) -> Account:
    """By name or uid, from the account database. Raises UserWorkerError where there is none."""
    try:
        entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        raise UserWorkerError(
            "", errno.ENOENT, f"this machine has no account {user}: see that its users are known here"
        ) from None
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


def user_name_of(uid: int) -> str:
    """The number, where there is no such user any more."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@dataclass(frozen=True, slots=True)
class SourceSize:
    """What a source is, as far as time allowed: sizes and counts are at least so many unless ``whole``."""

    size: int
    entries: int
    complete: bool
    single: bool
    unreadable: tuple[tuple[str, int], ...]
    """Paths in the source that the user cannot read, with their errno; ten at most."""
    largest: tuple[tuple[str, int, int], ...] = ()
    """Files and directories in the source, with bytes and number of entries: the largest first, five at most."""


@dataclass(frozen=True, slots=True)
class DestinationSpace:
    """A destination. ``free``: bytes that this user may still write, -1 inodes: not counted there."""

    free_bytes: int
    free_inodes: int
    writable: bool
    exists: bool
    """It is a directory already."""
    nearest: str
    """The directory on the way to it that is there, to which the other figures belong."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is at a path, not followed. Times in nanoseconds since 1970."""

    mode: int
    size: int
    mtime_ns: int
    nlink: int
    dev: int
    ino: int
    uid: int

    @property
    def kind(self) -> str:
        """``d``, ``f``, ``l`` as in manifests, ``x`` for anything else."""
        return {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l"}.get(stat.S_IFMT(self.mode), "x")


@dataclass(frozen=True, slots=True)
class WalkBatch:
    """One message of a walk (rows: see burstd.transfer.trees.walk) with the descriptors of its ``f`` rows, in order."""

    rows: list[list[Any]]
    fds: list[int]


def printable(path: str) -> str:
    """A path for people: control characters and bytes that are no UTF-8 escaped."""
    return "".join(
        c
        if c.isprintable()
        else c.encode("utf-8", "surrogateescape").decode("latin-1").encode("unicode_escape").decode()
        for c in path
    )
