"""What the desk knows of each job beyond the record: hooks that wait, work under way, pauses. All may be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView
from burstd.domain.staging import Directives, Staging
from burstd.domain.staging import StageState as S
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.hooks.stage_server import StageReply
from burstd.staging.controller.tasks import Task
from burstd.staging.movement.progress import Reading

Answer = Callable[[StageReply], None]

GONE_AFTER_S = 20.0
"""A job that Slurm's listings have not shown for so long, twice at least, is asked about."""
LISTENS_S = 45.0
"""A client asks again every 20 s: one that has not done so for this long is dead."""
ACTIVE = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "COMPLETING", "RESIZING", "SIGNALING", "STOPPED"})
"""Slurm's names for jobs that have their nodes and may write to them."""
QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""For jobs that will start, for the first time or again."""

AFTER = ("data_out", "test_data_out")
"""Hooks of a job that has run."""


@dataclass(frozen=True, slots=True)
class Back:
    """Work that has come back and is not on record so far."""

    task: Task
    result: Any
    """What it returned, or the exception that it raised."""
    done: Callable[[Staging, Any], Staging]
    """Writes down what came of it; returns the record."""


@dataclass(slots=True)
class Life:
    """What is known of one life of a job: from its setup to its teardown, which may be followed by another."""

    over: bool = False
    """Slurm has torn it down."""
    hurry: bool = False
    """... and said that its output is not wanted."""
    again: bool = False
    """Slurm has begun the next one."""
    ended_as: str = ""
    """The job's last state, where a hook told it."""
    size: int | None = None
    """Bytes of its sources, as far as was looked."""
    sources: tuple[str, ...] = ()
    """As absolute paths or URLs, where they were looked at."""
    rest_until: float = 0.0
    placed: set[str] = field(default_factory=set)
    """Claims whose machines have the input."""
    failures: list[Exception] = field(default_factory=list)
    """Of work that was begun together, while some of it is still under way."""
    warnings: tuple[str, ...] = ()
    times: dict[S, float] = field(default_factory=dict)
    """When it came into these states, as read from the log."""


@dataclass(slots=True)
class Run:
    """One job."""

    job_id: str
    life: Life = field(default_factory=Life)
    directives: Directives | None = None
    """What its script asks for; None: no hook has brought the script so far."""
    begun: bool = False
    """Slurm has set the job up, and that was not looked at so far."""
    facts: JobFacts | None = None
    """What Slurm said last; see ``unknown``."""
    owner: tuple[int, int | None] | None = None
    """Uid and gid that its hooks named last; Slurm 22.05 names them in ``setup`` only, and None where it does not."""
    unknown: bool = False
    """Slurm does not know the job (any more)."""
    wanted: int = 1
    """How often something has happened after which Slurm must be asked ..."""
    answered: int = 0
    """... and up to which of them it was."""
    asking: bool = False
    ask_after: float = 0.0
    ask_pause: float = 0.0
    missing: tuple[int, float] = (0, 0.0)
    """In how many listings in a row it was not as expected, and since when."""
    hooks: dict[str, Answer] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    back: dict[str, Back] = field(default_factory=dict)
    clearing: frozenset[str] = frozenset()
    """The claims whose machines are being cleared of it."""

    @property
    def uid(self) -> int | None:
        """Its owner's; None: not known."""
        return self.facts.uid if self.facts else self.owner[0] if self.owner else None

    # What Slurm says.

    @property
    def fresh(self) -> bool:
        """What is known of the job is younger than what has happened to it."""
        return self.answered >= self.wanted

    @property
    def state(self) -> str:
        """Slurm's; empty: it does not know the job."""
        return "" if self.unknown or self.facts is None else self.facts.state

    @property
    def active(self) -> bool:
        """It may be at work on its nodes."""
        return self.state in ACTIVE

    @property
    def queued(self) -> bool:
        """It will start."""
        return self.state in QUEUED

    @property
    def ended(self) -> bool:
        """For Slurm it is over for good."""
        return not self.active and not self.queued and self.state != "STAGE_OUT"

    def ask(self, after: float = 0.0) -> None:
        """Slurm must be asked, not before ``after``."""
        self.wanted += 1
        self.ask_after = max(self.ask_after, after)

    def told(self, facts: JobFacts | None, question: int) -> None:
        """Slurm's answer to the question of this number."""
        self.unknown = facts is None
        self.facts = facts or self.facts
        self.answered = question
        self.ask_pause = 0.0

    def contradicted(self, facts: JobFacts) -> str:
        """What is wrong where hooks that wait name another owner than squeue; empty: nothing."""
        if not self.hooks or self.owner is None or self.owner in ((facts.uid, facts.gid), (facts.uid, None)):
            return ""
        uid, gid = self.owner
        return (
            f"the hooks of job {self.job_id} say that it is user {uid}'s (group {gid}), squeue that it is user "
            f"{facts.uid}'s (group {facts.gid}): nothing is staged until they agree; see 'scontrol show job'"
        )

    def facts_of(self, row: Staging) -> JobFacts | None:
        """What Slurm said last of the job on record; None: nothing, or another job has its number by now."""
        facts = self.facts
        return facts if facts and (facts.uid, facts.work_dir) == (row.uid, row.work_dir) else None

    @property
    def deallocated(self) -> bool:
        """A pre_run waits for nodes that the job has lost. Slurm ends it only where the job is cancelled, and cleans
        the job up, for another start or none, when it is answered."""
        return "pre_run" in self.hooks and self.fresh and (not self.active or self.state == "COMPLETING")

    def elsewhere(self, row: Staging) -> bool:
        """Whether it is about to start on other nodes than those of the record."""
        nodes = self.facts.nodes if self.facts else ()
        return "pre_run" in self.hooks and bool(nodes) and set(nodes) != set(row.nodes)

    def ran_elsewhere(self, row: Staging) -> bool:
        """Whether Slurm asks for output of other nodes than the record's: that is of a run before, as a copy is.

        A job that has given some of its nodes back still has output there.
        """
        facts = None if self.unknown or self.queued or "pre_run" in self.hooks else self.facts_of(row)
        return facts is not None and any(h in self.hooks for h in AFTER) and not set(facts.nodes) <= set(row.nodes)

    def listed(self, row: Staging, shown: Mapping[str, str], read: float, now: float) -> None:
        """A listing of this time: the states of the jobs in it."""
        state = shown.get(self.job_id) or shown.get(self.facts.queue_id if self.facts else self.job_id)
        if state and (row.state is not S.PLACED or state in ACTIVE):
            self.missing = (0, 0.0)
            return
        times, first = self.missing
        self.missing = (times + 1, first or read)
        if times >= 1 and now - self.missing[1] >= GONE_AFTER_S and self.fresh and not self.hooks:
            self.missing = (0, 0.0)
            self.ask()

    # Its hooks.

    def wait_for(self, hook: str, answer: Answer, now: float) -> bool:
        """A hook waits; True: it did already, and this is its client asking again."""
        again = hook in self.hooks
        self.hooks[hook], self.heard[hook] = answer, now
        return again

    def drop(self, *hooks: str) -> None:
        """Forgets hooks whose clients are dead."""
        for hook in hooks:
            self.hooks.pop(hook, None)

    def refuse(self, text: str, *hooks: str) -> None:
        """Answers these hooks, where they wait, with a refusal: Slurm holds the job."""
        for hook in hooks:
            if hook in self.hooks:
                self.hooks.pop(hook)(StageReply("refused", text))

    def answer(self, reply: Callable[[str], StageReply | None]) -> dict[str, StageReply]:
        """Answers the hooks for which there is a reply; returns what was said."""
        said = {hook: told for hook in self.hooks if (told := reply(hook)) is not None}
        for hook, told in said.items():
            self.hooks.pop(hook)(told)
        return said

    # Its work.

    def begin(self, name: str, task: Task) -> None:
        """A piece of work is under way."""
        self.tasks = {**self.tasks, name: task}

    def end(self, name: str) -> None:
        """It has come back."""
        self.tasks = {n: t for n, t in self.tasks.items() if n != name}

    def due(self, now: float) -> float:
        """When its next pause ends."""
        rests = self.life.rest_until if self.life.rest_until > now else float("inf")
        return rests if self.fresh or self.asking else min(rests, max(now, self.ask_after))

    def stop(self) -> None:
        """Tells the work under way to end."""
        for task in self.tasks.values():
            task.cancelled.set()

    def read(self, name: str) -> Reading | None:
        """The meter of one piece of work."""
        task = self.tasks.get(name)
        return task.meter.read() if task else None


class Runs:
    """Of all jobs."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._read = 0.0
        self._leaving: dict[str, tuple[Job, float]] = {}

    def of(self, job_id: str) -> Run:
        """One job's."""
        with self._lock:
            return self._runs.setdefault(job_id, Run(job_id))

    def all(self) -> tuple[Run, ...]:
        """Every job's."""
        return tuple(self._runs.values())

    def keep(self, live: Iterable[str], now: float, each: Callable[[str], AbstractContextManager[None]]) -> None:
        """Forgets clients that are dead, and jobs that are on record no more unless something of theirs waits."""
        alive = set(live)
        for run in self.all():
            with each(run.job_id):
                run.drop(*(hook for hook in run.hooks if now - run.heard[hook] > LISTENS_S))
        with self._lock:
            self._runs = {j: run for j, run in self._runs.items() if j in alive or run.hooks or run.asking or run.tasks}

    def listed(
        self,
        slurm: SlurmView,
        rows: Mapping[str, Staging],
        now: float,
        each: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """Has Slurm asked about jobs that its listings do not show, or show in a state that the record does not fit.

        A listing proves nothing by itself: a task of an array bears another name in it than its hooks. A listing that
        was seen before says nothing new. ``each``: within what a job is looked at.
        """
        if slurm.read == self._read:
            return
        self._read = slurm.read
        leaving = [job for job in slurm.jobs if job.state is JobState.STAGE_OUT]
        self._leaving = {job.id: self._leaving.get(job.id, (job, now)) for job in leaving}
        shown = {job.id: job.state.value for job in slurm.jobs}
        for job_id, row in rows.items():
            with each(job_id):
                self.of(job_id).listed(row, shown, slurm.read, now)

    def leaving(self, now: float) -> tuple[tuple[Job, float], ...]:
        """Jobs that have not staged out for so long that their data_out must have been heard, and since when."""
        return tuple((job, since) for job, since in self._leaving.values() if now - since <= LISTENS_S)

    def readings(self) -> dict[str, tuple[Reading, ...]]:
        """Of all work under way; from any thread."""
        with self._lock:
            return {j: tuple(t.meter.read() for t in r.tasks.values()) for j, r in self._runs.items() if r.tasks}
