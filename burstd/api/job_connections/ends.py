"""Waits for jobs: until they have ended, or until they run.

The request has ``jobs`` (ids) and ``start`` (until they run). After a good answer each line of JSON is one of

- ``{"job": ID, "note": TEXT}``: what it waits for, or where it runs, when that changes;
- ``{"job": ID, "started": true}``, with ``start``;
- ``{"job": ID, "ended": [{"id": ..., "state": ..., "exit_code": "1:0"}, ...]}``: all parts of an array or het job;
- ``{"end": ""}``: the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from burstd.api.auth import Caller, base_job_id
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, require_latest_loop
from burstd.api.job_connections.server import JobConnection
from burstd.api.routers.jobs import AnnotatedQueue, annotated_queue
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import ENDED_STATES, RUNNING_STATES, Job
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.planner.demand.demand import has_task
from burstd.slurm.commands.accounting import AccountedJob
from burstd.slurm.commands.job_facts import JobFacts

log = structlog.get_logger(__name__)

MAX_JOBS = 100
STATE_CHECK_S = 1.0
_COUNTDOWN = re.compile(r", about [0-9]+ min$")
Ends = dict[str, tuple[str, str]]
"""State and exit code of each part of a job that has ended."""


class WaitService:
    """Implements ``JobService``."""

    def __init__(
        self,
        backend: Backend,
        read_parts: Callable[[str], Sequence[JobFacts]],
        read_accounting: Callable[[str], Sequence[AccountedJob]],
    ) -> None:
        """``read_parts``: what slurmctld knows of a job; raises SchedulerUnavailable.

        ``read_accounting``: what slurmdbd knows; raises SchedulerRefused as well where there is none.
        """
        self._backend = backend
        self._read_parts = read_parts
        self._read_accounting = read_accounting

    def close_idle(self, idle_timeout_s: float | None = None) -> None:
        """Nothing is kept."""

    def serve(self, request: Mapping[str, Any], caller: Caller, client: JobConnection) -> None:
        """Tells of each job until all have ended, or run."""
        jobs = request.get("jobs")
        if not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_JOBS or not all(isinstance(j, str) for j in jobs):
            raise ApiError(422, f"Name 1 to {MAX_JOBS} jobs.")
        until_start = request.get("start") is True
        left = [_Watched(job_id) for job_id in dict.fromkeys(jobs)]
        looked = self._check_all(left, caller, until_start=until_start)
        client.send_line({"ok": True, "job": request["job"]})
        client.socket.settimeout(None)
        while not client.is_over():
            for job in left:
                for answer in job.news:
                    client.send_line({"job": job.id, **answer})
                job.news.clear()
            left = [job for job in left if not job.over]
            if not left:
                client.send_line({"end": ""})
                return
            client.pause(STATE_CHECK_S)
            if self._backend.latest_loop() is not looked:
                looked = self._check_all(left, caller, until_start=until_start)

    def _check_all(self, jobs: Iterable[_Watched], caller: Caller, *, until_start: bool) -> object:
        """Returns which loop was looked at."""
        latest = self._backend.latest_loop()
        for job in jobs:
            self._check(job, caller, until_start=until_start)
        return latest

    def _check(self, job: _Watched, caller: Caller, *, until_start: bool) -> None:
        """Looks at the last snapshot, and where the job is not in it, into Slurm. May be denied."""
        slurm = require_latest_loop(self._backend)[0].slurm
        if isinstance(slurm, Unavailable):
            job.note(f"Slurm cannot be read: {slurm.error}")
            return
        rows = [row for row in slurm.jobs if job.has(row)]
        job.keep_ends(slurm)
        _require_own(caller, job.id, {row.user for row in rows})
        if rows:
            if until_start and any(row.state in RUNNING_STATES for row in rows):
                job.finish({"started": True})
            else:
                job.note(_standing_text(job.id, rows, annotated_queue(self._backend)))
            return
        try:
            ends = self._ends(job, slurm, caller)
        except SchedulerUnavailable as error:
            job.note(f"Slurm cannot be read: {error}")
            return
        if ends is not None:
            parts = [{"id": id_, "state": state, "exit_code": code} for id_, (state, code) in sorted(ends.items())]
            job.finish({"ended": parts})

    def _ends(self, job: _Watched, slurm: SlurmView, caller: Caller) -> Ends | None:
        """How a job ended that is not in the queue; None: Slurm says that it is, it has just been submitted."""
        last = max((row for row in slurm.ended if row.id == job.id), key=lambda row: row.end, default=None)
        if last is not None and (base_job_id(job.id) != job.id or not (last.array_job_id or last.het_job_id)):
            _require_own(caller, job.id, {last.user})
            return {last.id: (last.state.value, last.exit_code)}
        known = [part for part in self._read_parts(job.id) if job.names(part.queue_id)]
        _require_own(caller, job.id, {part.user for part in known})
        if any(part.state not in ENDED_STATES for part in known):
            return None
        ends = job.ends | {part.queue_id: (part.state, part.exit_code) for part in known}
        if [part.queue_id for part in known] == [job.id]:
            return ends
        try:
            # slurmctld forgets the tasks of an array one by one.
            accounted = self._read_accounting(job.id)
        except SchedulerRefused as error:
            log.debug("a job is not in the accounting", job=job.id, error=str(error))
            accounted = []
        _require_own(caller, job.id, {part.user for part in accounted})
        ends = {part.id: (part.state, part.exit_code) for part in accounted if job.names(part.id)} | ends
        if not ends:
            raise ApiError(404, f"Neither Slurm nor its accounting knows a job {job.id}.")
        return ends


class _Watched:
    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self.over = False
        self.ends: Ends = {}
        """Of parts that ended while others were in the queue."""
        self.news: list[dict[str, Any]] = []
        self._noted = ""

    def has(self, row: Job) -> bool:
        """Whether the row of the queue is this job, a part of it, or has it."""
        number, _, task = self.id.partition("_")
        return (
            self.id in (row.id, row.array_job_id, row.het_job_id, base_job_id(row.id))
            or (bool(task) and row.id == number and has_task(row.array_tasks, task))
        )  # fmt: skip

    def names(self, part_id: str) -> bool:
        """Whether this is the id of the job, or of a part of it."""
        return self.id in (part_id, base_job_id(part_id))

    def keep_ends(self, slurm: SlurmView) -> None:
        """Notes which parts are over; slurmctld forgets them before the last one ends."""
        own = (row for row in slurm.ended if self.names(row.id) and not row.array_tasks)
        self.ends |= {row.id: (row.state.value, row.exit_code) for row in own}

    def note(self, text: str) -> None:
        """Is told where it is not what was told last."""
        bare = _COUNTDOWN.sub("", text)
        if bare != self._noted:
            self.news.append({"note": text})
            self._noted = bare

    def finish(self, answer: dict[str, Any]) -> None:
        """Is told as the last of this job."""
        self.news.append(answer)
        self.over = True


def _require_own(caller: Caller, job_id: str, users: Iterable[str]) -> None:
    if not all(caller.can_see_user(user) for user in users):
        raise ApiError(403, f"You are {caller.user}, and job {job_id} is not yours.")


def _standing_text(job_id: str, rows: Sequence[Job], queue: AnnotatedQueue) -> str:
    """What burstd says of the job in its comment: what it waits for, which node comes for it, or where it runs."""
    running = [row for row in rows if row.state in RUNNING_STATES]
    waiting = [row for row in rows if row.state not in RUNNING_STATES]
    row = (waiting or running)[0]
    comment = queue.comments.comment_for(row, "")
    if comment is not None and comment.text:
        text = comment.text
    elif waiting:
        text = f"waits: {row.reason or row.state.value.lower()}"
    else:
        text = f"{row.state.value.lower()} on {', '.join(row.node_list)}"
    if base_job_id(job_id) != job_id or (len(rows) == 1 and row.tasks == 1):
        return text
    return f"{len(running)} run, {sum(one.tasks for one in waiting)} wait; {text}"
