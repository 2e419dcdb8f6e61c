"""What is expected of pending jobs, for policies that weigh waiting against the cloud.

When nodes of the site would start a job can be told in three ways. Slurm's backfill scheduler plans by time limits,
which users ask for generously, and knows every limit of the site: it is right about what cannot start, and late about
the rest. The queue as it is read here goes by how long like jobs ran, and knows nothing of licences, QOS or nodes that
jobs name. Jobs like it have waited for some time of late. So the look at the queue counts unless Slurm promises an
earlier start, or the queue has room for the job and Slurm still does not start it.

Slots of burstd's are no nodes of the site, and jobs for which machines are on their way do not wait for these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock

from burstd.domain.claim import USABLE, ClaimState
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_history import SimilarJobs
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.outlook import LeavesForCloud, Outlook, Outlooks
from burstd.domain.slurm.shape import gpus_of
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StageState
from burstd.planner.demand.demand import task_ids
from burstd.planner.demand.job_requirements import resource_requirements
from burstd.planner.demand.pending_reasons import pending_reason
from burstd.planner.demand.requeued_jobs import restarts_after_interruption
from burstd.planner.forecast.site_queue import NodeResources, NodeTypeFit, SiteNodeType, node_type_key
from burstd.planner.placement.bins import shape_of
from burstd.planner.placement.first_fit import SITE_START_GRACE_S
from burstd.planner.staging.input_deadlines import STAGE_IN_REASONS, boot_durations, data_of_job
from burstd.planner.staging.transfer_schedule import boot_estimate

DEFAULT_RUN_S = 3600.0
"""How long a job is taken to run of which nothing at all is known."""
NEVER = float("inf")
_ON_NODES = frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.CONFIGURING})
_UPLOADING = frozenset({StageState.WAITING, StageState.UPLOADING})
_Key = tuple[object, ...]


def job_outlooks(snapshot: Snapshot) -> Outlooks:
    """Of every pending job that waits for nodes. Empty where Slurm could not be read."""
    return _LazyOutlooks(snapshot)


@dataclass(slots=True)
class _Entry:
    """A pending job and what it takes."""

    job: Job
    tasks: int
    """Those still to be put into the queue."""
    node_type_fits: tuple[tuple[SiteNodeType, NodeTypeFit], ...]
    run_s: float
    run_basis: str
    runs: tuple[float, ...]
    """How long it may run, with the same chance each."""
    limit_s: float
    boot_s: float
    staging_s: float


class _LazyOutlooks(Outlooks):
    """In the order of the queue, each worked out with those before it when it is first asked for, by any thread."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._found: dict[str, Outlook] = {}
        self._lock = Lock()

    def __getitem__(self, job_id: str) -> Outlook:
        found = self._found.get(job_id)
        if found is not None:
            return found
        if job_id not in self._ids:
            raise KeyError(job_id)
        with self._lock:
            while job_id not in self._found:
                one, outlook = next(self._rest, ("", None))
                if outlook is None:
                    raise RuntimeError("what is expected of the queue could not be worked out before")
                self._found[one] = outlook
            return self._found[job_id]

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._ids

    def __iter__(self) -> Iterator[str]:
        for job_id in self._ids:
            self[job_id]
            yield job_id

    def __len__(self) -> int:
        return len(self._ids)

    def assuming(self, leaves: LeavesForCloud) -> Mapping[str, Outlook]:
        return dict(_forecast(self._snapshot, self._pending, leaves))

    @cached_property
    def _pending(self) -> Sequence[Job]:
        return _pending(self._snapshot, self._snapshot.slurm) if isinstance(self._snapshot.slurm, SlurmView) else ()

    @cached_property
    def _ids(self) -> Mapping[str, None]:
        return dict.fromkeys(job.id for job in self._pending)

    @cached_property
    def _rest(self) -> Iterator[tuple[str, Outlook]]:
        return _forecast(self._snapshot, self._pending, None)


def _forecast(
    snapshot: Snapshot, pending: Sequence[Job], leaves: LeavesForCloud | None
) -> Iterator[tuple[str, Outlook]]:
    if not isinstance(snapshot.slurm, SlurmView) or not pending:
        return
    site = _SiteForecast(snapshot, snapshot.slurm)
    served = _served(snapshot)
    for job in pending:
        yield job.id, _forecast_job(snapshot.now, site, site.entry(job), leaves, served)


def _forecast_job(
    now: float, site: _SiteForecast, entry: _Entry, leaves: LeavesForCloud | None, served: Counter[str]
) -> Outlook:
    """Puts a job, or each task of an array, into the queue; machines on their way serve the first tasks."""
    job = entry.job
    staying: list[Outlook] = []
    while True:
        node_type, fit, start = site.earliest_start(entry)
        outlook = _outlook(now, site, entry, start)
        entry.tasks -= 1
        if served and (job_id := next((w for w in (job.id, job.het_job_id) if served[w] > 0), "")):
            served[job_id] -= 1
        elif leaves is None or not leaves(job.id, outlook):
            staying = [staying[0] if staying else outlook, outlook]
            if node_type is not None and fit is not None:
                node_type.add_pending(fit, entry.limit_s, entry.runs, start)
        if not entry.tasks:
            break
    first, last = staying or (outlook, outlook)
    return first if first is last else replace(first, last_start=last.local_start)


def _outlook(now: float, site: _SiteForecast, entry: _Entry, start: float) -> Outlook:
    """Chooses which of the ways to believe."""
    job, basis = entry.job, "queue"
    waited = max(0.0, now - max(job.submitted, job.eligible))
    staged = entry.staging_s if job.reason in STAGE_IN_REASONS else 0.0
    if start < NEVER:
        # It has room, and has had it for long, and Slurm does not start it: there is something that is not seen here.
        unexplained = start <= now and waited - staged > SITE_START_GRACE_S and not staged
        if job.start > now and (job.start < start or unexplained):
            start, basis = job.start, "slurm"
        elif unexplained:
            start, basis = site.start_by_history(job, waited)
    else:
        basis = "none"
    start = max(start, now + staged)
    return Outlook(start, basis, entry.run_s, entry.run_basis, entry.boot_s, entry.staging_s, start)


class _SiteForecast:
    """The nodes of the site with what runs on them, and what is known of jobs by what they ask for."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView) -> None:
        self._snapshot = snapshot
        self._now = snapshot.now
        self._history = snapshot.history
        self._fits: dict[_Key, tuple[tuple[SiteNodeType, NodeTypeFit], ...]] = {}
        self._runs_for: dict[_Key, tuple[float, str, tuple[float, ...]]] = {}
        self._running: dict[_Key, tuple[SimilarJobs, NodeResources, NodeResources, Job]] = {}
        self._users_matter = False
        """A job that shares its nodes with no other user runs on nodes of the site."""
        self._boot_samples = boot_durations(snapshot)
        self._boot_by_partitions: dict[tuple[str, ...], float] = {}
        self._node_types, type_of = _site_node_types(snapshot, slurm)
        for job in slurm.jobs:
            if job.state in _ON_NODES and job.node_list and job.node_list[0] in type_of:
                self._add_running(job, type_of)
        for node_type in self._node_types:
            node_type.start_forecast(self._now)

    def _add_running(self, job: Job, type_of: Mapping[str, SiteNodeType]) -> None:
        # All but the time for which it has run is the same for many.
        history_key = _history_key(job)
        known = self._running.get(history_key)
        if known is None or known[3].exclusive is not job.exclusive:
            per_node = _per_node(job, type_of[job.node_list[0]])
            known = self._running[history_key] = self._history.similar_jobs(job), per_node, per_node.per_quantile(), job
        like, per_node, per_quantile, _ = known
        elapsed = max(0.0, self._now - job.start) if job.start else 0.0
        runs = like.spread(elapsed)
        if not runs:
            runs, per_quantile = (job.time_limit_s or elapsed + max(elapsed, DEFAULT_RUN_S),), per_node
        now = self._now
        ends = [now + (run_s - elapsed) for run_s in runs]
        if ends[0] < now:  # The first is the earliest.
            ends = [max(now, end) for end in ends]
        for name in job.node_list:
            if name in type_of:
                type_of[name].add_running(job, name, per_node, per_quantile, ends)
                self._users_matter |= job.exclusive_user

    def entry(self, job: Job) -> _Entry:
        """What a pending job takes."""
        shape: _Key = (
            job.partitions, job.nodes, job.nodes_max, job.cpus, job.cpus_per_node, job.memory_mib, job.memory_per_cpu,
            job.memory_whole, job.gres_per_node, job.gres_per_job, job.constraint, job.exclusive, job.exclusive_user,
            job.user if job.exclusive_user or self._users_matter else "",
        )  # fmt: skip
        fits = self._fits.get(shape)
        if fits is None:
            wanted = resource_requirements(job)
            found = (
                (kind, kind.fit(job.partitions, wanted, job.user, exclusive_user=job.exclusive_user))
                for kind in self._node_types
            )
            fits = self._fits[shape] = tuple((kind, fit) for kind, fit in found if fit is not None)
        history_key = _history_key(job)
        run = self._runs_for.get(history_key)
        if run is None:
            run = self._runs_for[history_key] = self._run_estimate(job)
        view = data_of_job(self._snapshot.data, job) if self._snapshot.data else None
        late = view is not None and view.state in _UPLOADING
        staging_s = max(0.0, view.ready_at - self._now) if view is not None and late else 0.0
        boot_s = self._boot_s(job.partitions)
        return _Entry(job, max(1, job.tasks), fits, *run, job.time_limit_s or NEVER, boot_s, staging_s)

    def _run_estimate(self, job: Job) -> tuple[float, str, tuple[float, ...]]:
        like = self._history.similar_jobs(job)
        known = like.run_s()
        if known is not None:
            return known.seconds, f"{known.jobs} {known.basis}", like.spread()
        length, basis = (job.time_limit_s, "time limit") if job.time_limit_s else (DEFAULT_RUN_S, "none")
        return length, basis, (length,)

    def _boot_s(self, partitions: tuple[str, ...]) -> float:
        found = self._boot_by_partitions.get(partitions)
        if found is None:
            serving = [n for n, p in self._snapshot.pools.items() if not set(p.partitions).isdisjoint(partitions)]
            found = boot_estimate([seconds for name in serving for seconds in self._boot_samples.get(name, ())])
            self._boot_by_partitions[partitions] = found
        return found

    @staticmethod
    def earliest_start(entry: _Entry) -> tuple[SiteNodeType | None, NodeTypeFit | None, float]:
        """Where the job starts first, and when; infinite: nowhere."""
        best: tuple[SiteNodeType | None, NodeTypeFit | None, float] = None, None, NEVER
        for node_type, fit in entry.node_type_fits:
            start = node_type.earliest_start(fit, entry.limit_s)
            if start < best[2]:
                best = node_type, fit, start
        return best

    def start_by_history(self, job: Job, waited: float) -> tuple[float, str]:
        """When it would start that has waited for so long, and nothing is seen that keeps it."""
        known = self._history.wait_s(job)
        if known is not None and known.seconds > waited:
            return self._now + known.seconds - waited, "history"
        return self._now + waited, "none"


def _per_node(job: Job, node_type: SiteNodeType) -> NodeResources:
    """What a running job takes of each of its nodes."""
    if job.exclusive:
        return node_type.node_capacity()
    nodes = len(job.node_list)
    cpus = max(1.0, job.cpus / nodes)
    per_gpu = node_type.shape.shards_per_gpu()
    gpus = gpus_of(job.gres_per_node, per_gpu) + gpus_of(job.gres_per_job, per_gpu) / nodes
    return NodeResources(cpus, job.memory_mib * cpus if job.memory_per_cpu else job.memory_mib, float(gpus))


def _history_key(job: Job) -> _Key:
    """Jobs of which this is the same have the same history."""
    return (
        job.user, job.account, job.name, job.nodes, job.cpus, job.memory_mib, job.gres_per_node, job.gres_per_job,
        job.time_limit_s,
    )  # fmt: skip


def _pending(snapshot: Snapshot, slurm: SlurmView) -> list[Job]:
    """Jobs that nodes would start, or that wait for their input, in the order in which Slurm looks at them."""
    counts: dict[str, bool] = {}
    found: list[tuple[int, float, int, Job]] = []
    for index, job in enumerate(slurm.jobs):
        if job.state is not JobState.PENDING or job.dependency:
            continue
        known = counts.get(job.reason)
        if known is None:
            known = counts[job.reason] = pending_reason(job.reason).needs_nodes or job.reason in STAGE_IN_REASONS
        if (known and job.eligible <= snapshot.now) or restarts_after_interruption(job, snapshot):
            found.append((-job.priority, job.submitted, index, job))
    found.sort()  # never by the job: no index comes twice
    return [job for *_, job in found]


def _served(snapshot: Snapshot) -> Counter[str]:
    """How many tasks of each job have a machine on its way."""
    served: Counter[str] = Counter()
    gangs: set[str] = set()
    for claim in snapshot.claims:
        if claim.state not in USABLE or claim.state is ClaimState.IN_SERVICE:
            continue
        if claim.gang:
            gangs.add(claim.gang)
        else:
            served.update(claim.jobs)
    for gang in gangs:
        array, _, task = gang.partition("_")
        served[array if task and next(task_ids(task), "") else gang] += 1
    return served


def _site_node_types(snapshot: Snapshot, slurm: SlurmView) -> tuple[list[SiteNodeType], dict[str, SiteNodeType]]:
    """The nodes of the site that take jobs now or once theirs have ended, by kind, and the kind of each."""
    burst_slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    reserved = {
        name for r in slurm.reservations if r.start <= snapshot.now and (not r.end or snapshot.now < r.end)
        for name in r.nodes
    }  # fmt: skip
    node_types: dict[tuple[object, ...], SiteNodeType] = {}
    type_of: dict[str, SiteNodeType] = {}
    for node in slurm.nodes.values():
        if node.name in burst_slots or node.name in reserved or not _takes_jobs(node):
            continue
        key = node_type_key(node)
        node_type = node_types.get(key)
        if node_type is None:
            node_type = node_types[key] = SiteNodeType(frozenset(node.partitions), shape_of(node))
        node_type.nodes[node.name] = _free(node)
        type_of[node.name] = node_type
    return list(node_types.values()), type_of


def _takes_jobs(node: Node) -> bool:
    return node.up and not node.drained and not node.flags & {"MAINTENANCE", "FAIL", "REBOOT_REQUESTED"}


def _free(node: Node) -> NodeResources:
    if node.shared_gpus:
        gpus = sum(gpu.free / gpu.shards for gpu in node.shared_gpus)
    else:
        gpus = float(gpus_of(node.gres, 0) - gpus_of(node.gres_used, 0))
    return NodeResources(node.cpus - node.cpus_allocated, node.memory_mib - node.memory_allocated_mib, max(0, gpus))
