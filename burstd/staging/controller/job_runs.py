"""Transient state of each job beside the record: waiting hooks, work under way, pauses. All may be lost."""

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
from burstd.runtime.poller import RepeatedCall
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.hooks.stage_server import StageReply
from burstd.staging.controller.tasks import (
    CheckpointFailed,
    CollectedCheckpoint,
    MeterReading,
    SharedScratchServer,
    StagingTask,
)

HookAnswer = Callable[[StageReply], None]

MISSING_AFTER_S = 20.0
"""A job that Slurm's listings have not shown for so long, twice at least, is asked about."""
CLIENT_TIMEOUT_S = 45.0
"""A client asks again every 20 s: one that has not done so for this long is dead."""
ACTIVE_STATES = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "COMPLETING", "RESIZING", "SIGNALING", "STOPPED"})
"""Slurm's names for jobs that have their nodes and may write to them."""
QUEUED_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""For jobs that will start, for the first time or again."""

OUTPUT_HOOKS = ("data_out", "test_data_out")
"""Hooks of a job that has run."""


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """Work that has come back and is not on record so far."""

    task: StagingTask
    result: Any
    """What it returned, or the exception that it raised."""
    record_result: Callable[[Staging, Any], Staging]
    """Writes down what came of it; returns the record."""


@dataclass(slots=True)
class CheckpointProgress:
    """Of one life of a job. Times in burstd's time."""

    due: float = 0.0
    """When the next one is to be taken; 0: that was not looked up so far."""
    failures: int = 0
    """In a row."""
    parts: dict[str, CollectedCheckpoint | CheckpointFailed] = field(default_factory=dict)
    """What has come of the one that is being taken, by the number of the node."""
    others_removed: bool = False
    """Nothing is in the store but what is kept, and what tries since have brought."""
    requeue_refused: bool = False
    """Slurm does not start the job again although its checkpoint cannot be put back."""
    last_until: float = 0.0
    """The machine of the job goes: until then the last one is waited for; 0: it does not go."""
    command_ended: bool = False
    """The job's own command has been run for the last one, as far as it could be."""
    last_done: bool = False
    """The last one is taken, or was given up."""


@dataclass(slots=True)
class StagingCycle:
    """What is known of one life of a job: from its setup to its teardown, which may be followed by another."""

    torn_down: bool = False
    """Slurm has torn it down."""
    hurry: bool = False
    """... and said that its output is not wanted."""
    restarted: bool = False
    """Slurm has begun the next one."""
    end_state: str = ""
    """The job's last state, where a hook reported it."""
    input_bytes: int | None = None
    """Bytes of its sources, as far as was looked."""
    sources: tuple[str, ...] = ()
    """As absolute paths or URLs, where they were looked at."""
    paused_until: float = 0.0
    fetched_on: set[str] = field(default_factory=set)
    """Claims whose machines have the input; ``link`` for the nodes on premises."""
    brought: set[str] = field(default_factory=set)
    """What came to the machines after their input: marks of their claims by what it is."""
    failures: list[Exception] = field(default_factory=list)
    """Of work that was begun together, while some of it is still under way."""
    warnings: tuple[str, ...] = ()
    entered_at: dict[S, float] = field(default_factory=dict)
    """When it came into these states, as read from the log."""
    checkpoint: CheckpointProgress = field(default_factory=CheckpointProgress)
    shared_scratch: SharedScratchServer | None = None
    """What the job's other nodes mount; None: nothing serves it so far, or there are none."""

    def fetch_anew(self) -> None:
        """All of it has to come to the job's machines again."""
        self.fetched_on.clear()
        self.brought.clear()
        self.shared_scratch = None


@dataclass(slots=True)
class StagingRun:
    """One job."""

    job_id: str
    cycle: StagingCycle = field(default_factory=StagingCycle)
    directives: Directives | None = None
    """What its script asks for; None: no hook has brought the script so far."""
    setup_seen: bool = False
    """Slurm has set the job up, and that was not looked at so far."""
    facts: JobFacts | None = None
    """What Slurm said last; see ``unknown``."""
    hook_owner: tuple[int, int | None] | None = None
    """Uid and gid that its hooks named last; Slurm 22.05 names them in ``setup`` only, and None where it does not."""
    unknown_to_slurm: bool = False
    """Slurm does not know the job (any more)."""
    queries_wanted: int = 1
    """How often something has happened after which Slurm must be asked ..."""
    queries_answered: int = 0
    """... and up to which of them it was."""
    asked_at: float = float("-inf")
    """When Slurm was asked what it answered last."""
    query: RepeatedCall = field(default_factory=RepeatedCall)
    """To Slurm, about the job."""
    missed_listings: tuple[int, float] = (0, 0.0)
    """In how many listings in a row it was not as expected, and since when."""
    waiting_hooks: dict[str, HookAnswer] = field(default_factory=dict)
    hooks_heard_at: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, StagingTask] = field(default_factory=dict)
    finished_tasks: dict[str, FinishedTask] = field(default_factory=dict)
    clearing_claims: frozenset[str] = frozenset()
    """The claims whose machines are being cleared of it."""

    @property
    def uid(self) -> int | None:
        """Its owner's; None: not known."""
        return self.facts.uid if self.facts else self.hook_owner[0] if self.hook_owner else None

    # What Slurm says.

    @property
    def fresh(self) -> bool:
        """What is known of the job is younger than what has happened to it."""
        return self.queries_answered >= self.queries_wanted

    @property
    def state(self) -> str:
        """Slurm's; empty: it does not know the job."""
        return "" if self.unknown_to_slurm or self.facts is None else self.facts.state

    @property
    def active(self) -> bool:
        """It may be at work on its nodes."""
        return self.state in ACTIVE_STATES

    @property
    def queued(self) -> bool:
        """It will start."""
        return self.state in QUEUED_STATES

    @property
    def ended(self) -> bool:
        """For Slurm it is over for good."""
        return not self.active and not self.queued and self.state != "STAGE_OUT"

    def request_query(self, after: float = 0.0) -> None:
        """Slurm must be asked, not before ``after``."""
        self.queries_wanted += 1
        self.query.due = max(self.query.due, after)

    def record_answer(self, facts: JobFacts | None, query_number: int, asked_at: float) -> None:
        """Slurm's answer to the question of this number, asked then."""
        self.unknown_to_slurm = facts is None
        self.facts = facts or self.facts
        self.queries_answered, self.asked_at = query_number, asked_at
        self.query.failures = 0

    def owner_mismatch(self, facts: JobFacts) -> str:
        """What is wrong where hooks that wait name another owner than squeue; empty: nothing."""
        if (
            not self.waiting_hooks
            or self.hook_owner is None
            or self.hook_owner in ((facts.uid, facts.gid), (facts.uid, None))
        ):
            return ""
        uid, gid = self.hook_owner
        return (
            f"the hooks of job {self.job_id} say that it is user {uid}'s (group {gid}), squeue that it is user "
            f"{facts.uid}'s (group {facts.gid}): nothing is staged until they agree; see 'scontrol show job'"
        )

    def facts_of_record(self, row: Staging) -> JobFacts | None:
        """What Slurm said last of the job on record; None: nothing, or another job has its number by now."""
        facts = self.facts
        return facts if facts and (facts.uid, facts.work_dir) == (row.uid, row.work_dir) else None

    @property
    def deallocated(self) -> bool:
        """A pre_run waits for nodes that the job has lost. Slurm ends it only where the job is cancelled, and cleans
        the job up, for another start or none, when it is answered."""
        return "pre_run" in self.waiting_hooks and self.fresh and (not self.active or self.state == "COMPLETING")

    def starts_on_other_nodes(self, row: Staging) -> bool:
        """Whether it is about to start on other nodes than those of the record."""
        nodes = self.facts.nodes if self.facts else ()
        return "pre_run" in self.waiting_hooks and bool(nodes) and set(nodes) != set(row.nodes)

    def ran_on_other_nodes(self, row: Staging) -> bool:
        """Whether Slurm asks for output of other nodes than the record's: that is of a run before, as a copy is.

        A job that has given some of its nodes back still has output there.
        """
        facts = (
            None
            if self.unknown_to_slurm or self.queued or "pre_run" in self.waiting_hooks
            else self.facts_of_record(row)
        )
        return (
            facts is not None
            and any(h in self.waiting_hooks for h in OUTPUT_HOOKS)
            and not set(facts.nodes) <= set(row.nodes)
        )

    def note_listing(self, row: Staging, listed_states: Mapping[str, str], listing_time: float, now: float) -> None:
        """A listing of this time: the states of the jobs in it."""
        state = listed_states.get(self.job_id) or listed_states.get(self.facts.queue_id if self.facts else self.job_id)
        if state and (row.state is not S.FETCHED or state in ACTIVE_STATES):
            self.missed_listings = (0, 0.0)
            return
        times, first = self.missed_listings
        self.missed_listings = (times + 1, first or listing_time)
        if times >= 1 and now - self.missed_listings[1] >= MISSING_AFTER_S and self.fresh and not self.waiting_hooks:
            self.missed_listings = (0, 0.0)
            self.request_query()

    # Its hooks.

    def register_hook(self, hook: str, answer: HookAnswer, now: float) -> bool:
        """A hook waits; True: it did already, and this is its client asking again."""
        again = hook in self.waiting_hooks
        self.waiting_hooks[hook], self.hooks_heard_at[hook] = answer, now
        return again

    def drop_hooks(self, *hooks: str) -> None:
        """Forgets hooks whose clients are dead."""
        for hook in hooks:
            self.waiting_hooks.pop(hook, None)

    def refuse_hooks(self, text: str, *hooks: str) -> None:
        """Answers these hooks, where they wait, with a refusal: Slurm holds the job."""
        for hook in hooks:
            if hook in self.waiting_hooks:
                self.waiting_hooks.pop(hook)(StageReply("refused", text))

    def answer_hooks(self, reply: Callable[[str], StageReply | None]) -> dict[str, StageReply]:
        """Answers the hooks for which there is a reply; returns what was said."""
        replies = {hook: sent_reply for hook in self.waiting_hooks if (sent_reply := reply(hook)) is not None}
        for hook, sent_reply in replies.items():
            self.waiting_hooks.pop(hook)(sent_reply)
        return replies

    # Its work.

    def add_task(self, name: str, task: StagingTask) -> None:
        """A piece of work is under way."""
        self.tasks = {**self.tasks, name: task}

    def remove_task(self, name: str) -> None:
        """It has come back."""
        self.tasks = {n: t for n, t in self.tasks.items() if n != name}

    def next_due(self, now: float) -> float:
        """When its next pause ends."""
        checkpoint = self.cycle.checkpoint
        pauses = (self.cycle.paused_until, checkpoint.due, checkpoint.last_until)
        rests = min((until for until in pauses if until > now), default=float("inf"))
        return rests if self.fresh or self.query.in_flight else min(rests, max(now, self.query.due))

    def cancel_tasks(self) -> None:
        """Tells the work under way to end."""
        for task in self.tasks.values():
            task.cancelled.set()

    def task_progress(self, name: str) -> MeterReading | None:
        """The meter of one piece of work."""
        task = self.tasks.get(name)
        return task.meter.current_progress() if task else None


class StagingRuns:
    """Of all jobs."""

    def __init__(self) -> None:
        self._runs: dict[str, StagingRun] = {}
        self._lock = threading.Lock()
        self._last_listing = 0.0
        self._staging_out: dict[str, tuple[Job, float]] = {}

    def run_of(self, job_id: str) -> StagingRun:
        """One job's."""
        with self._lock:
            return self._runs.setdefault(job_id, StagingRun(job_id))

    def all_runs(self) -> tuple[StagingRun, ...]:
        """Every job's."""
        return tuple(self._runs.values())

    def forget_dead(
        self, live: Iterable[str], now: float, contain_errors: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """Forgets clients that are dead, and jobs that are on record no more unless something of theirs waits."""
        alive = set(live)
        for run in self.all_runs():
            with contain_errors(run.job_id):
                run.drop_hooks(
                    *(hook for hook in run.waiting_hooks if now - run.hooks_heard_at[hook] > CLIENT_TIMEOUT_S)
                )
        with self._lock:
            self._runs = {
                j: run
                for j, run in self._runs.items()
                if j in alive or run.waiting_hooks or run.query.in_flight or run.tasks
            }

    def note_listing(
        self,
        slurm: SlurmView,
        records: Mapping[str, Staging],
        now: float,
        contain_errors: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """Has Slurm asked about jobs that its listings do not show, or show in a state that the record does not fit.

        A listing proves nothing by itself: a task of an array bears another name in it than its hooks. A listing that
        was seen before says nothing new. ``each``: within what a job is looked at.
        """
        if slurm.read_at == self._last_listing:
            return
        self._last_listing = slurm.read_at
        staging_out = [job for job in slurm.jobs if job.state is JobState.STAGE_OUT]
        self._staging_out = {job.id: self._staging_out.get(job.id, (job, now)) for job in staging_out}
        listed_states = {job.id: job.state.value for job in slurm.jobs}
        for job_id, row in records.items():
            with contain_errors(job_id):
                self.run_of(job_id).note_listing(row, listed_states, slurm.read_at, now)

    def staging_out(self, now: float) -> tuple[tuple[Job, float], ...]:
        """Jobs that have not staged out for so long that their data_out must have been heard, and since when."""
        return tuple((job, since) for job, since in self._staging_out.values() if now - since <= CLIENT_TIMEOUT_S)

    def progress_by_job(self) -> dict[str, tuple[MeterReading, ...]]:
        """Of all work under way; from any thread."""
        with self._lock:
            return {
                j: tuple(t.meter.current_progress() for t in r.tasks.values()) for j, r in self._runs.items() if r.tasks
            }
