"""Waits for jobs: until they have ended, or until they run.

The request has ``jobs`` (ids) and ``start`` (until they run). After a good answer each line of JSON is one of

- ``{"job": ID, "note": TEXT}``: what it waits for, or where it runs, when that changes;
- ``{"job": ID, "started": true}``, with ``start``;
- ``{"job": ID, "ended": [{"id": ..., "state": ..., "exit_code": "1:0", "reason": ""}, ...]}``: all parts of an array
  or het job; ``reason``: why it did not start on its node;
- ``{"end": ""}``: the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from burstd.api.auth import Caller, base_job_id
from burstd.api.backend import SLICE, Backend
from burstd.api.dependencies import ApiError, require_latest_loop
from burstd.api.job_connections.server import JobConnection
from burstd.api.routers.jobs import AnnotatedQueue, annotated_queue, launch_failure
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.launch_failure import LAUNCH_SIGNAL
from burstd.domain.plan import Plan
from burstd.domain.slurm.job import ENDED_STATES, RUNNING_STATES, Job
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.planner.demand.demand import has_task
from burstd.reconciler.pollers.launch_failures import WITH_LAUNCH_LOG
from burstd.slurm.commands.accounting import AccountedJob
from burstd.slurm.commands.job_facts import JobFacts

log = structlog.get_logger(__name__)

MAX_JOBS = 100
MAX_REASONS = 100
"""Parts of a job of which it is said why they did not start."""
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
        if (
            not isinstance(jobs, list)
            or not 1 <= len(jobs) <= MAX_JOBS
            or not all(isinstance(j, str) and j for j in jobs)
        ):
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
        latest = require_latest_loop(self._backend)
        if isinstance(slurm := latest[0].slurm, Unavailable):
            job.note(f"Slurm cannot be read: {slurm.error}")
            return
        queue = self._backend.once_per_loop(latest, _QueueById)
        rows = job.rows(queue)
        job.keep_ends(queue)
        _require_own(caller, job.id, {row.user for row in rows})
        if rows:
            if until_start and any(row.state in RUNNING_STATES for row in rows):
                job.finish({"started": True})
            else:
                job.note(_standing_text(job.id, rows, annotated_queue(self._backend)))
            return
        try:
            ends = self._ends(job, queue, caller)
        except SchedulerUnavailable as error:
            job.note(f"Slurm cannot be read: {error}")
            return
        if ends is None or (reasons := self._launch_reasons(ends, latest[0], queue)) is None:
            return
        job.finish(
            {
                "ended": [
                    {"id": id_, "state": state, "exit_code": code, "reason": reasons.get(id_, "")}
                    for id_, (state, code) in sorted(ends.items())
                ]
            }
        )

    def _launch_reasons(self, ends: Ends, snapshot: Snapshot, queue: _QueueById) -> dict[str, str] | None:
        """Why parts of a job did not start; None: of one, slurmd's log is still being read."""
        open_slots = {claim.slot for claim in snapshot.claims if claim.state in WITH_LAUNCH_LOG}
        found: dict[str, str] = {}
        for id_ in [id_ for id_, (_, code) in sorted(ends.items()) if code == LAUNCH_SIGNAL][:MAX_REASONS]:
            failure = launch_failure(id_, self._backend)
            if failure is not None:
                found[id_] = failure.reason
            elif any(
                row.id == id_ and row.node_list[:1] and row.node_list[0] in open_slots for row in queue.ended(id_)
            ):
                return None
        return found

    def _ends(self, job: _Watched, queue: _QueueById, caller: Caller) -> Ends | None:
        """How a job ended that is not in the queue; None: Slurm says that it is, it has just been submitted."""
        last = max((row for row in queue.ended(job.id) if row.id == job.id), key=lambda row: row.end, default=None)
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


class _QueueById:
    """The queue of one snapshot, by each id by which a job may be asked for; shared by all that wait."""

    def __init__(self, backend: Backend, loop: tuple[Snapshot, Plan]) -> None:
        precedence, slurm = backend.precedence(), loop[0].slurm
        jobs, ended = (slurm.jobs, slurm.ended) if isinstance(slurm, SlurmView) else ((), ())
        self._rows: dict[str, Job] = {}
        self._parts: dict[str, list[Job]] = {}
        self._ended: dict[str, list[Job]] = {}
        for row in precedence.slices(jobs, SLICE):
            self._rows[row.id] = row
            if (whole := row.array_job_id or row.het_job_id) and whole != row.id:
                self._parts.setdefault(whole, []).append(row)
        for row in precedence.slices(ended, SLICE):
            for name in {row.id, base_job_id(row.id)}:
                self._ended.setdefault(name, []).append(row)

    def rows(self, job_id: str) -> list[Job]:
        """Of the job, or of all parts of an array or het job."""
        row = self._rows.get(job_id)
        return [*([row] if row is not None else ()), *self._parts.get(job_id, ())]

    def ended(self, job_id: str) -> Sequence[Job]:
        """The same of those that are over, as long as slurmctld knows them."""
        return self._ended.get(job_id, ())


class _Watched:
    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self.over = False
        self.ends: Ends = {}
        """Of parts that ended while others were in the queue."""
        self.news: list[dict[str, Any]] = []
        self._noted = ""

    def rows(self, queue: _QueueById) -> list[Job]:
        """The rows of the queue that are this job, a part of it, or have it."""
        number, _, task = self.id.partition("_")
        of_array = queue.rows(number) if task else ()
        return [
            *queue.rows(self.id),
            *(row for row in of_array if row.id == number and has_task(row.array_tasks, task)),
        ]

    def names(self, part_id: str) -> bool:
        """Whether this is the id of the job, or of a part of it."""
        return self.id in (part_id, base_job_id(part_id))

    def keep_ends(self, queue: _QueueById) -> None:
        """Notes which parts are over; slurmctld forgets them before the last one ends."""
        own = (row for row in queue.ended(self.id) if not row.array_tasks)
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
