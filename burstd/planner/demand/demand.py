"""Which pending jobs more nodes would start, in the order in which Slurm will look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import attrgetter, is_

from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.licenses import wanted_licenses
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.limited_jobs import SHARE_REASONS
from burstd.planner.demand.pending_queue import PendingQueue
from burstd.planner.demand.pending_reasons import LIMIT_REMEDY, REFUSED_REQUESTS, PendingReason, pending_reason
from burstd.planner.demand.request import Payers, RequestIndex, ResourceRequest
from burstd.planner.demand.requeued_jobs import over_quota, restarts_after_interruption, within_quota_only
from burstd.planner.staging.input_deadlines import STAGE_IN_REASONS, InputDeadlines, data_of_job
from burstd.planner.staging.scratch import scratch_fault

_STARTED = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED, JobState.COMPLETING})
_CONTEXT_DEPENDENT = STAGE_IN_REASONS | REFUSED_REQUESTS | {"BeginTime", "Reservation"}
"""Reasons with which it is not the job alone that says whether it counts, and what is said of it."""
_WAITS_FOR_SHARE = PendingReason(True, "waiting for its project's share")
_WAITS_FOR_QUOTA = PendingReason(False, "waiting for its project's quota")
_WAITS_FOR_LIMIT = PendingReason(False, "waiting for a limit of its user, its account or its own QOS", LIMIT_REMEDY)
_MAX_REQUESTS = 50_000
"""So many are kept in mind."""
_MAX_TASK_DIGITS = 10
"""More than any array task has."""


@dataclass(slots=True, eq=False)
class PendingJob:
    """Jobs that start together (the components of a het job) or one job, ``tasks`` times (an array)."""

    job: Job
    """The job, or the leader of the het job."""
    request: ResourceRequest
    tasks: int = 1
    burst: bool = True
    """False: no pool serves its partitions; it is here because it competes for the other nodes."""
    single_task: bool = False
    """One task of one job, and no array: its id is all that anything can be known by."""
    other_components: tuple[tuple[Job, ResourceRequest], ...] = ()
    """The other components of the het job."""
    takes_capacity: bool = False
    """It takes room, or may (all but plain ones that were left out do)."""
    last_remark: Remark | None = None
    """What placement said of it last: said again where it is the same."""

    @property
    def components(self) -> tuple[tuple[Job, ResourceRequest], ...]:
        """All that start together."""
        return ((self.job, self.request), *self.other_components)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All that start together."""
        return (self.job, *(job for job, _ in self.other_components))

    def equivalent_to(self, job: Job, request: ResourceRequest) -> bool:
        """True where this is all that placement need know of another look at the job, of which it is one task."""
        own = self.job
        return self.single_task and self.request is request and (own.user, own.account) == (job.user, job.account)

    def gang_id(self, task: str = "") -> str:
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


@dataclass(slots=True, eq=False)
class _NotCounted:
    """What is said of jobs that do not count."""

    remarks: tuple[Remark, ...] = ()


_NOTHING = _NotCounted()


@dataclass(frozen=True, slots=True)
class Demand:
    """What counts, highest priority first, and a remark for each pending job of a burst partition that does not."""

    pending_jobs: tuple[PendingJob, ...]
    remarks: tuple[Remark, ...]
    wake_at: float = float("inf")
    """When the next of those that do not count yet begins to, in burstd's time."""
    has_het_jobs: bool = False
    """There are het jobs among them."""
    exclusive_partitions: frozenset[str] = frozenset()
    """Partitions with jobs, or slots, that share no node between users."""
    refused: tuple[PendingJob, ...] = ()
    """Jobs that do not count because Slurm says that their partitions cannot meet their request."""


def task_ids(text: str) -> Iterator[str]:
    """The tasks of Slurm's notation, in its order: ``1-3,7,10-20:5`` is 1, 2, 3, 7, 10, 15, 20."""
    for span in _spans(text):
        yield from map(str, span)


def tasks_among(text: str, tasks: Iterable[str]) -> list[str]:
    """Those of them that are in Slurm's notation, in its order; no others are looked at."""
    numbers = sorted(int(task) for task in set(tasks) if task.isdecimal() and len(task) <= _MAX_TASK_DIGITS)
    return [str(number) for span in _spans(text) for number in numbers if number in span]


def has_task(text: str, task: str) -> bool:
    """Whether a task is in Slurm's notation."""
    return task in tasks_among(text, (task,))


def _spans(text: str) -> Iterator[range]:
    for part in text.partition("%")[0].split(","):
        span, _, step = part.strip().strip("[]").partition(":")
        first, _, last = span.partition("-")
        if first.isdigit():
            yield range(int(first), int(last or first) + 1, int(step or 1))


class DemandCache:
    """What need not be found out again of jobs that are the very same as at the last look."""

    def __init__(self) -> None:
        self.reset((), frozenset())

    def reset(self, payers: Payers, exclusive_partitions: frozenset[str]) -> None:
        """Begins anew."""
        self.queue = PendingQueue[PendingJob | _NotCounted]()
        self.requests = RequestIndex(payers, exclusive_partitions)
        self.unsettled: dict[int, PendingJob] = {}
        """By the job's identity, the asks of the last look that were none of its notes."""
        self.last_demand: Demand | None = None
        """The last answer, where it stands until a job changes."""
        self.now = 0.0
        self.context: frozenset[str] = frozenset()
        """The partitions for which they hold."""


def pending_demand(snapshot: Snapshot, cache: DemandCache | None = None, payers: Payers = ()) -> Demand:
    """Reads the queue. Empty where Slurm could not be read. Jobs of different ``payers`` share no new machine."""
    if not isinstance(snapshot.slurm, SlurmView):
        return Demand((), ())
    return _QueueScan(snapshot, snapshot.slurm, cache or DemandCache()).scan(payers)


class _QueueScan:
    """One look at the queue."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView, cache: DemandCache) -> None:
        self._snapshot = snapshot
        self._slurm = slurm
        self._cache = cache
        self._now = snapshot.now
        self._data = snapshot.data
        self._staging_inputs = InputDeadlines(snapshot)
        self._pools = frozenset(partition for pool in snapshot.pools.values() for partition in pool.partitions)
        self._burst: dict[tuple[str, ...], bool] = {}
        self._reasons_by_text: dict[str, PendingReason] = {}
        self._wake_at = float("inf")
        self._running: Counter[str] | None = None
        self._components: dict[str, tuple[Job, ...]] | None = None
        self._refused: list[PendingJob] = []
        self._licences = dict(slurm.licenses)
        """What is left of them for the jobs that come."""

    def scan(self, payers: Payers) -> Demand:
        requests, exclusive = self._cache.requests, _exclusive_partitions(self._snapshot, self._slurm)
        grouped_by = requests.payers, requests.exclusive_partitions
        if self._now < self._cache.now or len(requests) > _MAX_REQUESTS or grouped_by != (payers, exclusive):
            # What counted by then need not count now.
            self._cache.reset(payers, exclusive)
        self._cache.now = self._now
        queue, before = self._cache.queue, self._cache.unsettled
        projects, limited = frozenset(self._snapshot.projects.projects), self._snapshot.runtime_state.limited_jobs
        same = queue.update(self._slurm.jobs, (self._pools, frozenset(self._data), projects, frozenset(limited)))
        if same and self._cache.last_demand is not None:
            return self._cache.last_demand
        found = list(queue.notes)
        self._cache.unsettled = {}
        if self._cache.context != self._pools:
            self._cache.context, before = self._pools, {}
        others = self._settle(queue.pending, queue.notes, found)
        for at in others:
            job = queue.pending[at]
            jobs = self._components_of(job)
            note = self._classify(jobs) if jobs else _NOTHING
            if isinstance(note, PendingJob):
                known = before.get(id(job))
                if known is not None and known.tasks == note.tasks and _same(known.jobs, jobs):
                    note = known
                self._cache.unsettled[id(job)] = note
            found[at] = note
        pending_jobs = tuple([note for note in found if type(note) is PendingJob])
        out = [note.remarks for note in found if type(note) is _NotCounted] if len(pending_jobs) < len(found) else []
        remarks, het = tuple(chain.from_iterable(out)), self._components is not None
        demand = Demand(pending_jobs, remarks, self._wake_at, het, exclusive, tuple(self._refused))
        self._cache.last_demand = None if others else demand
        return demand

    def _settle(
        self,
        pending: list[Job],
        notes: list[PendingJob | _NotCounted | None],
        found: list[PendingJob | _NotCounted | None],
    ) -> list[int]:
        """Notes down those whose answer hangs on the job alone, and is the same at the next look; returns the others.

        These are most of a long queue: it is gone through once, with nothing called that need not be.
        """
        now, data, requests, serves, meanings = (
            self._now,
            self._data,
            self._cache.requests,
            self._burst,
            self._reasons_by_text,
        )
        former = self._cache.queue.former_notes
        others: list[int] = []
        for at in list(compress(count(), map(is_, notes, repeat(None)))):
            job = pending[at]
            if (
                job.eligible > now or job.het_job_id or job.tasks_limit or job.reservation
                or job.licenses or job.reason in _CONTEXT_DEPENDENT or (data and data_of_job(data, job) is not None)
            ):  # fmt: skip
                others.append(at)
                continue
            partitions, reason = job.partitions, job.reason
            burst = serves[partitions] if partitions in serves else self._serves(partitions)
            meant = meanings.get(reason) or self._pending_reason(reason)
            if reason in SHARE_REASONS:
                meant = reason_of(job, self._snapshot)
            if meant.needs_nodes and not job.dependency and job.state is JobState.PENDING:
                plain = job.tasks <= 1 and not job.array_tasks
                request = requests.request_for(job)
                known = former.get(job.id) if plain else None
                if type(known) is PendingJob and known.equivalent_to(job, request):
                    known.job = job
                    notes[at] = found[at] = known
                else:
                    notes[at] = found[at] = PendingJob(job, request, job.tasks or 1, burst, plain)
            elif burst:
                out = Remark("demand", f"job:{job.id}", "wait", self._blocking_reason(job))
                notes[at] = found[at] = _NotCounted((out,))
            else:
                notes[at] = found[at] = _NOTHING
        return others

    def _components_of(self, job: Job) -> tuple[Job, ...]:
        """The components of a het job, with the first of them; none with the others."""
        if not job.het_job_id:
            return (job,)
        if self._components is None:
            self._components = _components(self._cache.queue.pending)
        return self._components.pop(job.het_job_id, ())

    def _classify(self, jobs: tuple[Job, ...]) -> PendingJob | _NotCounted:
        burst = any(self._serves(job.partitions) for job in jobs)
        if burst and (never := next(filter(None, map(self._scratch_fault, jobs)), "")):
            return _NotCounted(tuple(Remark("demand", f"job:{j.id}", "impossible", never) for j in jobs))
        tasks, why = self._tasks(jobs, burst=burst)
        if tasks:
            (job, request), *more = [(job, self._cache.requests.request_for(job)) for job in jobs]
            return PendingJob(job, request, tasks, burst, tasks == 1 and not (job.array_tasks or more), tuple(more))
        if burst and jobs[0].reason in REFUSED_REQUESTS and len(jobs) == 1:
            self._refused.append(PendingJob(jobs[0], self._cache.requests.request_for(jobs[0])))
        return _NotCounted(tuple(Remark("demand", f"job:{j.id}", "wait", why) for j in jobs)) if burst else _NOTHING

    def _scratch_fault(self, job: Job) -> str:
        view = data_of_job(self._data, job)
        if view is None or not view.scratch:
            return ""
        return scratch_fault(view.scratch, job.partitions, self._snapshot.pools, self._slurm.nodes)

    def _serves(self, partitions: tuple[str, ...]) -> bool:
        known = self._burst.get(partitions)
        if known is None:
            known = self._burst[partitions] = not self._pools.isdisjoint(partitions)
        return known

    def _pending_reason(self, reason: str) -> PendingReason:
        known = self._reasons_by_text.get(reason)
        if known is None:
            known = self._reasons_by_text[reason] = pending_reason(reason)
        return known

    def _tasks(self, jobs: tuple[Job, ...], *, burst: bool) -> tuple[int, str]:
        """How many tasks of these jobs count, and why none does."""
        for job in jobs:
            why = self._blocking_reason(job)
            if why:
                return 0, why if len(jobs) == 1 else f"component {job.id}: {why}"
        job, running = jobs[0], None
        tasks = max(1, job.tasks)
        if job.tasks_limit:
            if self._running is None:
                self._running = _running_tasks(self._slurm.jobs)
            running = self._running
            tasks = min(tasks, job.tasks_limit - running[job.array_job_id or job.id])
            if tasks <= 0:
                return 0, f"the array's % throttle allows {job.tasks_limit} running tasks"
        if burst and any(job.licenses for job in jobs):
            tasks, why = self._licensed_tasks(jobs, tasks)
        if running is not None:
            running[job.array_job_id or job.id] += tasks
        return tasks, "" if tasks else why

    def _licensed_tasks(self, jobs: tuple[Job, ...], tasks: int) -> tuple[int, str]:
        """So many as can have their licences now, when those before them that machines may be made for have theirs.

        Jobs of other partitions hold none back: slurmctld counts what is in use only.
        """
        wanted: Counter[str] = Counter()
        for job in jobs:
            wanted.update(wanted_licenses(job.licenses))
        # Slurm counts no others.
        counted = {name: number for name, number in wanted.items() if number and name in self._licences}
        for name, number in counted.items():
            tasks = min(tasks, self._licences[name] // number)
            if not tasks:
                return 0, f"it needs {number} of licence {name}, and {self._licences[name]} are free for it"
        for name, number in counted.items():
            self._licences[name] -= number * tasks
        return tasks, ""

    def _blocking_reason(self, job: Job) -> str:
        """Why more nodes would not start it; empty: they would."""
        if job.state is not JobState.PENDING:
            return f"the job is {job.state.value.lower().replace('_', ' ')}"
        found = reason_of(job, self._snapshot) if job.reason in SHARE_REASONS else self._pending_reason(job.reason)
        bound = job.id in self._snapshot.bound or job.het_job_id in self._snapshot.bound
        # The machine of one that begins anew boots while Slurm keeps it from starting.
        begun = restarts_after_interruption(job, self._snapshot) or (
            job.reason == "BeginTime" and 0 < job.eligible <= self._now
        )
        if job.eligible > self._now:
            self._wake_at = min(self._wake_at, job.eligible)
        data = self._staging_inputs.input_verdict(job)
        if data is not None and data.is_held:
            return data.wait_reason
        staging = data is not None and job.reason in STAGE_IN_REASONS
        if not found.needs_nodes and not begun and not staging and not (bound and job.reason == "Reservation"):
            return f"{found.text} (Slurm: {job.reason})"
        if job.dependency:
            return f"depends on another job ({job.dependency})"
        if job.eligible > self._now and not begun:
            return f"begin time in {job.eligible - self._now:.0f} s"
        if job.reservation and not bound:
            return f"reservation {job.reservation} has nodes of its own"
        if data is not None and data.wait_reason:
            self._wake_at = min(self._wake_at, data.due)
            return data.wait_reason
        return ""


def reason_of(job: Job, snapshot: Snapshot) -> PendingReason:
    """What the reason of a pending job means: of one of a project, what its project's limits mean."""
    if job.reason in SHARE_REASONS and within_quota_only(job, snapshot):
        return _WAITS_FOR_QUOTA
    if job.reason not in SHARE_REASONS or not over_quota(job, snapshot):
        return pending_reason(job.reason)
    return _WAITS_FOR_LIMIT if job.id in snapshot.runtime_state.limited_jobs else _WAITS_FOR_SHARE


_EXCLUSIVE_USER = attrgetter("exclusive_user")


def _exclusive_partitions(snapshot: Snapshot, slurm: SlurmView) -> frozenset[str]:
    pools = {partition for pool in snapshot.pools.values() if pool.exclusive_user for partition in pool.partitions}
    jobs = compress(slurm.jobs, map(_EXCLUSIVE_USER, slurm.jobs))
    return frozenset(pools.union(*(job.partitions for job in jobs)))


def _same(some: tuple[Job, ...], others: tuple[Job, ...]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _components(queue: list[Job]) -> dict[str, tuple[Job, ...]]:
    found: dict[str, list[Job]] = {}
    for job in queue:
        if job.het_job_id:
            found.setdefault(job.het_job_id, []).append(job)
    return {het: tuple(sorted(jobs, key=lambda j: j.het_offset)) for het, jobs in found.items()}


def _running_tasks(jobs: tuple[Job, ...]) -> Counter[str]:
    """How many tasks of each array run."""
    running: Counter[str] = Counter()
    for job in jobs:
        if job.array_job_id and job.state in _STARTED:
            running[job.array_job_id] += job.tasks
    return running
