"""Jobs whose machines or GPUs are taken back: their warning, their requeue, and how often it has happened to each.

Each run of a job that is cut short is an event of the job, written before Slurm is told, once for each run: so the
count is right whatever dies on the way. A run that Slurm does not requeue is struck out by another event. The runs of
jobs that are in the queue are kept in memory, read once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

import structlog

from burstd.domain.errors import SchedulerRefused
from burstd.domain.plan import JobRun, WarnJobs
from burstd.domain.slurm import comment
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import RequeueWarning, RuntimeState
from burstd.planner import isolation
from burstd.planner.lifecycle.spot_notices import INTERRUPTED
from burstd.planner.projects.steps import ENDED_WITHIN_S
from burstd.reconciler.context import LoopContext

log = structlog.get_logger(__name__)

_NONE: frozenset[int] = frozenset()
REQUEUED = "requeued"
"""State of a job's event: this run was cut short, and not for a machine that was taken back."""
NOT_REQUEUED = "not requeued"
"""State of a job's event: this run does not count as cut short, as Slurm did not requeue it."""
INTERRUPTED_AT_LAST = "interrupted at last"
"""State of a job's event: this run, once not requeued, was cut short after all."""
WARNED = "warned"
"""State of a job's event: this run was told that it is requeued soon."""
WARNED_KEY = "warned"
"""Key under which the store keeps the runs that were told so, until they are requeued: JSON."""
REQUEUE_RETRY_S = 20.0
"""A job that Slurm did not requeue is asked for again after this pause."""
JobRunKey = tuple[str, int]
"""A job's id for scontrol and its restarts before."""


class Interruptions:
    """Used in the deciding thread only. All methods raise SchedulerUnavailable and StoreError."""

    def __init__(self, context: LoopContext) -> None:
        self._context, self._store = context, context.store
        self._requeued: set[JobRunKey] = set()
        """Runs of jobs of the queue whose requeue Slurm has taken."""
        self._refused_at: dict[JobRunKey, float] = {}
        """Runs of jobs of the queue whose requeue Slurm has refused, and when last."""
        self._runs: dict[str, frozenset[int]] = {}
        self._not_spot: dict[str, frozenset[int]] = {}
        """Of ``_runs``, those that are no fault of their cloud."""
        self._warned: dict[JobRunKey, RequeueWarning] = {
            (str(job), int(restarts)): RequeueWarning(**{**fields, "queue_ids": tuple(fields["queue_ids"])})
            for job, restarts, fields in json.loads(self._store.metadata(WARNED_KEY) or "[]")
        }

    def interrupted_runs(self, jobs: Sequence[Job]) -> Mapping[str, frozenset[int]]:
        """The runs of these jobs that were cut short. Reads what is not known so far of those started before."""
        if not jobs:
            return {}
        here = {job.id for job in jobs}
        self._forget_warned(jobs)
        self._runs = {job: runs for job, runs in self._runs.items() if job in here}
        self._not_spot = {job: runs for job, runs in self._not_spot.items() if job in here}
        if self._requeued or self._refused_at:
            job_ids = {job.het_job_id or job.id for job in jobs}
            self._requeued = {run for run in self._requeued if run[0] in job_ids}
            self._refused_at = {run: at for run, at in self._refused_at.items() if run[0] in job_ids}
        self._read([job.id for job in jobs if job.restarts])
        return {job: runs for job, runs in self._runs.items() if runs}

    def not_spot(self) -> Mapping[str, frozenset[int]]:
        """Of the runs that ``interrupted_runs`` told last, those whose machines were not taken back."""
        return dict(self._not_spot)

    def runtime_state(self, now: float, state: RuntimeState) -> RuntimeState:
        """``state`` with the runs that Slurm has requeued, or not."""
        lately = {run for run, at in self._refused_at.items() if now - at < REQUEUE_RETRY_S}
        return replace(
            state,
            requeued=frozenset(self._requeued | lately),
            requeue_refused=frozenset(self._refused_at),
            warned=dict(self._warned),
        )

    def warn(self, action: WarnJobs) -> int:
        """Tells running jobs that they are requeued soon; returns how many. On record first: each is told once."""
        news = {
            (run.job_id, run.restarts): run for run in action.runs if (run.job_id, run.restarts) not in self._warned
        }
        warnings = {
            key: RequeueWarning(run.queue_ids, action.until, run.reason, run.cause, action.takes_checkpoint)
            for key, run in news.items()
        }
        with self._store.batch():
            self._keep_warned(self._warned | warnings)
            for key, warning in warnings.items():
                data = {"run": key[1], "until": warning.until}
                for row in warning.queue_ids:
                    self._store.log_event(
                        f"job:{row}", new=WARNED, reason=warning.reason, cause=warning.cause, data=data
                    )
        if news and not (action.takes_checkpoint or action.by_slurm):
            try:
                self._context.scheduler.warn_jobs([row for run in news.values() for row in run.queue_ids])
            except SchedulerRefused as error:
                log.info("a job has ended before it was told to", error=str(error))
        return len(news)

    def _keep_warned(self, warned: dict[JobRunKey, RequeueWarning]) -> None:
        if warned != self._warned:
            rows = [[*key, asdict(warning)] for key, warning in warned.items()]
            self._store.set_metadata(WARNED_KEY, json.dumps(rows) if rows else "", logged=False)
            self._warned = warned

    def _forget_warned(self, jobs: Sequence[Job]) -> None:
        """Those that were requeued by whomever. One that has left the queue may be requeued still, for a while."""
        now = self._context.clock.now()
        restarts: dict[str, int] = {}
        for job in jobs if self._warned else ():
            restarts[job.het_job_id or job.id] = job.restarts
        self._keep_warned(
            {
                key: warning
                for key, warning in self._warned.items()
                if restarts.get(key[0], key[1]) == key[1]
                and (key[0] in restarts or not (warning.takes_checkpoint or now > warning.until + ENDED_WITHIN_S))
            }
        )

    def _read(self, jobs: Collection[str]) -> None:
        unknown = {job for job in jobs if job not in self._runs}
        if not unknown:
            return
        taken_back = self._store.runs_with_event(unknown, INTERRUPTED)
        not_spot = self._store.runs_with_event(unknown, REQUEUED)
        self._not_spot |= not_spot
        cut = {job: taken_back.get(job, _NONE) | not_spot.get(job, _NONE) for job in taken_back | not_spot}
        not_requeued = self._store.runs_with_event(cut, NOT_REQUEUED)
        late = self._store.runs_with_event(not_requeued, INTERRUPTED_AT_LAST)
        for job in unknown:
            with self._context.quarantine.contain_errors("interruptions", isolation.job_subject(job)):
                runs = cut.get(job, _NONE) - not_requeued.get(job, _NONE)
                self._runs[job] = runs | late.get(job, _NONE)

    def record_runs(self, runs: Iterable[JobRun]) -> int:
        """Writes down that these runs end with their machine, those that are not on record; returns how many."""
        runs = tuple(runs)
        self._read([row for run in runs for row in run.queue_ids])
        news = [(row, run) for run in runs for row in run.queue_ids if run.restarts not in self._runs[row]]
        with self._store.batch():
            for row, run in news:
                new = INTERRUPTED if run.cause == "spot" else REQUEUED
                if (run.job_id, run.restarts) in self._refused_at:
                    new = INTERRUPTED_AT_LAST
                self._store.log_event(
                    f"job:{row}", new=new, reason=run.reason, cause=run.cause, data={"run": run.restarts}
                )
        for row, run in news:
            self._runs[row] |= {run.restarts}
            if run.cause != "spot":
                self._not_spot[row] = self._not_spot.get(row, _NONE) | {run.restarts}
        return len(news)

    def requeue(self, runs: Sequence[JobRun], now: float) -> int:
        """Has the jobs begin anew; returns how many do. One that Slurm does not requeue runs on, and says why."""
        ended = [run for run in runs if run.ended]
        if ended:
            return sum(map(self._requeue_ended, ended)) + self.requeue([r for r in runs if not r.ended], now)
        known = self._refused_at.keys()
        again = [run for run in runs if (run.job_id, run.restarts) in known]
        fresh = [run for run in runs if (run.job_id, run.restarts) not in known]
        self.record_runs(fresh)
        refused = self._requeue_by_halves(fresh)
        for run, error in refused.items():
            self._record_not_requeued(run, error)
        refused |= {run: still for run in again if (still := self._try_requeue([run])) is not None}
        requeued = [run for run in runs if run not in refused]
        self.record_runs(requeued)  # Those that were refused before are not on record.
        self._requeued.update((run.job_id, run.restarts) for run in requeued)
        for run in requeued:
            self._refused_at.pop((run.job_id, run.restarts), None)
        self._refused_at.update(((run.job_id, run.restarts), now) for run in refused)
        if requeued:
            log.info("jobs are requeued", jobs=[run.job_id for run in requeued])
        return len(requeued)

    def _requeue_ended(self, run: JobRun) -> int:
        """One that has ended by itself meanwhile is asked for once, whatever Slurm says."""
        self.record_runs([run])
        try:
            self._context.scheduler.requeue_ended(run.job_id)
        except SchedulerRefused as error:
            self._record_not_requeued(run, error)
        self._keep_warned({key: one for key, one in self._warned.items() if key != (run.job_id, run.restarts)})
        return 1

    def _try_requeue(self, runs: Sequence[JobRun]) -> SchedulerRefused | None:
        try:
            self._context.scheduler.requeue_jobs([run.job_id for run in runs])
        except SchedulerRefused as error:
            return error
        return None

    def _requeue_by_halves(self, runs: Sequence[JobRun]) -> dict[JobRun, SchedulerRefused]:
        """Asks for all at once; where Slurm refuses, by halves: what begins anew by then is left so."""
        error = self._try_requeue(runs) if runs else None
        if error is None:
            return {}
        if len(runs) == 1:
            return {runs[0]: error}
        half = len(runs) // 2
        return self._requeue_by_halves(runs[:half]) | self._requeue_by_halves(runs[half:])

    def _record_not_requeued(self, run: JobRun, error: SchedulerRefused) -> None:
        log.warning("job is not requeued", job=run.job_id, reason=run.reason, error=str(error))
        data = {"run": run.restarts}
        for row in run.queue_ids:
            text = f"{run.reason}; {error}"
            self._store.log_event(f"job:{row}", new=NOT_REQUEUED, reason=text, cause=run.cause, data=data)
            self._runs[row] -= {run.restarts}
        there = self._context.scheduler.comments(run.queue_ids[:1]).get(run.queue_ids[0])
        if there is None:
            log.info("job has gone before it was told", job=run.job_id)
            return
        users, _ = comment.split_comment(there)
        text = comment.join_comment(users, f"{run.reason}; Slurm does not requeue it: {error}")
        if text != users:
            try:
                self._context.scheduler.set_comment([run.job_id], text)
            except SchedulerRefused as gone:
                log.info("job has gone before it was told", job=run.job_id, error=str(gone))
