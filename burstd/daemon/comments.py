"""Writes burstd's line into the comments of jobs, so that ``squeue -o %k`` shows what they wait for.

What stands in a comment the queue itself tells, so nothing is kept over a restart. A slurmctld with thousands of
waiting jobs must not feel it: jobs with the same line share one command, each loop gives few commands, and a job whose
line differs in its words only is written at most once a minute, in its numbers only, at most once in five.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from burstd.core.job_line import Line, Lines
from burstd.daemon.workers import Workers
from burstd.model.comment import joined, split
from burstd.model.errors import SchedulerRefused, SchedulerUnavailable
from burstd.model.job import Job, JobState
from burstd.model.plan import Plan
from burstd.model.scheduler import Scheduler
from burstd.model.snapshot import SlurmView, Snapshot

log = structlog.get_logger(__name__)

WORDS_S = 60.0
NUMBERS_S = 300.0
MOST_COMMANDS = 5
"""In one loop."""
MOST_JOBS = 500
"""In one loop: slurmctld takes most of a millisecond for each."""
LANE = "comments"
_DIGITS = re.compile(r"\d+")


class Commenting(Protocol):
    """What writes comments, as the reconciler sees it."""

    def step(self, snapshot: Snapshot, plan: Plan) -> None:
        """Begins to write what has changed."""
        ...


@dataclass(frozen=True, slots=True)
class _Told:
    """What was written last, or found there."""

    said: tuple[str, str]
    """Verdict and reason of the remark that it was made of."""
    kind: str
    comment: str
    at: float


@dataclass(frozen=True, slots=True)
class _News:
    job: Job
    said: tuple[str, str]
    kind: str
    comment: str


class Comments:
    """Used in the deciding thread; the commands run in a lane of their own, one batch at a time."""

    def __init__(self, scheduler: Scheduler, workers: Workers) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._told: dict[str, _Told] = {}
        self._writing = False

    def step(self, snapshot: Snapshot, plan: Plan) -> None:
        """Begins to write the comments that have changed, of the most urgent jobs first."""
        if self._writing or not isinstance(snapshot.slurm, SlurmView):
            return
        batch = [*self._batch(self._news(snapshot, snapshot.slurm, plan), snapshot.now)]
        if not batch:
            return
        self._writing = True
        self._workers.submit(LANE, lambda: self._write(batch), self._written, quiet=lambda _: True)

    def _news(self, snapshot: Snapshot, slurm: SlurmView, plan: Plan) -> list[_News]:
        burst = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
        lines = Lines(snapshot, plan)
        known, self._told = self._told, {}
        found: list[_News] = []
        for job in slurm.jobs:
            if burst.isdisjoint(job.partitions):
                continue
            told = known.get(job.id)
            if told is not None:
                self._told[job.id] = told
            word = lines.word(job) if job.state is JobState.PENDING else None
            said = (word.verdict, word.reason) if word is not None else ("", job.state.value)
            # The queue may have been read before the last batch was written.
            comment = told.comment if told is not None and told.at >= slurm.read else job.comment
            if told is not None and told.said == said and told.comment == comment and told.kind != "coming":
                continue
            fresh = self._fresh(job, comment, said, lines, told, snapshot.now)
            if fresh is not None:
                found.append(fresh)
        return found

    def _fresh(
        self, job: Job, comment: str, said: tuple[str, str], lines: Lines, told: _Told | None, now: float
    ) -> _News | None:
        users, ours = split(comment)
        line = lines.of(job, ours)
        if line is None:
            return None
        wanted = joined(users, line.text)
        if wanted == comment:
            self._told[job.id] = _Told(said, line.kind, comment, told.at if told is not None else 0.0)
            return None
        if not _due(line, told, ours, now):
            return None
        return _News(job, said, line.kind, wanted)

    def _batch(self, news: Sequence[_News], now: float) -> Iterator[tuple[str, list[str]]]:
        """A comment and the jobs that get it, as many as one loop may write."""
        groups: dict[str, list[_News]] = {}
        for one in sorted(news, key=lambda n: (n.kind != "never", -n.job.priority, n.job.submitted)):
            groups.setdefault(one.comment, []).append(one)
        left = MOST_JOBS
        for comment, some in [*groups.items()][:MOST_COMMANDS]:
            if not left:
                return
            chosen, left = some[:left], max(0, left - len(some))
            self._told.update({n.job.id: _Told(n.said, n.kind, comment, now) for n in chosen})
            yield comment, [_named(n.job) for n in chosen]

    def _write(self, batch: Sequence[tuple[str, Sequence[str]]]) -> None:
        for comment, ids in batch:
            try:
                self._scheduler.set_comment(ids, comment)
            except SchedulerRefused as error:
                # The others have it; a job that has left the queue needs none.
                log.debug("comment not taken", error=str(error))
            except SchedulerUnavailable as error:
                log.info("comments wait, Slurm does not answer", error=str(error))
                return

    def _written(self, result: Exception | None) -> None:
        self._writing = False
        if result is not None:
            log.error("comments could not be written", error=repr(result))


def _named(job: Job) -> str:
    """As Scheduler.set_comment takes it: the number of an array alone would mean its running tasks as well."""
    return f"{job.id}_[{job.array_tasks}]" if job.array_tasks else job.id


def _due(line: Line, told: _Told | None, ours: str, now: float) -> bool:
    """Whether what differs may be written by now."""
    if told is None:
        return _gist(line.text) != _gist(ours)
    if told.kind != line.kind:
        return True
    same = line.kind != "coming" and _gist(line.text) == _gist(split(told.comment)[1])
    return now - told.at >= (NUMBERS_S if same else WORDS_S)


def _gist(text: str) -> str:
    return _DIGITS.sub("0", text)
