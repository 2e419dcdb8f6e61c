"""A private copy of a source on the same machine, with its owner's rights: for jobs that run where their data is."""

from __future__ import annotations

import os
import stat
import threading

from burstd.data.bringer import Stopped
from burstd.data.hands import Hand, HandError

_AT_ONCE = 1 << 30


def copy(hand: Hand, source: str, root: str, name: str, *, job: str, cancelled: threading.Event) -> int:
    """Copies a file, directory or pattern to ``root/name``, holes kept; returns its bytes. May be repeated.

    A single file becomes ``root/name`` itself. Raises HandError, Stopped.
    """
    total = 0
    single = _is_file(hand, source)
    directories: list[tuple[str, int, int]] = []
    if not single:
        hand.make(root, [name])
    for rows in hand.walk(source):
        if cancelled.is_set():
            raise Stopped("it was told to stop")
        fds = iter(rows.fds)
        for row in rows.rows:
            kind = row[0]
            path = name if single or not row[1] else f"{name}/{row[1]}"
            match kind:
                case "d":
                    hand.make(root, [path])
                    directories.append((path, row[2], row[3]))
                case "f":
                    total += _file(hand, next(fds), root, path, job)
                case "h":
                    hand.hardlink(root, [(f"{name}/{row[2]}", path)], job=job)
                case "l":
                    hand.symlink(root, [(row[2], path, row[4])], job=job)
                case "e":
                    raise HandError(path, row[2], f"{source}/{row[1]}: {os.strerror(row[2])}")
                case _:
                    pass
    hand.settle(root, sorted(directories, key=lambda d: d[0].count("/"), reverse=True))
    return total


def _is_file(hand: Hand, source: str) -> bool:
    return hand.look(source, entries=1).single


def _file(hand: Hand, origin: int, root: str, path: str, job: str) -> int:
    facts = os.fstat(origin)
    ((made, target),) = hand.create(root, [path], job=job)
    try:
        at = 0
        while at < facts.st_size:
            try:
                at = os.lseek(origin, at, os.SEEK_DATA)
                end = os.lseek(origin, at, os.SEEK_HOLE)
            except OSError:  # ENXIO: nothing but a hole is left
                break
            while at < end:
                moved = os.copy_file_range(origin, target, min(end - at, _AT_ONCE), at, at)
                if not moved:
                    break
                at += moved
        os.ftruncate(target, facts.st_size)
    finally:
        os.close(target)
    hand.finish(root, [(made, path, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns)])
    return facts.st_size
