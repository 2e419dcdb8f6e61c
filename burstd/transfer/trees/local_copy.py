"""Copying a source on one machine, with holes, links, modes and times."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from burstd.transfer.privsep.safe_directory import SafeDirectory, copy_data
from burstd.transfer.trees.walk import Walk, fixed_part


def copy_source(walk: Walk, directory: SafeDirectory, path: str, job: str) -> Iterator[int]:
    """Copies to ``path`` in a directory; yields the bytes of files as they are done. Raises OSError."""
    directories: list[tuple[str, int, int]] = []
    for row, fd in walk:
        kind, name, *rest = row
        target = path if walk.single or not name else f"{path}/{name}"
        try:
            yield from _copy_one(str(kind), rest, fd, directory, (path, target), job, directories)
        except OSError as error:
            whole = walk.source if walk.single else f"{fixed_part(walk.source)}/{name}"
            raise OSError(error.errno, error.strerror, whole) from None
        finally:
            if fd >= 0:
                os.close(fd)
    for target, mode, mtime_ns in reversed(directories):
        directory.finalize_directory(target, mode, mtime_ns)


def _copy_one(
    kind: str,
    rest: list[Any],
    fd: int,
    directory: SafeDirectory,
    paths: tuple[str, str],
    job: str,
    directories: list[tuple[str, int, int]],
) -> Iterator[int]:
    path, target = paths
    if kind == "d":
        directory.make_directory(target)
        # The owner of the copy works in it.
        directories.append((target, rest[0] | stat.S_IRWXU, rest[1]))
    elif kind == "f":
        facts = os.fstat(fd)
        new, out = directory.create_file(target, job)
        try:
            yield from copy_data(fd, out, facts.st_size)
            directory.commit_file(new, target, stat.S_IMODE(facts.st_mode) | stat.S_IWUSR, facts.st_mtime_ns)
        except BaseException:
            directory.remove_file(new)
            raise
        finally:
            os.close(out)
    elif kind == "h":
        directory.hardlink(f"{path}/{rest[0]}", target, job)
    elif kind == "l":
        directory.symlink(rest[0], target, rest[2], job)
    elif kind == "e":
        raise OSError(rest[0], os.strerror(rest[0]))
