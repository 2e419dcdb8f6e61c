"""All that one user reaches: files by one worker, objects of S3 and Swift by others, each started when it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from burstd.transfer.privsep.client import Account, UserWorker
from burstd.transfer.privsep.object_workers import ObjectWorker, object_scheme

OpenObjectWorker = Callable[[Account, str], ObjectWorker]
"""Takes whose and of what: ``s3`` or ``swift``. Raises UserWorkerError."""


class UserWorkers:
    """For one thread at a time. Use it with ``with``."""

    def __init__(
        self,
        who: Account,
        files: UserWorker,
        open_object_worker: OpenObjectWorker,
        cancelled: threading.Event | None = None,
    ) -> None:
        """Takes over the worker for files. ``cancelled``: all of them heed it."""
        self.who = who
        self.files = files
        self._cancelled = cancelled or threading.Event()
        files.set_cancel_event(self._cancelled)
        self._open_object_worker = open_object_worker
        self._object_workers: dict[str, ObjectWorker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for worker in (self.files, *self._object_workers.values()):
            worker.close()

    def worker_for_location(self, location: str) -> UserWorker:
        """The worker that reaches a path or a URL. Raises UserWorkerError."""
        kind = object_scheme(location)
        if not kind:
            return self.files
        if kind not in self._object_workers:
            self._object_workers[kind] = self._open_object_worker(self.who, kind)
            self._object_workers[kind].set_cancel_event(self._cancelled)
        return self._object_workers[kind]

    def pop_left_out(self) -> list[str]:
        """What objects cannot be and was to be written, since this was asked last."""
        found = [path for worker in self._object_workers.values() for path in worker.left_out]
        for worker in self._object_workers.values():
            worker.left_out.clear()
        return found
