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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import structlog

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.comment import is_for_burstd, join_comment, split_comment
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner import isolation
from burstd.planner.demand.demand import tasks_among
from burstd.planner.explain.job_comment import IDLE_PREFIX, JobComment, JobComments, scontrol_job_id
from burstd.reconciler.context import LoopContext

log = structlog.get_logger(__name__)

MIN_CAUSE_REWRITE_S = 10.0
MIN_REWRITE_S = 60.0
MIN_NUMBERS_REWRITE_S = 300.0
MIN_COMMANDS = 5
"""In one loop, however long they take."""
MAX_COMMANDS_S = 0.5
"""So long the commands of one loop may take together, by how long the last ones took."""
MAX_JOBS_WRITTEN = 500
"""Written in one loop: slurmctld takes most of a millisecond for each."""
MAX_JOBS_CHECKED = 1000
"""In one loop, of the jobs about which something has changed."""
PAUSE_PER_JOB_S = 0.0002
"""For each job of the queue, between two looks at all of it: two seconds with ten thousand."""
READ_PAUSE_FACTOR = 20
"""So many times as long as reading the comments again took: for that too slurmctld goes through its whole queue."""
QUEUE_NAME = "comments"
_DIGITS = re.compile(r"\d+")


class JobCommenting(Protocol):
    """What writes comments, as the reconciler sees it."""

    def step(self, snapshot: Snapshot, plan: Plan) -> None:
        """Begins to write what has changed."""
        ...


@dataclass(frozen=True, slots=True)
class _LastComment:
    """What was written last, or found there."""

    verdict: str
    """Of the remark that it was made of, with its cause; of a job that has started its state."""
    reason: str
    """Of the remark; of a job that has started nothing."""
    kind: str
    """Of the line; empty: there was none to be written."""
    comment: str
    written_at: float
    check_after: float
    """Until then it is not looked at, unless the verdict changes."""


@dataclass(frozen=True, slots=True)
class _NewComment:
    job: Job
    found_comment: str
    """The comment that it was made from."""
    planned: _LastComment


_Changed = tuple[Job, str, str]
"""A job with the verdict and the reason that are new."""


class JobCommentWriter:
    """Used in the deciding thread; the commands run in a lane of their own, one batch at a time."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._last_comments: dict[str, _LastComment] = {}
        self._writing = False
        self._max_commands = MIN_COMMANDS
        self._impossible: set[str] = set()
        self._due = 0.0
        self._reading_s = 0.0

    def step(self, snapshot: Snapshot, plan: Plan) -> None:
        """Begins to write the comments that have changed, of the most urgent jobs first."""
        slurm, now = snapshot.slurm, snapshot.now
        if self._writing or not isinstance(slurm, SlurmView):
            return
        remarks = {r.subject: r for r in plan.remarks}
        impossible = {subject for subject, remark in remarks.items() if remark.verdict == "impossible"}
        if now < self._due + READ_PAUSE_FACTOR * self._reading_s and impossible <= self._impossible:
            return
        self._impossible = impossible
        self._due = now + PAUSE_PER_JOB_S * len(slurm.jobs)
        lines = JobComments(snapshot, plan)
        changed = heapq.nsmallest(MAX_JOBS_CHECKED, self._changed(snapshot, slurm, lines, remarks), key=_urgency)
        new_comments: list[_NewComment] = []
        for one in changed:
            with self._context.quarantine.contain_errors("comments", isolation.job_subject(one[0].id)):
                if (found := self._new_comment(one, lines, slurm, now)) is not None:
                    new_comments.append(found)
        batch = [*self._batch(new_comments)]
        if batch:
            self._writing = True
            self._context.workers.submit(QUEUE_NAME, lambda: self._write(batch), self._written, quiet=lambda _: True)

    def _changed(
        self, snapshot: Snapshot, slurm: SlurmView, lines: JobComments, remarks: Collection[str]
    ) -> Iterator[_Changed]:
        """The jobs to be looked at."""
        burst = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
        projects = snapshot.projects.projects.values()
        burst |= {name for project in projects for name in (project.quota_partition, project.over_quota_partition)}
        known, self._last_comments = self._last_comments, {}
        for job in slurm.jobs:
            # What a comment requires counts in the site's own partitions too, and so do idle GPUs.
            if burst.isdisjoint(job.partitions) and not (
                (is_for_burstd(job.comment) and f"job:{job.id}" in remarks)
                or lines.idle_warning(job)
                or IDLE_PREFIX in job.comment
            ):
                continue
            with self._context.quarantine.contain_errors("comments", isolation.job_subject(job.id)):
                if (one := self._differs(job, known.get(job.id), lines, snapshot.now)) is not None:
                    yield one

    def _differs(self, job: Job, last: _LastComment | None, lines: JobComments, now: float) -> _Changed | None:
        remark = lines.last_remark(job) if job.state is JobState.PENDING else None
        idle = lines.idle_warning(job)
        # Of a waiting job of a project Slurm alone may say why.
        waits = f" {job.reason}" if job.state is JobState.PENDING else ""
        state = "leaves" if lines.is_leaving(job) else "idle" if idle else f"{job.state.value}{waits}"
        verdict, reason = (
            (_verdict(remark, job), remark.reason) if remark is not None else (state, idle or lines.project_text(job))
        )
        if last is not None:
            self._last_comments[job.id] = last
            if last.verdict == verdict and (now < last.check_after or _same(last, reason, job)):
                return None
        return job, verdict, reason

    def _new_comment(self, changed: _Changed, lines: JobComments, slurm: SlurmView, now: float) -> _NewComment | None:
        """What is to be written; None: nothing now."""
        job, verdict, reason = changed
        last = self._last_comments.get(job.id)
        written = last.written_at if last is not None else 0.0
        # The queue may have been read before the last batch was written.
        comment = last.comment if last is not None and written >= slurm.read_at else job.comment
        users_part, own_part = split_comment(comment)
        line = lines.comment_for(job, own_part)
        wanted = join_comment(users_part, line.text) if line is not None else comment
        if line is None:
            kind, due = "", now + MIN_REWRITE_S
        elif wanted == comment:
            kind, due = line.kind, written + MIN_REWRITE_S
        else:
            due = _due(line, last, own_part, now, new_cause=last is not None and last.verdict != verdict)
            if due <= now:
                return _NewComment(
                    job, comment, _LastComment(verdict, reason, line.kind, wanted, now, now + MIN_REWRITE_S)
                )
            kind, reason = (last.kind, last.reason) if last is not None else (line.kind, "")
            verdict = last.verdict if last is not None else verdict
        self._last_comments[job.id] = _LastComment(verdict, reason, kind, comment, written, due)
        return None

    def _batch(self, new_comments: Sequence[_NewComment]) -> Iterator[list[_NewComment]]:
        """Jobs that get the same comment, as many as one loop may write. ``news`` has the most urgent first."""
        groups: dict[str, list[_NewComment]] = {}
        for one in new_comments:
            groups.setdefault(one.planned.comment, []).append(one)
        left = MAX_JOBS_WRITTEN
        for some in [*groups.values()][: self._max_commands]:
            if not left:
                return
            chosen, left = some[:left], max(0, left - len(some))
            self._last_comments.update({one.job.id: one.planned for one in chosen})
            yield chosen

    def _write(self, batch: Sequence[Sequence[_NewComment]]) -> frozenset[str]:
        """Returns the jobs that were not written: somebody wrote to them meanwhile, or they have left the queue."""
        left = {one.job.id for some in batch for one in some}
        asked, given = perf_counter(), 0
        try:
            there = self._context.scheduler.comments(left)
            began = perf_counter()
            self._reading_s = began - asked
            for some in batch:
                mine = [one for one in some if _is_unchanged(one, there)]
                if mine:
                    self._set([scontrol_job_id(one.job) for one in mine], mine[0].planned.comment)
                    given += 1
                    left -= {one.job.id for one in mine}
        except SchedulerUnavailable as error:
            log.info("comments wait, Slurm does not answer", error=str(error))
            self._max_commands = MIN_COMMANDS
            return frozenset(left)
        if given:
            each = (perf_counter() - began) / given
            self._max_commands = max(MIN_COMMANDS, min(MAX_JOBS_WRITTEN, int(MAX_COMMANDS_S / max(each, 1e-6))))
        return frozenset(left)

    def _set(self, ids: Sequence[str], comment: str) -> None:
        try:
            self._context.scheduler.set_comment(ids, comment)
        except SchedulerRefused as error:
            # The others have it; a job that has left the queue needs none.
            log.debug("comment not taken", error=str(error))

    def _written(self, result: frozenset[str] | Exception) -> None:
        self._writing = False
        if isinstance(result, Exception):
            log.error("comments could not be written", error=repr(result))
            return
        for job_id in result:
            self._last_comments.pop(job_id, None)


def _is_unchanged(new_comment: _NewComment, there: Mapping[str, str]) -> bool:
    """Whether the comment is still the one that was found, and no task of the array has a row of its own by now."""
    job = new_comment.job
    if there.get(job.id) != new_comment.found_comment:
        return False
    prefix = f"{job.id}_"
    return not tasks_among(
        job.array_tasks, [row_id.removeprefix(prefix) for row_id in there if row_id.startswith(prefix)]
    )


def _same(last: _LastComment, reason: str, job: Job) -> bool:
    return last.reason == reason and last.kind != "coming" and last.comment == job.comment


def _urgency(changed: _Changed) -> tuple[bool, int, float]:
    job, verdict, _ = changed
    return not verdict.startswith("impossible"), -job.priority, job.submitted


def _verdict(remark: Remark, job: Job) -> str:
    """What is decided, and by whom or by which word of Slurm's."""
    cause = job.reason if remark.by == "demand" else remark.by
    return f"{remark.verdict} {cause}"


def _due(line: JobComment, last: _LastComment | None, own_part: str, now: float, *, new_cause: bool) -> float:
    """When what differs may be written."""
    same = line.kind != "coming" and _without_digits(line.text) == _without_digits(own_part)
    if last is None:
        return now + MIN_NUMBERS_REWRITE_S if same else now
    if last.kind != line.kind:
        return now
    pause_s = MIN_CAUSE_REWRITE_S if new_cause else MIN_NUMBERS_REWRITE_S if same else MIN_REWRITE_S
    return max(now, last.written_at + pause_s)


def _without_digits(text: str) -> str:
    return _DIGITS.sub("0", text)
