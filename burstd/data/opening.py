"""Opening what its owner closed to himself: a job's output is its user's, whatever modes the job left it with."""

# ruff: noqa: PTH101

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WAY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_directories(top: str) -> None:
    """Lets this user into each of his directories from ``top`` down. What cannot be had stays as it is: the walk tells.

    No link is followed, not even ``top``.
    """
    under_way = [_entered(top, None)]
    lists = [_directories(under_way[0])]
    while under_way:
        name = next(lists[-1], None)
        if name is None:
            lists.pop()
            done = under_way.pop()
            if done >= 0:
                os.close(done)
            continue
        child = _entered(name, under_way[-1])
        if child >= 0:
            under_way.append(child)
            lists.append(_directories(child))


def enter(path: str) -> None:
    """Lets this user into one directory, if it is his."""
    descriptor = _entered(path, None)
    if descriptor >= 0:
        os.close(descriptor)


def open_file(path: str) -> int:
    """A file that its owner, who this process is, cannot read by its mode; made readable. -1: it cannot be had."""
    try:
        way = os.open(path, _WAY)
        try:
            facts = os.fstat(way)
            if not stat.S_ISREG(facts.st_mode):
                return -1
            os.chmod(f"/proc/self/fd/{way}", stat.S_IMODE(facts.st_mode) | stat.S_IRUSR)
            return os.open(f"/proc/self/fd/{way}", _FILE)
        finally:
            os.close(way)
    except OSError:
        return -1


def _entered(name: str, above: int | None) -> int:
    """The directory, open to list; -1: it cannot be had."""
    try:
        way = os.open(name, _WAY | os.O_DIRECTORY, dir_fd=above)
        try:
            facts = os.fstat(way)
            if facts.st_uid == os.geteuid() and facts.st_mode & 0o500 != 0o500:
                os.chmod(f"/proc/self/fd/{way}", stat.S_IMODE(facts.st_mode) | 0o500)
        finally:
            os.close(way)
        return os.open(name, _LIST, dir_fd=above)
    except OSError:
        return -1


def _directories(descriptor: int) -> Iterator[str]:
    try:
        with os.scandir(descriptor) as entries:
            return iter([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])
    except OSError:
        return iter(())
