"""Writes burstd's line into the comments of jobs, so that ``squeue -o %k`` shows what they wait for.

What stands in a comment the queue itself tells, so nothing is kept over a restart. A slurmctld with a hundred thousand
waiting jobs must not feel it, nor may the loop: jobs with the same line share one command, a loop looks at few jobs and
gives few commands, those of the highest priority first, and a job whose line differs in its words only is written at
most once a minute, in its numbers only, at most once in five. What a job can never do is told at once.

Users and their jobs write there too, so what is there is read again before a batch is written: what has changed since
burstd looked is left as it is.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import structlog

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.plan import Plan
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.slurm.comment import joined, split
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner import isolation
from burstd.planner.demand.demand import tasks_among
from burstd.planner.explain.job_comment import Line, Lines, named
from burstd.reconciler.quarantine import Holds
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

WORDS_S = 60.0
NUMBERS_S = 300.0
FEWEST_COMMANDS = 5
"""In one loop, however long they take."""
COMMANDS_S = 0.5
"""So long the commands of one loop may take together, by how long the last ones took."""
MOST_JOBS = 500
"""Written in one loop: slurmctld takes most of a millisecond for each."""
MOST_LOOKED_AT = 1000
"""In one loop, of the jobs about which something has changed."""
PAUSE_S = 0.0002
"""For each job of the queue, between two looks at all of it: two seconds with ten thousand."""
PAUSES = 20
"""So many times as long as reading the comments again took: for that too slurmctld goes through its whole queue."""
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

    verdict: str
    reason: str
    """Of the remark that it was made of; of a job that has started its state, and nothing."""
    kind: str
    """Of the line; empty: there was none to be written."""
    comment: str
    written: float
    again: float
    """Until then it is not looked at, unless the verdict changes."""


@dataclass(frozen=True, slots=True)
class _News:
    job: Job
    found: str
    """The comment that it was made from."""
    told: _Told


_Changed = tuple[Job, str, str]
"""A job with the verdict and the reason that are new."""


class Comments:
    """Used in the deciding thread; the commands run in a lane of their own, one batch at a time."""

    def __init__(self, scheduler: Scheduler, workers: Workers, holds: Holds) -> None:
        self._holds = holds
        self._scheduler = scheduler
        self._workers = workers
        self._told: dict[str, _Told] = {}
        self._writing = False
        self._most = FEWEST_COMMANDS
        self._hopeless: set[str] = set()
        self._due = 0.0
        self._reading_s = 0.0

    def step(self, snapshot: Snapshot, plan: Plan) -> None:
        """Begins to write the comments that have changed, of the most urgent jobs first."""
        slurm, now = snapshot.slurm, snapshot.now
        if self._writing or not isinstance(slurm, SlurmView):
            return
        words = {r.subject: r for r in plan.remarks}
        hopeless = {subject for subject, word in words.items() if word.verdict == "impossible"}
        if now < self._due + PAUSES * self._reading_s and hopeless <= self._hopeless:
            return
        self._hopeless = hopeless
        self._due = now + PAUSE_S * len(slurm.jobs)
        lines = Lines(snapshot, plan)
        changed = heapq.nsmallest(MOST_LOOKED_AT, self._changed(snapshot, slurm, lines), key=_urgency)
        news: list[_News] = []
        for one in changed:
            with self._holds.guard("comments", isolation.job(one[0].id)):
                if (found := self._look(one, lines, slurm, now)) is not None:
                    news.append(found)
        batch = [*self._batch(news)]
        if batch:
            self._writing = True
            self._workers.submit(LANE, lambda: self._write(batch), self._written, quiet=lambda _: True)

    def _changed(self, snapshot: Snapshot, slurm: SlurmView, lines: Lines) -> Iterator[_Changed]:
        """The jobs to be looked at."""
        burst = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
        known, self._told = self._told, {}
        for job in slurm.jobs:
            if burst.isdisjoint(job.partitions):
                continue
            with self._holds.guard("comments", isolation.job(job.id)):
                if (one := self._differs(job, known.get(job.id), lines, snapshot.now)) is not None:
                    yield one

    def _differs(self, job: Job, told: _Told | None, lines: Lines, now: float) -> _Changed | None:
        word = lines.word(job) if job.state is JobState.PENDING else None
        verdict, reason = (word.verdict, word.reason) if word is not None else (job.state.value, "")
        if told is not None:
            self._told[job.id] = told
            if told.verdict == verdict and (now < told.again or _same(told, reason, job)):
                return None
        return job, verdict, reason

    def _look(self, changed: _Changed, lines: Lines, slurm: SlurmView, now: float) -> _News | None:
        """What is to be written; None: nothing now."""
        job, verdict, reason = changed
        told = self._told.get(job.id)
        written = told.written if told is not None else 0.0
        # The queue may have been read before the last batch was written.
        comment = told.comment if told is not None and written >= slurm.read else job.comment
        users, ours = split(comment)
        line = lines.of(job, ours)
        wanted = joined(users, line.text) if line is not None else comment
        if line is None:
            kind, due = "", now + WORDS_S
        elif wanted == comment:
            kind, due = line.kind, written + WORDS_S
        else:
            due = _due(line, told, ours, now)
            if due <= now:
                return _News(job, comment, _Told(verdict, reason, line.kind, wanted, now, now + WORDS_S))
            kind, reason = (told.kind, told.reason) if told is not None else (line.kind, "")
        self._told[job.id] = _Told(verdict, reason, kind, comment, written, due)
        return None

    def _batch(self, news: Sequence[_News]) -> Iterator[list[_News]]:
        """Jobs that get the same comment, as many as one loop may write. ``news`` has the most urgent first."""
        groups: dict[str, list[_News]] = {}
        for one in news:
            groups.setdefault(one.told.comment, []).append(one)
        left = MOST_JOBS
        for some in [*groups.values()][: self._most]:
            if not left:
                return
            chosen, left = some[:left], max(0, left - len(some))
            self._told.update({one.job.id: one.told for one in chosen})
            yield chosen

    def _write(self, batch: Sequence[Sequence[_News]]) -> frozenset[str]:
        """Returns the jobs that were not written: somebody wrote to them meanwhile, or they have left the queue."""
        left = {one.job.id for some in batch for one in some}
        asked, given = perf_counter(), 0
        try:
            there = self._scheduler.comments(left)
            began = perf_counter()
            self._reading_s = began - asked
            for some in batch:
                mine = [one for one in some if _as_found(one, there)]
                if mine:
                    self._set([named(one.job) for one in mine], mine[0].told.comment)
                    given += 1
                    left -= {one.job.id for one in mine}
        except SchedulerUnavailable as error:
            log.info("comments wait, Slurm does not answer", error=str(error))
            self._most = FEWEST_COMMANDS
            return frozenset(left)
        if given:
            each = (perf_counter() - began) / given
            self._most = max(FEWEST_COMMANDS, min(MOST_JOBS, int(COMMANDS_S / max(each, 1e-6))))
        return frozenset(left)

    def _set(self, ids: Sequence[str], comment: str) -> None:
        try:
            self._scheduler.set_comment(ids, comment)
        except SchedulerRefused as error:
            # The others have it; a job that has left the queue needs none.
            log.debug("comment not taken", error=str(error))

    def _written(self, result: frozenset[str] | Exception) -> None:
        self._writing = False
        if isinstance(result, Exception):
            log.error("comments could not be written", error=repr(result))
            return
        for job_id in result:
            self._told.pop(job_id, None)


def _as_found(news: _News, there: Mapping[str, str]) -> bool:
    """Whether the comment is still the one that was found, and no task of the array has a row of its own by now."""
    job = news.job
    if there.get(job.id) != news.found:
        return False
    prefix = f"{job.id}_"
    return not tasks_among(job.array_tasks, [word.removeprefix(prefix) for word in there if word.startswith(prefix)])


def _same(told: _Told, reason: str, job: Job) -> bool:
    return told.reason == reason and told.kind != "coming" and told.comment == job.comment


def _urgency(changed: _Changed) -> tuple[bool, int, float]:
    job, verdict, _ = changed
    return verdict != "impossible", -job.priority, job.submitted


def _due(line: Line, told: _Told | None, ours: str, now: float) -> float:
    """When what differs may be written."""
    same = line.kind != "coming" and _gist(line.text) == _gist(ours)
    if told is None:
        return now + NUMBERS_S if same else now
    if told.kind != line.kind:
        return now
    return max(now, told.written + (NUMBERS_S if same else WORDS_S))


def _gist(text: str) -> str:
    return _DIGITS.sub("0", text)
