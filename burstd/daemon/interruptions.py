"""Jobs whose machines are taken back: their requeue, and how often it has happened to each of them.

Each run of a job that is cut short is an event of the job, written before Slurm is told, once for each run: so the
count is right whatever dies on the way. The runs of jobs that are in the queue are kept in memory, read once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import structlog

from burstd.core.notices import INTERRUPTED
from burstd.daemon.memory import Memory
from burstd.model.errors import SchedulerRefused
from burstd.model.job import Job
from burstd.model.plan import Interrupted, JobRun, Requeue, StartNow
from burstd.model.scheduler import Scheduler
from burstd.store import Store

log = structlog.get_logger(__name__)

_NONE: frozenset[int] = frozenset()


class Interruptions:
    """Used in the deciding thread only. All methods raise SchedulerUnavailable and StoreError."""

    def __init__(self, store: Store, scheduler: Scheduler, memory: Memory) -> None:
        self._store = store
        self._scheduler = scheduler
        self._memory = memory
        self._runs: dict[str, frozenset[int]] = {}

    def of(self, jobs: Sequence[Job]) -> Mapping[str, frozenset[int]]:
        """The runs that were cut short, of those jobs that were started before. Reads what is not known so far."""
        if not jobs:
            return {}
        here = {job.id for job in jobs}
        self._runs = {job: runs for job, runs in self._runs.items() if job in here}
        words = {job.het_job_id or job.id for job in jobs} if self._memory.requeued else set()
        self._memory.requeued = {run for run in self._memory.requeued if run[0] in words}
        again = [job.id for job in jobs if job.restarts]
        self._read(again)
        return {job: runs for job in again if (runs := self._runs[job])}

    def _read(self, jobs: Collection[str]) -> None:
        unknown = {job for job in jobs if job not in self._runs}
        if unknown:
            found = self._store.cut_runs(unknown, INTERRUPTED)
            self._runs |= {job: found.get(job, _NONE) for job in unknown}

    def note(self, action: Interrupted | Requeue) -> None:
        """Writes down that these runs end with their machine, those that are not on record."""
        self._read([row for run in action.runs for row in run.rows])
        news = [(row, run.number) for run in action.runs for row in run.rows if run.number not in self._runs[row]]
        with self._store.batch():
            for row, number in news:
                data = {"run": number}
                self._store.append(f"job:{row}", new=INTERRUPTED, reason=action.reason, cause="spot", data=data)
        for row, number in news:
            self._runs[row] |= {number}

    def requeue(self, action: Requeue) -> None:
        """Has the jobs begin anew. One that Slurm does not requeue is left to run, and says why in its comment."""
        self.note(action)
        try:
            self._scheduler.requeue_jobs([run.job_id for run in action.runs])
        except SchedulerRefused as error:
            # Those that could be are requeued by now: asked alone, they are refused as pending.
            for run in action.runs:
                self._requeue_one(run, action.reason, error if len(action.runs) == 1 else None)
        self._memory.requeued.update((run.job_id, run.number) for run in action.runs)
        log.info("jobs are requeued", jobs=[run.job_id for run in action.runs], reason=action.reason)

    def _requeue_one(self, run: JobRun, reason: str, refused: SchedulerRefused | None) -> None:
        if refused is None:
            try:
                self._scheduler.requeue_jobs([run.job_id])
            except SchedulerRefused as error:
                refused = error
        if refused is None or "pending" in str(refused):
            return
        log.warning("job is not requeued", job=run.job_id, reason=reason, error=str(refused))
        for row in run.rows:
            self._store.append(f"job:{row}", new="not requeued", reason=f"{reason}; {refused}", cause="spot")
        if not run.comment:
            self._tell(run, f"burstd: {reason}; it may not be requeued and runs until then")

    def _tell(self, run: JobRun, text: str) -> None:
        try:
            self._scheduler.set_comment(run.job_id, text)
        except SchedulerRefused as error:
            log.info("job has gone before it was told", job=run.job_id, error=str(error))

    def start_now(self, action: StartNow) -> None:
        """Spares requeued jobs their two minutes; one that has gone meanwhile needs nothing."""
        try:
            self._scheduler.start_now(action.jobs)
        except SchedulerRefused as error:
            log.info("a requeued job was not told to start at once", jobs=list(action.jobs), error=str(error))
