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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from burstd.domain.claim import USABLE, ClaimState
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_history import Like, gpus_of
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.outlook import Leaves, Outlook, Outlooks
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StageState
from burstd.planner.demand.demand import task_ids
from burstd.planner.demand.job_requirements import need
from burstd.planner.demand.pending_reasons import meaning
from burstd.planner.demand.requeued_jobs import begins_anew
from burstd.planner.forecast.site_queue import Fit, Kind, Room, kind_key
from burstd.planner.placement.bins import shape_of
from burstd.planner.placement.first_fit import NODE_TRUST_S
from burstd.planner.staging.input_deadlines import STAGING, boots, data_of
from burstd.planner.staging.transfer_schedule import boot_estimate

RUN_S = 3600.0
"""How long a job is taken to run of which nothing at all is known."""
NEVER = float("inf")
_RUNS = frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.CONFIGURING})
_ON_ITS_WAY = frozenset({StageState.WAITING, StageState.SENDING})
_Request = tuple[object, ...]


def outlooks(snapshot: Snapshot) -> Outlooks:
    """Of every pending job that waits for nodes. Empty where Slurm could not be read."""
    return _Outlooks(snapshot)


@dataclass(slots=True)
class _Entry:
    """A pending job and what it takes."""

    job: Job
    tasks: int
    """Those still to be put into the queue."""
    fits: tuple[tuple[Kind, Fit], ...]
    run_s: float
    run_basis: str
    runs: tuple[float, ...]
    """How long it may run, with the same chance each."""
    limit_s: float
    boot_s: float
    staging_s: float


class _Outlooks(Outlooks):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._found: Mapping[str, Outlook] | None = None

    def __getitem__(self, job_id: str) -> Outlook:
        return self._all()[job_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def assuming(self, leaves: Leaves) -> Mapping[str, Outlook]:
        return _look(self._snapshot, leaves)

    def _all(self) -> Mapping[str, Outlook]:
        if self._found is None:
            self._found = _look(self._snapshot, None)
        return self._found


def _look(snapshot: Snapshot, leaves: Leaves | None) -> Mapping[str, Outlook]:
    if not isinstance(snapshot.slurm, SlurmView):
        return {}
    pending = _pending(snapshot, snapshot.slurm)
    if not pending:
        return {}
    site = _Site(snapshot, snapshot.slurm)
    served = _served(snapshot)
    found: dict[str, Outlook] = {}
    for job in pending:
        found[job.id] = _one(snapshot.now, site, site.entry(job), leaves, served)
    return found


def _one(now: float, site: _Site, entry: _Entry, leaves: Leaves | None, served: Counter[str]) -> Outlook:
    """Puts a job, or each task of an array, into the queue; machines on their way serve the first tasks."""
    job = entry.job
    stays: list[Outlook] = []
    while True:
        kind, fit, start = site.start(entry)
        said = _said(now, site, entry, start)
        entry.tasks -= 1
        if served and (word := next((w for w in (job.id, job.het_job_id) if served[w] > 0), "")):
            served[word] -= 1
        elif leaves is None or not leaves(job.id, said):
            stays = [stays[0] if stays else said, said]
            if kind is not None and fit is not None:
                kind.put(fit, entry.limit_s, entry.runs, start)
        if not entry.tasks:
            break
    first, last = stays or (said, said)
    return first if first is last else replace(first, last_start=last.local_start)


def _said(now: float, site: _Site, entry: _Entry, start: float) -> Outlook:
    """Chooses which of the ways to believe."""
    job, basis = entry.job, "queue"
    waited = max(0.0, now - max(job.submitted, job.eligible))
    staged = entry.staging_s if job.reason in STAGING else 0.0
    if start < NEVER:
        # It has room, and has had it for long, and Slurm does not start it: there is something that is not seen here.
        unexplained = start <= now and waited - staged > NODE_TRUST_S and not staged
        if job.start > now and (job.start < start or unexplained):
            start, basis = job.start, "slurm"
        elif unexplained:
            start, basis = site.by_others(job, waited)
    else:
        basis = "none"
    start = max(start, now + staged)
    return Outlook(start, basis, entry.run_s, entry.run_basis, entry.boot_s, entry.staging_s, start)


class _Site:
    """The nodes of the site with what runs on them, and what is known of jobs by what they ask for."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView) -> None:
        self._snapshot = snapshot
        self._now = snapshot.now
        self._history = snapshot.history
        self._fits: dict[_Request, tuple[tuple[Kind, Fit], ...]] = {}
        self._runs_for: dict[_Request, tuple[float, str, tuple[float, ...]]] = {}
        self._running: dict[_Request, tuple[Like, Room, Room, Job]] = {}
        self._boots = boots(snapshot)
        self._boot: dict[tuple[str, ...], float] = {}
        self._kinds, kind_of = _kinds(snapshot, slurm)
        for job in slurm.jobs:
            if job.state in _RUNS and job.node_list and job.node_list[0] in kind_of:
                self._runs(job, kind_of)
        for kind in self._kinds:
            kind.begin(self._now)

    def _runs(self, job: Job, kind_of: Mapping[str, Kind]) -> None:
        # All but the time for which it has run is the same for many.
        whose = _whose(job)
        known = self._running.get(whose)
        if known is None or known[3].exclusive is not job.exclusive:
            each = _each(job, kind_of[job.node_list[0]])
            known = self._running[whose] = self._history.like(job), each, each.part(), job
        like, each, part, _ = known
        elapsed = max(0.0, self._now - job.start) if job.start else 0.0
        runs = like.spread(elapsed)
        if not runs:
            runs, part = (job.time_limit_s or elapsed + max(elapsed, RUN_S),), each
        now = self._now
        ends = [now + (run_s - elapsed) for run_s in runs]
        if ends[0] < now:  # The first is the earliest.
            ends = [max(now, end) for end in ends]
        for name in job.node_list:
            if name in kind_of:
                kind_of[name].runs(name, each, part, ends)

    def entry(self, job: Job) -> _Entry:
        """What a pending job takes."""
        shape: _Request = (
            job.partitions, job.nodes, job.nodes_max, job.cpus, job.cpus_per_node, job.memory_mib, job.memory_per_cpu,
            job.memory_whole, job.gres_per_node, job.gres_per_job, job.constraint, job.exclusive,
        )  # fmt: skip
        fits = self._fits.get(shape)
        if fits is None:
            wanted = need(job)
            found = ((kind, kind.fit(job.partitions, wanted)) for kind in self._kinds)
            fits = self._fits[shape] = tuple((kind, fit) for kind, fit in found if fit is not None)
        whose = _whose(job)
        run = self._runs_for.get(whose)
        if run is None:
            run = self._runs_for[whose] = self._run(job)
        view = data_of(self._snapshot.data, job) if self._snapshot.data else None
        late = view is not None and view.state in _ON_ITS_WAY
        staging_s = max(0.0, view.ready_at - self._now) if view is not None and late else 0.0
        boot_s = self._boot_s(job.partitions)
        return _Entry(job, max(1, job.tasks), fits, *run, job.time_limit_s or NEVER, boot_s, staging_s)

    def _run(self, job: Job) -> tuple[float, str, tuple[float, ...]]:
        like = self._history.like(job)
        known = like.run_s()
        if known is not None:
            return known.seconds, f"{known.jobs} {known.basis}", like.spread()
        length, basis = (job.time_limit_s, "time limit") if job.time_limit_s else (RUN_S, "none")
        return length, basis, (length,)

    def _boot_s(self, partitions: tuple[str, ...]) -> float:
        found = self._boot.get(partitions)
        if found is None:
            serving = [n for n, p in self._snapshot.pools.items() if not set(p.partitions).isdisjoint(partitions)]
            found = boot_estimate([seconds for name in serving for seconds in self._boots.get(name, ())])
            self._boot[partitions] = found
        return found

    @staticmethod
    def start(entry: _Entry) -> tuple[Kind | None, Fit | None, float]:
        """Where the job starts first, and when; infinite: nowhere."""
        best: tuple[Kind | None, Fit | None, float] = None, None, NEVER
        for kind, fit in entry.fits:
            start = kind.earliest(fit, entry.limit_s)
            if start < best[2]:
                best = kind, fit, start
        return best

    def by_others(self, job: Job, waited: float) -> tuple[float, str]:
        """When it would start that has waited for so long, and nothing is seen that keeps it."""
        known = self._history.wait_s(job)
        if known is not None and known.seconds > waited:
            return self._now + known.seconds - waited, "history"
        return self._now + waited, "none"


def _each(job: Job, kind: Kind) -> Room:
    """What a running job takes of each of its nodes."""
    if job.exclusive:
        return kind.whole()
    nodes = len(job.node_list)
    cpus = max(1.0, job.cpus / nodes)
    return Room(cpus, job.memory_mib * cpus if job.memory_per_cpu else job.memory_mib, gpus_of(job) / nodes)


def _whose(job: Job) -> _Request:
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
            known = counts[job.reason] = meaning(job.reason).counts or job.reason in STAGING
        if (known and job.eligible <= snapshot.now) or begins_anew(job, snapshot):
            found.append((-job.priority, job.submitted, index, job))
    found.sort(key=lambda p: p[:3])
    return [job for *_, job in found]


def _served(snapshot: Snapshot) -> Counter[str]:
    """How many tasks of each job have a machine on its way."""
    served: Counter[str] = Counter()
    gangs: set[str] = set()
    for claim in snapshot.claims:
        if claim.state not in USABLE or claim.state is ClaimState.OPEN:
            continue
        if claim.gang:
            gangs.add(claim.gang)
        else:
            served.update(claim.jobs)
    for gang in gangs:
        array, _, task = gang.partition("_")
        served[array if task and next(task_ids(task), "") else gang] += 1
    return served


def _kinds(snapshot: Snapshot, slurm: SlurmView) -> tuple[list[Kind], dict[str, Kind]]:
    """The nodes of the site that take jobs now or once theirs have ended, by kind, and the kind of each."""
    ours = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    kept = {
        name for r in slurm.reservations if r.start <= snapshot.now and (not r.end or snapshot.now < r.end)
        for name in r.nodes
    }  # fmt: skip
    kinds: dict[tuple[object, ...], Kind] = {}
    kind_of: dict[str, Kind] = {}
    for node in slurm.nodes.values():
        if node.name in ours or node.name in kept or not _serves(node):
            continue
        key = kind_key(node)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = Kind(frozenset(node.partitions), shape_of(node))
        kind.nodes[node.name] = _free(node)
        kind_of[node.name] = kind
    return list(kinds.values()), kind_of


def _serves(node: Node) -> bool:
    return node.up and not node.drained and not node.flags & {"MAINTENANCE", "FAIL", "REBOOT_REQUESTED"}


def _free(node: Node) -> Room:
    gpus = sum(g.count for g in node.gres if g.name == "gpu") - sum(g.count for g in node.gres_used if g.name == "gpu")
    return Room(node.cpus - node.cpus_allocated, node.memory_mib - node.memory_allocated_mib, max(0, gpus))
