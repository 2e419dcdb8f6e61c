"""Jobs whose machines are taken back: their requeue, and how often it has happened to each of them.

Each run of a job that is cut short is an event of the job, written before Slurm is told, once for each run: so the
count is right whatever dies on the way. A run that Slurm does not requeue is struck out by another event. The runs of
jobs that are in the queue are kept in memory, read once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import structlog

from burstd.db import Store
from burstd.domain.errors import SchedulerRefused
from burstd.domain.plan import JobRun
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.slurm import comment
from burstd.domain.slurm.job import Job
from burstd.planner import isolation
from burstd.planner.lifecycle.spot_notices import INTERRUPTED
from burstd.reconciler.memory import Memory
from burstd.reconciler.quarantine import Holds

log = structlog.get_logger(__name__)

_NONE: frozenset[int] = frozenset()
NOT_REQUEUED = "not requeued"
"""State of a job's event: this run does not count as cut short, as Slurm did not requeue it."""
INTERRUPTED_AT_LAST = "interrupted at last"
"""State of a job's event: this run, once not requeued, was cut short after all."""


class Interruptions:
    """Used in the deciding thread only. All methods raise SchedulerUnavailable and StoreError."""

    def __init__(self, store: Store, scheduler: Scheduler, memory: Memory, holds: Holds) -> None:
        self._store = store
        self._scheduler = scheduler
        self._memory = memory
        self._holds = holds
        self._runs: dict[str, frozenset[int]] = {}

    def of(self, jobs: Sequence[Job]) -> Mapping[str, frozenset[int]]:
        """The runs of these jobs that were cut short. Reads what is not known so far of those started before."""
        if not jobs:
            return {}
        here = {job.id for job in jobs}
        self._runs = {job: runs for job, runs in self._runs.items() if job in here}
        memory = self._memory
        words = {job.het_job_id or job.id for job in jobs} if memory.requeued or memory.unmoved else set()
        memory.requeued = {run for run in memory.requeued if run[0] in words}
        memory.unmoved = {run: at for run, at in memory.unmoved.items() if run[0] in words}
        self._read([job.id for job in jobs if job.restarts])
        return {job: runs for job, runs in self._runs.items() if runs}

    def _read(self, jobs: Collection[str]) -> None:
        unknown = {job for job in jobs if job not in self._runs}
        if not unknown:
            return
        cut = self._store.cut_runs(unknown, INTERRUPTED)
        stayed = self._store.cut_runs(cut, NOT_REQUEUED)
        late = self._store.cut_runs(stayed, INTERRUPTED_AT_LAST)
        for job in unknown:
            with self._holds.guard("interruptions", isolation.job(job)):
                runs = cut.get(job, _NONE) - stayed.get(job, _NONE)
                self._runs[job] = runs | late.get(job, _NONE)

    def note(self, runs: Iterable[JobRun]) -> int:
        """Writes down that these runs end with their machine, those that are not on record; returns how many."""
        runs = tuple(runs)
        self._read([row for run in runs for row in run.rows])
        news = [(row, run) for run in runs for row in run.rows if run.number not in self._runs[row]]
        with self._store.batch():
            for row, run in news:
                new = INTERRUPTED_AT_LAST if (run.job_id, run.number) in self._memory.unmoved else INTERRUPTED
                self._store.append(f"job:{row}", new=new, reason=run.reason, cause="spot", data={"run": run.number})
        for row, run in news:
            self._runs[row] |= {run.number}
        return len(news)

    def requeue(self, runs: Sequence[JobRun], now: float) -> int:
        """Has the jobs begin anew; returns how many do. One that Slurm does not requeue runs on, and says why."""
        known = self._memory.unmoved.keys()
        again = [run for run in runs if (run.job_id, run.number) in known]
        fresh = [run for run in runs if (run.job_id, run.number) not in known]
        self.note(fresh)
        refused = self._ask(fresh)
        for run, error in refused.items():
            self._stays(run, error)
        refused |= {run: still for run in again if (still := self._refusal([run])) is not None}
        taken = [run for run in runs if run not in refused]
        self.note(taken)  # Those that were refused before are not on record.
        self._memory.requeued.update((run.job_id, run.number) for run in taken)
        for run in taken:
            self._memory.unmoved.pop((run.job_id, run.number), None)
        self._memory.unmoved.update(((run.job_id, run.number), now) for run in refused)
        if taken:
            log.info("jobs are requeued", jobs=[run.job_id for run in taken])
        return len(taken)

    def _refusal(self, runs: Sequence[JobRun]) -> SchedulerRefused | None:
        try:
            self._scheduler.requeue_jobs([run.job_id for run in runs])
        except SchedulerRefused as error:
            return error
        return None

    def _ask(self, runs: Sequence[JobRun]) -> dict[JobRun, SchedulerRefused]:
        """Asks for all at once; where Slurm refuses, by halves: what begins anew by then is left so."""
        error = self._refusal(runs) if runs else None
        if error is None:
            return {}
        if len(runs) == 1:
            return {runs[0]: error}
        half = len(runs) // 2
        return self._ask(runs[:half]) | self._ask(runs[half:])

    def _stays(self, run: JobRun, error: SchedulerRefused) -> None:
        log.warning("job is not requeued", job=run.job_id, reason=run.reason, error=str(error))
        data = {"run": run.number}
        for row in run.rows:
            text = f"{run.reason}; {error}"
            self._store.append(f"job:{row}", new=NOT_REQUEUED, reason=text, cause="spot", data=data)
            self._runs[row] -= {run.number}
        there = self._scheduler.comments(run.rows[:1]).get(run.rows[0])
        if there is None:
            log.info("job has gone before it was told", job=run.job_id)
            return
        users, _ = comment.split(there)
        text = comment.joined(users, f"{run.reason}; Slurm does not requeue it: {error}")
        if text != users:
            try:
                self._scheduler.set_comment([run.job_id], text)
            except SchedulerRefused as gone:
                log.info("job has gone before it was told", job=run.job_id, error=str(gone))
