"""Which pending jobs more nodes would start, in the order in which Slurm will look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from burstd.core.inputs import STAGING, Inputs
from burstd.core.reasons import meaning
from burstd.core.retry import begins_anew
from burstd.model.job import Job, JobState
from burstd.model.policy import Remark
from burstd.model.snapshot import SlurmView, Snapshot

_STARTED = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED, JobState.COMPLETING})
_PENDING = frozenset({JobState.PENDING, JobState.REQUEUED, JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT})


@dataclass(frozen=True, slots=True)
class Ask:
    """Jobs that start together (the components of a het job) or one job, ``tasks`` times (an array)."""

    jobs: tuple[Job, ...]
    tasks: int = 1
    burst: bool = True
    """False: no pool serves its partitions; it is here because it competes for the other nodes."""

    @property
    def job(self) -> Job:
        """The job, or the leader of the het job."""
        return self.jobs[0]

    def gang(self, task: str = "") -> str:
        """The word that the claims of its nodes bear: the job's id, the array task's id, the het job's id."""
        if self.job.het_job_id:
            return self.job.het_job_id
        return f"{self.job.array_job_id or self.job.id}_{task}" if task else self.job.id

    def task_ids(self) -> Iterator[str]:
        """Ids of its array tasks, lowest first; a single empty word where it is no array."""
        if not self.job.array_tasks:
            yield from ("" for _ in range(self.tasks))
            return
        yield from task_ids(self.job.array_tasks)


@dataclass(frozen=True, slots=True)
class Demand:
    """What counts, highest priority first, and a remark for each pending job of a burst partition that does not."""

    asks: tuple[Ask, ...]
    remarks: tuple[Remark, ...]
    look_at: float = float("inf")
    """When the next of those that do not count yet begins to, in burstd's time."""


def task_ids(text: str) -> Iterator[str]:
    """The tasks of Slurm's notation, in its order: ``1-3,7,10-20:5`` is 1, 2, 3, 7, 10, 15, 20."""
    for part in text.partition("%")[0].split(","):
        span, _, step = part.strip().strip("[]").partition(":")
        first, _, last = span.partition("-")
        if first.isdigit():
            yield from (str(n) for n in range(int(first), int(last or first) + 1, int(step or 1)))


def demand(snapshot: Snapshot) -> Demand:
    """Reads the queue. Empty where Slurm could not be read."""
    if not isinstance(snapshot.slurm, SlurmView):
        return Demand((), ())
    burst = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
    running: Counter[str] = Counter()
    pending: list[tuple[int, float, int, Job]] = []
    for index, job in enumerate(snapshot.slurm.jobs):
        if job.state in _PENDING:
            pending.append((-job.priority, job.submitted, index, job))
        elif job.array_job_id and job.state in _STARTED:
            running[job.array_job_id] += job.tasks
    pending.sort(key=lambda p: p[:3])
    counted = _Counted(snapshot, running)
    queue = [job for *_, job in pending]
    components = _components(queue)
    asks: list[Ask] = []
    remarks: list[Remark] = []
    for job in queue:
        jobs: tuple[Job, ...] = (job,)
        if job.het_job_id:
            if job.het_job_id not in components:
                continue
            jobs = components.pop(job.het_job_id)
        serves = not burst.isdisjoint(p for j in jobs for p in j.partitions)
        tasks, why = counted.tasks(jobs)
        if tasks:
            asks.append(Ask(jobs, tasks, serves))
        elif serves:
            remarks += [Remark("demand", f"job:{j.id}", "wait", why) for j in jobs]
    return Demand(tuple(asks), tuple(remarks), counted.look_at)


def _components(queue: Sequence[Job]) -> dict[str, tuple[Job, ...]]:
    found: dict[str, list[Job]] = {}
    for job in queue:
        if job.het_job_id:
            found.setdefault(job.het_job_id, []).append(job)
    return {het: tuple(sorted(jobs, key=lambda j: j.het_offset)) for het, jobs in found.items()}


class _Counted:
    """Decides job by job how many tasks count; arrays share their throttle."""

    def __init__(self, snapshot: Snapshot, running: Counter[str]) -> None:
        self._snapshot = snapshot
        self._now = snapshot.now
        self._bound = snapshot.bound
        self._taken = running
        self._inputs = Inputs(snapshot)
        self.look_at = float("inf")

    def tasks(self, jobs: tuple[Job, ...]) -> tuple[int, str]:
        """How many tasks of these jobs count, and why none does."""
        for job in jobs:
            why = self._keeps(job)
            if why:
                return 0, why if len(jobs) == 1 else f"component {job.id}: {why}"
        job = jobs[0]
        if not job.tasks_limit:
            return max(1, job.tasks), ""
        left = job.tasks_limit - self._taken[job.array_job_id or job.id]
        if left <= 0:
            return 0, f"as many tasks of its array run as its % throttle allows ({job.tasks_limit})"
        tasks = min(max(1, job.tasks), left)
        self._taken[job.array_job_id or job.id] += tasks
        return tasks, ""

    def _keeps(self, job: Job) -> str:
        """Why more nodes would not start it; empty: they would."""
        if job.state is not JobState.PENDING:
            return f"it is {job.state.value.lower().replace('_', ' ')}"
        bound = job.id in self._bound or job.het_job_id in self._bound
        found = meaning(job.reason)
        # The machine of one that begins anew boots while Slurm keeps it from starting.
        begun = begins_anew(job, self._snapshot) or (job.reason == "BeginTime" and 0 < job.eligible <= self._now)
        if job.eligible > self._now:
            self.look_at = min(self.look_at, job.eligible)
        data = self._inputs.of(job)
        if data is not None and data.held:
            return data.why
        staging = data is not None and job.reason in STAGING
        if not found.counts and not begun and not staging and not (bound and job.reason == "Reservation"):
            return f"{found.text} (Slurm: {job.reason})"
        if job.dependency:
            return f"it depends on another job ({job.dependency})"
        if job.eligible > self._now and not begun:
            return f"its begin time is in {job.eligible - self._now:.0f} s"
        if job.reservation and not bound:
            return f"it asks for the reservation {job.reservation}, which has nodes of its own"
        if data is not None and data.why:
            self.look_at = min(self.look_at, data.due)
            return data.why
        return ""
