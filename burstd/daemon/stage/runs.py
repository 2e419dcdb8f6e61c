"""What the desk knows of each job beyond the record: hooks that wait, work under way, pauses. All may be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from burstd.daemon.stage.progress import Reading
from burstd.daemon.stage.work import Task
from burstd.model.data import Staging
from burstd.model.snapshot import SlurmView
from burstd.slurm.job_facts import JobFacts
from burstd.slurm.stage_server import StageReply

Answer = Callable[[StageReply], None]


@dataclass(slots=True)
class Run:
    """One job."""

    job_id: str
    script: str = ""
    script_path: str = ""
    facts: JobFacts | None = None
    size: int | None = None
    """Bytes of its sources, as far as was looked."""
    torn: bool = False
    """Slurm has told that the job is over for it."""
    hurry: bool = False
    """Its output is given up."""
    asking: int = 0
    """Questions to Slurm under way."""
    ask_after: float = 0.0
    unheard: list[Callable[[JobFacts | None], None]] = field(default_factory=list)
    """What waits for an answer that Slurm did not give."""
    rest_until: float = 0.0
    outstanding: int = 0
    lost: set[str] = field(default_factory=set)
    fetched: set[str] = field(default_factory=set)
    warnings: tuple[str, ...] = ()
    hooks: dict[str, Answer] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)

    @property
    def task(self) -> Task | None:
        """Any of the work under way."""
        return next(iter(self.tasks.values()), None)

    def begin(self, name: str, task: Task) -> None:
        """A piece of work is under way."""
        self.tasks = {**self.tasks, name: task}

    def end(self, name: str) -> None:
        """It has come back."""
        self.tasks = {n: t for n, t in self.tasks.items() if n != name}

    def stop(self) -> None:
        """Tells the work under way to end."""
        for task in self.tasks.values():
            task.cancelled.set()

    def read(self, name: str) -> Reading | None:
        """The meter of one piece of work."""
        task = self.tasks.get(name)
        return task.meter.read() if task else None

    def wait_for(self, hook: str, answer: Answer) -> bool:
        """A hook waits; True: it did already, and this is its client asking again."""
        again = hook in self.hooks
        self.hooks[hook] = answer
        return again

    def answer(self, reply: Callable[[str], StageReply | None]) -> None:
        """Answers the hooks for which there is a reply."""
        for hook in tuple(self.hooks):
            said = reply(hook)
            if said is not None:
                self.hooks.pop(hook)(said)


class Runs:
    """Of all jobs."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}
        self._listings = 0
        self._missing: dict[str, tuple[int, float]] = {}

    def of(self, job_id: str) -> Run:
        """One job's."""
        with self._lock:
            return self._runs.setdefault(job_id, Run(job_id))

    def keep(self, live: Iterable[str]) -> None:
        """Forgets jobs that are on record no more, unless a hook of theirs waits."""
        alive = set(live)
        with self._lock:
            self._runs = {
                j: run
                for j, run in self._runs.items()
                if j in alive or run.hooks or run.asking or run.tasks or run.unheard
            }
            self._missing = {j: m for j, m in self._missing.items() if j in alive}

    def listed(self, slurm: SlurmView) -> None:
        """Counts the jobs that a listing did not show. A listing that was counted before says nothing new."""
        if slurm.read == self._seen.get(""):
            return
        self._seen[""] = slurm.read
        shown = {job.id for job in slurm.jobs} | {job.array_job_id for job in slurm.jobs}
        for job_id, run in list(self._runs.items()):
            names = {job_id, run.facts.queue_id} if run.facts else {job_id}
            if names & shown or (run.facts and run.facts.queue_id.partition("_")[0] in shown):
                self._missing.pop(job_id, None)
            else:
                times, first = self._missing.get(job_id, (0, slurm.read))
                self._missing[job_id] = (times + 1, first)

    def vanished(self, row: Staging, now: float, after_s: float) -> bool:
        """Whether Slurm has stopped showing the job: seen missing twice, and long enough ago."""
        times, first = self._missing.get(row.job_id, (0, now))
        run = self._runs.get(row.job_id)
        return times >= 2 and now - first >= after_s and not (run and run.hooks)

    def next_due(self, now: float) -> float:
        """When the next pause ends."""
        return min((r.rest_until for r in self._runs.values() if r.rest_until > now), default=float("inf"))

    def readings(self) -> dict[str, tuple[Reading, ...]]:
        """Of all work under way."""
        with self._lock:
            return {j: tuple(t.meter.read() for t in r.tasks.values()) for j, r in self._runs.items() if r.tasks}
