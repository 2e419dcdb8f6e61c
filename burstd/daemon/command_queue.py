"""The command queue: commands of the API wait here for the deciding thread; callers wait for its answer."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import structlog

from burstd.api.backend import (
    COMMAND_TIMEOUT_S,
    ClaimRecords,
    DaemonInfo,
    IngressBackend,
    NoAnswer,
    PolicyBackend,
    ProviderCheckBackend,
    StagingBackend,
)
from burstd.domain.clock import Clock
from burstd.domain.command import Command, CommandResult
from burstd.domain.errors import BurstdError
from burstd.domain.plan import Plan
from burstd.domain.snapshot import Snapshot

log = structlog.get_logger(__name__)


class DaemonBackend:
    """Implements ``burstd.api.backend.Backend``."""

    def __init__(
        self,
        *,
        reader: ClaimRecords,
        clock: Clock,
        daemon_info: Callable[[], DaemonInfo],
        latest_loop: Callable[[], tuple[Snapshot, Plan] | None],
        wake: Callable[[], None],
        checks: ProviderCheckBackend,
        routes: IngressBackend,
        policies: PolicyBackend,
        stage: StagingBackend | None = None,
    ) -> None:
        self.reader: ClaimRecords = reader
        self.stage: StagingBackend | None = stage
        self.checks: ProviderCheckBackend = checks
        self.routes: IngressBackend = routes
        self.policies: PolicyBackend = policies
        self._clock = clock
        self._daemon_info = daemon_info
        self._latest = latest_loop
        self._wake = wake
        self._commands: queue.SimpleQueue[tuple[Command, Future[CommandResult]]] = queue.SimpleQueue()

    def now(self) -> float:
        """burstd's time, in seconds since 1970."""
        return self._clock.now()

    def daemon_info(self) -> DaemonInfo:
        """What the daemon knows of itself, now."""
        return self._daemon_info()

    def latest_loop(self) -> tuple[Snapshot, Plan] | None:
        """Snapshot and plan of the last whole loop; None before the first."""
        return self._latest()

    def command(self, command: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        """Queues a command and waits for its result. Raises NoAnswer after ``timeout_s`` seconds."""
        answer = self.enqueue(command)
        try:
            return answer.result(timeout_s)
        except FutureTimeoutError:
            if answer.cancel():
                raise NoAnswer(
                    f"burstd did not start the command within {timeout_s:.0f} s: it waits for Slurm or is ending; "
                    "nothing has changed"
                ) from None
            return answer.result()  # It was taken at the last moment.

    def enqueue(self, command: Command) -> Future[CommandResult]:
        """Passes a command to the deciding thread."""
        answer: Future[CommandResult] = Future()
        self._commands.put((command, answer))
        self._wake()
        return answer

    def run_queued(self, execute: Callable[[Command], CommandResult]) -> int:
        """Executes the queued commands in the caller's thread; returns their number.

        Commands that arrive meanwhile wait: a caller that asks again at once would keep the thread for ever.
        """
        count = 0
        for _ in range(self._commands.qsize()):
            command, answer = self._commands.get_nowait()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(execute(command))
            except BurstdError as error:
                answer.set_exception(error)
            except Exception as error:
                log.exception("a command failed unexpectedly", command=type(command).__name__)
                answer.set_exception(NoAnswer(f"the command failed unexpectedly: {error!r}; see journalctl -u burstd"))
            count += 1
        return count
