"""The daemon as the control interface sees it: commands go to the deciding thread and wait for its answer."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import structlog

from burstd.api.backend import (
    COMMAND_TIMEOUT_S,
    CheckOffice,
    Facts,
    NoAnswer,
    PolicyOffice,
    Records,
    RouteOffice,
    StageOffice,
)
from burstd.domain.clock import Clock
from burstd.domain.command import Command, CommandResult
from burstd.domain.errors import BurstdError
from burstd.domain.plan import Plan
from burstd.domain.snapshot import Snapshot

log = structlog.get_logger(__name__)


class DaemonOffice:
    """Implements ``burstd.api.backend.Office``."""

    def __init__(
        self,
        *,
        reader: Records,
        clock: Clock,
        facts: Callable[[], Facts],
        latest: Callable[[], tuple[Snapshot, Plan] | None],
        wake: Callable[[], None],
        checks: CheckOffice,
        routes: RouteOffice,
        policies: PolicyOffice,
        stage: StageOffice | None = None,
    ) -> None:
        self.reader: Records = reader
        self.stage: StageOffice | None = stage
        self.checks: CheckOffice = checks
        self.routes: RouteOffice = routes
        self.policies: PolicyOffice = policies
        self._clock = clock
        self._facts = facts
        self._latest = latest
        self._wake = wake
        self._asked: queue.SimpleQueue[tuple[Command, Future[CommandResult]]] = queue.SimpleQueue()

    def now(self) -> float:
        """See Office."""
        return self._clock.now()

    def facts(self) -> Facts:
        """See Office."""
        return self._facts()

    def latest(self) -> tuple[Snapshot, Plan] | None:
        """See Office."""
        return self._latest()

    def command(self, command: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        """See Office."""
        answer = self.begin(command)
        try:
            return answer.result(timeout_s)
        except FutureTimeoutError:
            if answer.cancel():
                raise NoAnswer(
                    f"burstd did not take the command within {timeout_s:.0f} s: it waits for Slurm or is ending; "
                    "nothing was done"
                ) from None
            return answer.result()  # It was taken at the last moment.

    def begin(self, command: Command) -> Future[CommandResult]:
        """Hands a command to the deciding thread."""
        answer: Future[CommandResult] = Future()
        self._asked.put((command, answer))
        self._wake()
        return answer

    def serve(self, do: Callable[[Command], CommandResult]) -> int:
        """Carries out what was asked so far, in the caller's thread; returns how much that was.

        What is asked meanwhile waits: who asks again as soon as he is answered would keep the thread for ever.
        """
        count = 0
        for _ in range(self._asked.qsize()):
            command, answer = self._asked.get_nowait()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(do(command))
            except BurstdError as error:
                answer.set_exception(error)
            except Exception as error:
                log.exception("burstd broke over a command", command=type(command).__name__)
                answer.set_exception(NoAnswer(f"burstd broke over the command, its journal says where: {error!r}"))
            count += 1
        return count
