"""Copying a source from one worker to another, through this process: between files and objects of one user."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.privsep.client import UserWorker, UserWorkerError, WalkBatch, printable
from burstd.transfer.privsep.descriptor_channel import FDS_AT_ONCE
from burstd.transfer.privsep.safe_directory import copy_data
from burstd.transfer.trees.restore import RestoredFile
from burstd.transfer.trees.writer import BYTES_AT_ONCE

_Item = tuple[str, int, list[Any]]
"""A path, a descriptor or -1, and the row of an object that is fetched first."""


def relay_copy(
    origin: UserWorker,
    source: str,
    target: UserWorker,
    root: str,
    name: str,
    *,
    job: str,
    cancelled: threading.Event,
    on_file: Callable[[RestoredFile], None] = lambda _brought: None,
) -> int:
    """Copies a file, object, directory or pattern to ``root/name``; returns its bytes. May be repeated.

    ``name``: of what the source is, a directory of them or one file; empty: entries keep their paths below the root.
    Raises UserWorkerError, TransferCancelled.
    """
    return _RelayedCopy(origin, source, target, root, job, cancelled, on_file).copy(name)


class _RelayedCopy:
    """One copy."""

    def __init__(
        self,
        origin: UserWorker,
        source: str,
        target: UserWorker,
        root: str,
        job: str,
        cancelled: threading.Event,
        on_file: Callable[[RestoredFile], None],
    ) -> None:
        self._origin, self._source = origin, source
        self._target, self._root = target, root
        self._job = job
        self._cancelled = cancelled
        self._on_file = on_file
        self._directories: list[tuple[str, int, int]] = []
        self._total = 0

    def copy(self, name: str) -> int:
        self._target.make_directories(self._root, [""])
        is_directory = False
        for message in self._origin.walk(self._source):
            # A directory's first entry is the directory itself.
            is_directory = is_directory or message.rows[0][:2] == ["d", ""]
            self._message(message, name, is_directory=is_directory)
        self._target.finalize_directories(
            self._root, sorted(self._directories, key=lambda d: d[0].count("/"), reverse=True)
        )
        return self._total

    def _message(self, message: WalkBatch, name: str, *, is_directory: bool) -> None:
        fds = iter(message.fds)
        files: list[_Item] = []
        links: list[tuple[str, str, list[Any]]] = []

        def at(path: str) -> str:
            if not is_directory:
                return name or path
            return f"{name}/{path}" if name and path else name or path

        for row in message.rows:
            kind, path = row[0], at(row[1])
            if kind == "d":
                if path:
                    self._target.make_directories(self._root, [path])
                    self._directories.append((path, row[2] | stat.S_IRWXU, row[3]))
            elif kind == "f":
                files.append((path, next(fds), []))
            elif kind == "o":
                files.append((path, -1, row))
            elif kind in ("h", "l"):
                links.append((kind, path, row))
            elif kind == "e":
                lost = f"{self._source.rstrip('/')}/{row[1]}" if is_directory else self._source
                raise UserWorkerError(lost, row[2], f"{printable(lost)}: {os.strerror(row[2])}")
        for group in _groups(files):
            self._files(group)
        for kind, path, row in links:
            if kind == "h":
                self._target.hardlink(self._root, [(at(row[2]), path)], job=self._job)
            else:
                self._target.symlink(self._root, [(row[2], path, row[4])], job=self._job)

    def _files(self, group: list[_Item]) -> None:
        if self._cancelled.is_set():
            raise TransferCancelled("the transfer was cancelled")
        objects = [row for _, _, row in group if row]
        fetched = self._origin.fetch_objects(self._source, objects) if objects else []
        made: list[tuple[str, int]] = []
        try:
            more = iter(fetched)
            sources = [next(more) if row else fd for _, fd, row in group]
            made = self._target.create_files(self._root, [path for path, _, _ in group], job=self._job)
            rows: list[tuple[str, str, int, int]] = []
            sizes: list[int] = []
            for (path, _, _), fd, (new, out) in zip(group, sources, made, strict=True):
                facts = os.fstat(fd)
                self._copy(fd, out, facts.st_size, path)
                rows.append((new, path, stat.S_IMODE(facts.st_mode) | stat.S_IWUSR, facts.st_mtime_ns))
                sizes.append(facts.st_size)
        except BaseException:
            self._target.remove_files(self._root, [new for new, _ in made])
            raise
        finally:
            for fd in (*fetched, *(out for _, out in made)):
                os.close(fd)
        self._target.commit_files(self._root, rows)
        for (path, _, _), size in zip(group, sizes, strict=True):
            self._total += size
            self._on_file(RestoredFile(path, size, "", skipped=False))

    def _copy(self, fd: int, out: int, size: int, path: str) -> None:
        try:
            for _ in copy_data(fd, out, size):
                if self._cancelled.is_set():
                    raise TransferCancelled("the transfer was cancelled")
        except OSError as error:
            number = error.errno or errno.EIO
            raise UserWorkerError(path, number, f"{printable(path)}: {error.strerror or error}") from None


def _groups(files: list[_Item]) -> Iterator[list[_Item]]:
    """As many at once as fit on the disk."""
    group: list[_Item] = []
    group_bytes = 0
    for item in files:
        size = item[2][2] if item[2] else os.fstat(item[1]).st_size
        if group and (len(group) == FDS_AT_ONCE or group_bytes + size > BYTES_AT_ONCE):
            yield group
            group, group_bytes = [], 0
        group.append(item)
        group_bytes += size
    if group:
        yield group
