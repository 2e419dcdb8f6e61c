"""The daemon as the API sees it: last snapshot and plan, record, command queue, and what its routes are about."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from threading import Event, Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from burstd.api.answers.notify import WayTestView
from burstd.api.answers.policies import PoliciesView
from burstd.db import StoreReader
from burstd.domain.billing.site_cost import SiteCosts
from burstd.domain.clock import Clock
from burstd.domain.command import Command, CommandResult, QuoteJobs, WhatIf
from burstd.domain.errors import BurstdError, NoAnswer
from burstd.domain.plan import Plan
from burstd.domain.project import Project
from burstd.domain.snapshot import Snapshot
from burstd.reconciler.pollers.ingress import JobIngress
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.reconciler.pollers.provider_checks import ProviderChecks
from burstd.runtime.precedence import DecisionPrecedence

if TYPE_CHECKING:
    from burstd.node.validator import SlurmNodeValidator
    from burstd.staging.controller.service import StagingService

log = structlog.get_logger(__name__)
T = TypeVar("T")

MAX_WAIT_S = 2.0
"""For so long, in seconds, each part of an answer waits for decisions; what all callers share is a part."""
SLICE = 250
"""Items of a long list that an answer works on before it looks again whether a decision is being made."""
ANSWERING_S = 0.1
"""For so long, in seconds, questions are answered before the deciding thread looks at anything else."""
COMMAND_TIMEOUT_S = 20.0
"""How long a caller waits for the deciding thread, in seconds: longer than a loop with a slow slurmctld."""


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What the daemon knows of itself. Times in burstd's seconds since 1970."""

    version: str
    cluster: str
    started: float
    alarms: tuple[str, ...] = ()
    """Sentences on what keeps the daemon from doing its work."""
    calls_in_flight: Mapping[str, int] = field(default_factory=dict)
    """Calls under way to each provider, by its name."""
    settings: str = ""
    """Path of the settings file in use."""
    policy_durations_s: Mapping[str, float] = field(default_factory=dict)
    """How long each policy took for the last decision, in the order of the chain."""
    standbys: str = ""
    """The heads that wait to take over, and when each was seen; empty: there is none."""


def _set_event() -> Event:
    event = Event()
    event.set()
    return event


@dataclass(frozen=True, slots=True)
class _SharedPart:
    """What all callers share of one loop, or what it is to be."""

    lock: Lock = field(default_factory=Lock)
    """Whoever has it works it out."""
    made: list[Any] = field(default_factory=list)
    """Empty, or the one value."""


@dataclass(kw_only=True)
class Backend:
    """Every method but ``run_queued`` and ``answer_questions`` may be called from any thread.

    Commands wait in a queue for the deciding thread; callers wait for its answer.
    """

    reader: StoreReader
    clock: Clock
    daemon_info: Callable[[], DaemonInfo]
    latest_loop: Callable[[], tuple[Snapshot, Plan] | None]
    """Snapshot and plan of the last whole loop; None before the first."""
    wake: Callable[[], None]
    wake_to_answer: Callable[[], None]
    """As ``wake``, where no loop is due for it."""
    checks: ProviderChecks
    routes: JobIngress
    policies_view: Callable[[float], PoliciesView]
    """All policies, as of burstd's time."""
    validator: SlurmNodeValidator
    projects_in_force: Callable[[], Mapping[str, Project]]
    project_sync: ProjectSync
    test_notifications: Callable[[str], Sequence[WayTestView]]
    """Sends a test message by each way, for this user; blocks until each is sent or failed."""
    collect_s: Callable[[], float | None]
    """How often what jobs use is fetched, in seconds; None: nodes do not measure."""
    site_costs: Callable[[], SiteCosts] = SiteCosts
    """``[site.cost]``, as it is in force."""
    between_decisions: Event = field(default_factory=_set_event)
    """Set while no decision is being made."""
    stage: StagingService | None = None
    """None: the settings have no staging."""
    comparing: Lock = field(default_factory=Lock)
    """Held while all runs are read for a comparison: one at a time."""
    _commands: queue.SimpleQueue[tuple[Command, Future[CommandResult]]] = field(default_factory=queue.SimpleQueue)
    _questions: queue.SimpleQueue[tuple[Command, Future[CommandResult]]] = field(default_factory=queue.SimpleQueue)
    _shared: dict[Callable[..., Any], _SharedPart] = field(default_factory=dict)
    _shared_of: tuple[Snapshot, Plan] | None = None
    _sharing: Lock = field(default_factory=Lock)

    def now(self) -> float:
        """burstd's time, in seconds since 1970."""
        return self.clock.now()

    def precedence(self) -> DecisionPrecedence:
        """Of one part of an answer."""
        return DecisionPrecedence(self.between_decisions, MAX_WAIT_S)

    def once_per_loop(self, loop: tuple[Snapshot, Plan], make: Callable[[Backend, tuple[Snapshot, Plan]], T]) -> T:
        """What ``make`` makes of the last loop: worked out once, the same for every caller.

        Nobody waits for another ``make``: a short answer is not kept by a long one.
        """
        with self._sharing:
            if self._shared_of is not loop:
                self._shared_of, self._shared = loop, {}
            part = self._shared.setdefault(make, _SharedPart())
        with part.lock:
            if not part.made:
                part.made.append(make(self, loop))
            made: T = part.made[0]
            return made

    def command(self, command: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        """Queues a command and waits for its result.

        Raises NoAnswer after ``timeout_s`` seconds, StoreError and SchedulerUnavailable.
        """
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
        if isinstance(command, WhatIf | QuoteJobs):
            self._questions.put((command, answer))
            self.wake_to_answer()
        else:
            self._commands.put((command, answer))
            self.wake()
        return answer

    def run_queued(self, execute: Callable[[Command], CommandResult]) -> int:
        """Executes the queued commands in the caller's thread; returns their number.

        Commands that arrive meanwhile wait: a caller that asks again at once would keep the thread for ever.
        """
        return self._run(self._commands, execute)

    def answer_questions(self, execute: Callable[[Command], CommandResult], is_due: Callable[[], bool]) -> int:
        """The same with commands that change nothing and look at nothing new.

        After the first one: until a loop ``is_due``, or for ANSWERING_S; ``wake_to_answer`` is called for those
        that are left.
        """
        end = monotonic() + ANSWERING_S
        count = self._run(self._questions, execute, lambda: is_due() or monotonic() >= end)
        if not self._questions.empty():
            self.wake_to_answer()
        return count

    @staticmethod
    def _run(
        commands: queue.SimpleQueue[tuple[Command, Future[CommandResult]]],
        execute: Callable[[Command], CommandResult],
        is_enough: Callable[[], bool] = lambda: False,
    ) -> int:
        count = 0
        for _ in range(commands.qsize()):
            command, answer = commands.get_nowait()
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
            if is_enough():
                break
        return count
