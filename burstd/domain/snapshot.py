"""Everything that a decision is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from burstd.domain.billing.costs import Spent
from burstd.domain.billing.rates import Rates
from burstd.domain.claim import USABLE, Claim
from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.idle_gpus import IdleWarning, RunKey
from burstd.domain.job_use import JobUse
from burstd.domain.launch_failure import LaunchFailure
from burstd.domain.machine_outcomes import PlaceRecord
from burstd.domain.missing_home import MissingHome
from burstd.domain.mounts import MountsView
from burstd.domain.plugins.provider import Idempotency, Notice
from burstd.domain.project import ProjectsView
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.job_history import JobHistory
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.staging import StagingView
from burstd.domain.storage_node import StorageNodeView
from burstd.domain.volume import VolumeNeed

NOT_READ_YET = "not read yet"
"""The error of what was not asked for since burstd's start."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Could not be read. Never the same as empty: nothing is destroyed on it."""

    error: str
    since: float
    """When it was last known."""


@dataclass(frozen=True, slots=True)
class CloudView:
    """What one provider showed. ``listed`` is when the listing of instances began, in burstd's time."""

    offers: tuple[Offer, ...] | Unavailable
    instances: tuple[Instance, ...] | Unavailable
    leftovers: tuple[Leftover, ...] | Unavailable = ()
    instances_listed: float = 0.0
    idempotency: Idempotency = Idempotency.TOKEN
    settle_s: float = 0.0
    leftovers_listed: float = 0.0
    """When the listing of leftovers began."""
    machines_outlive_nodes: bool = True
    """A machine may be another node when its node is over: it does not end by itself as a pod does."""


@dataclass(frozen=True, slots=True)
class SlurmView:
    """What Slurm showed, read at ``read`` in burstd's time."""

    jobs: tuple[Job, ...]
    nodes: Mapping[str, Node]
    reservations: tuple[Reservation, ...]
    read_at: float = 0.0
    version: str = ""
    """``22.05.8``."""
    ended: tuple[Job, ...] = ()
    """Jobs that are over, as long as slurmctld knows them."""
    licenses: Mapping[str, int] = field(default_factory=dict)
    """By name, how many are free; read while a pending job wants some."""

    def ended_runs(self) -> list[Job]:
        """Those of ``ended`` that ran."""
        return [job for job in self.ended if job.ran]


@dataclass(frozen=True, slots=True)
class Pin:
    """``burstctl scale``: an administrator's number of nodes for a pool, until ``until`` (None: until taken back)."""

    pool: str
    nodes: int
    kind: str
    """``exact``, ``floor`` or ``ceiling``."""
    until: float | None
    by: str
    created: float


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Keeps an offer (or all of a provider, zone or type) from being tried again before ``until``."""

    key: str
    """``provider/region/zone/type/market`` as in Offer.id, with ``*`` for any; ``/pool`` behind it: for that pool only.

    The cause stands in ``cause``.
    """
    cause: str
    failures: int
    """0: nothing failed, launches are held back by burstd for the reason in ``error``."""
    until: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class RecentLaunch:
    """One launch of the recent past (one hour), for limits of rate."""

    at: float
    pool: str
    provider: str
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndedClaim:
    """A claim that came to its end in the recent past (one hour), for policies against flapping."""

    at: float
    claim: Claim


@dataclass(frozen=True, slots=True)
class Sighting:
    """How often in a row, and since when, something was seen in complete listings."""

    times: int
    first: float


@dataclass(frozen=True, slots=True)
class KnownLimit:
    """Since when a pending job is known to wait for a limit that is not its project's, and how many jobs ran then."""

    since: float
    user_runs: int
    """Of its user."""
    account_runs: int
    """Of its account."""


@dataclass(frozen=True, slots=True)
class RequeueWarning:
    """A running job was told, by burstd or by slurmctld, that it is requeued soon, and for what."""

    queue_ids: tuple[str, ...]
    """Its rows in the queue, several for a het job."""
    until: float
    """When it is requeued at the latest, in burstd's time."""
    reason: str
    cause: str
    """Of the events of its requeue."""
    takes_checkpoint: bool
    """It goes on until its last checkpoint is taken, and is requeued then. Else its steps got SIGTERM."""


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """What this process knows beyond the store; all of it may be lost and is then found out again."""

    process_start: float = 0.0
    """When this process began, or went on after a sleep: until then nobody looked at machines, or tried them.

    Calls of a process before it may have gone out until then.
    """
    busy: frozenset[str] = frozenset()
    """Claims with a call to a cloud or a machine under way, or to be left alone until a retry is due."""
    termination_accepted: frozenset[str] = frozenset()
    """Claims for whose instance the cloud has been asked to end it, and has not said no."""
    validated: frozenset[str] = frozenset()
    """Claims in VALIDATING whose machine passed."""
    slurmd_started: Mapping[str, float] = field(default_factory=dict)
    """Claims in VALIDATING whose slurmd was started, and when."""
    fabric_tested: frozenset[str] = frozenset()
    """Claims in READY whose machine reaches another of its job as fast as the pool wants."""
    missing_sightings: Mapping[str, Sighting] = field(default_factory=dict)
    """Claims whose instance was missing, or listed as ended, in complete listings begun after it should show."""
    unreachable_at: Mapping[str, float] = field(default_factory=dict)
    """Claims whose machine was reached for because lists lack it, and when it last did not answer."""
    orphan_sightings: Mapping[str, Sighting] = field(default_factory=dict)
    """Instances and leftovers (``provider/id``) with our tag and without a live claim."""
    power_down_sent_at: Mapping[str, float] = field(default_factory=dict)
    """When Slurm was last told to power a slot down, for those without a machine."""
    bound_since: Mapping[str, float] = field(default_factory=dict)
    """When a job was bound to its nodes."""
    unbindable: frozenset[str] = frozenset()
    """Jobs that Slurm would not take into a reservation of their own: their nodes are opened to all."""
    stuck_on_burst_since: Mapping[str, float] = field(default_factory=dict)
    """Since when pending jobs (or gangs) have had room on open burst nodes; for an hour where that was in vain."""
    stuck_since: Mapping[str, float] = field(default_factory=dict)
    """Since when pending jobs have had room on nodes open to them (planner/demand/stuck_jobs.py)."""
    limited_jobs: Mapping[str, KnownLimit] = field(default_factory=dict)
    """Pending jobs of projects that another limit than their project's keeps back (planner/demand/limited_jobs.py)."""
    excluded_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By job, or array, the nodes that burstd has had Slurm keep it off (JobUpdate), on record."""
    notices: Mapping[str, Notice] = field(default_factory=dict)
    """By claim, what the queues of clouds have announced of its machine and was not settled so far."""
    requeued: frozenset[tuple[str, int]] = frozenset()
    """Runs (a job's id for scontrol, its restarts before) whose requeue Slurm has taken, or refused a moment ago."""
    requeue_refused: frozenset[tuple[str, int]] = frozenset()
    """Runs whose requeue Slurm has refused so far."""
    warned: Mapping[tuple[str, int], RequeueWarning] = field(default_factory=dict)
    """Runs that were told to go, and are not requeued yet; these are on record."""
    idle_warnings: Mapping[RunKey, IdleWarning] = field(default_factory=dict)
    """Runs that were warned of idle GPUs; these are on record."""
    launch_failures: Mapping[str, LaunchFailure] = field(default_factory=dict)
    """By job, the last run that did not start on its node, of jobs of the queue and some that have ended."""
    missing_homes: tuple[MissingHome, ...] = ()
    """Home directories that the latest machines did not have, of users for whose jobs they were made."""
    stages_data: bool = False
    """Staging is on, so a job of which nothing is in ``data`` so far may still have data."""
    held_for_homes: Mapping[str, str] = field(default_factory=dict)
    """By job, why burstd has held it for want of a home directory; on record."""
    last_figures_awaited: frozenset[str] = frozenset()
    """Claims whose machine is asked for the last figures of a job that has ended; for a short time only."""
    boot_durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """How long the latest nodes of each pool took from their claim until they were ready, in seconds."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is seen at one moment. Immutable; a policy may read all of it."""

    now: float
    cluster: str
    pools: Mapping[str, Pool]
    slurm: SlurmView | Unavailable
    clouds: Mapping[str, CloudView]
    claims: tuple[Claim, ...]
    """All that are not GONE, but those of ``storage``."""
    pins: tuple[Pin, ...] = ()
    drained_slots: frozenset[str] = frozenset()
    """Slots that an administrator drained through burstctl."""
    drained_by: Mapping[str, str] = field(default_factory=dict)
    """By such a slot, who did it."""
    breakers: tuple[CircuitBreaker, ...] = ()
    places: Mapping[str, PlaceRecord] = field(default_factory=dict)
    """By ``Offer.place``, what places are known for where machines were bad."""
    recent_launches: tuple[RecentLaunch, ...] = ()
    paused: str = ""
    """Why nothing new is booted and nothing wanted is closed (``burstctl hold``, a broken policy); empty: not so."""
    bound: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Jobs that have a reservation of their own (see Scheduler.bind) and its nodes."""
    runtime_state: RuntimeState = field(default_factory=RuntimeState)
    data: Mapping[str, StagingView] = field(default_factory=dict)
    """How the data of jobs stands, by their ids in the queue; jobs without any are not in it."""
    interruptions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """For jobs of the queue that were started before: which runs (``Job.restarts`` then) ended with their machine."""
    interruptions_not_spot: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Of these runs, those that burstd requeued for another reason than that their machine was taken back."""
    storage_claims: tuple[Claim, ...] = ()
    """Storage nodes that are not GONE: they have no slot in Slurm, and no policy counts them."""
    storage_nodes: tuple[StorageNodeView, ...] = ()
    """What each store whose node burstd launches wants."""
    images: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By provider and word, the versions of the images that pools name, newest first; empty: they are not known yet.

    Not of clouds whose images have no versions.
    """

    spent: tuple[Spent, ...] = ()
    """What machines that are gone have cost, by month; those that are not gone are in the lists of claims."""
    quarantined_claims: tuple[Claim, ...] = ()
    """Claims with which nothing is done, because burstd fails on their node or cloud; they count and cost."""
    ended_claims: tuple[EndedClaim, ...] = ()
    """Claims that ended within the last hour."""
    unrecorded_instances: frozenset[tuple[str, str]] = frozenset()
    """Provider and id of instances that burstd has launched and that were never on this record."""
    foreign_tags: frozenset[str] = frozenset()
    """Ids of claims, or batches, in tags with our cluster's name that burstd never gave; empty for none in the tag."""
    record_doubt: str = ""
    """Why the record may be older than the world: machines are adopted, nothing else is done; empty: it is not."""
    history: JobHistory = field(default_factory=JobHistory)
    output_retention_cost: Decimal | None = None
    """What a node may cost that is kept for output alone, in its offer's currency; None: the time alone counts."""
    rates: Rates = field(default_factory=Rates)
    """By which prices in several currencies are compared."""
    mounts: MountsView = field(default_factory=MountsView)
    """How the site's trees on nodes stand."""
    volume_needs: Mapping[str, VolumeNeed] = field(default_factory=dict)
    """By the id in the queue, the jobs that are to start with a volume, and what their machine must be."""
    claims_with_volume: frozenset[str] = frozenset()
    """Ids of claims whose machine has, or may have, a user's persistent disk."""
    projects: ProjectsView = field(default_factory=ProjectsView)
    job_use: Mapping[str, JobUse] = field(default_factory=dict)
    """By the id in the queue, what running jobs have used so far, without series; of others nothing is known."""
    outlook: Mapping[str, Outlook] = field(default_factory=dict, compare=False)
    """By job id, what is expected of pending jobs; worked out when it is asked for."""

    def still_billed(self) -> frozenset[str]:
        """Ids of claims whose end was told or taken, and whose machine its cloud lists as running: they cost."""
        ended = [
            c for c in (*self.claims, *self.storage_claims, *self.quarantined_claims) if c.billed_until is not None
        ]
        names = {claim.offer.provider for claim in ended}
        running = {
            (name, i.id)
            for name, cloud in self.clouds.items()
            if name in names and not isinstance(cloud.instances, Unavailable)
            for i in cloud.instances
            if i.state is InstanceState.RUNNING
        }
        return frozenset(claim.id for claim in ended if (claim.offer.provider, claim.instance_id) in running)

    def leaves_at(self, job: Job) -> float:
        """When the grace of a running job is over that burstd or slurmctld takes back for others; 0: it stays."""
        if warning := self.runtime_state.warned.get((job.het_job_id or job.id, job.restarts)):
            return warning.until
        # slurmctld brings the end forward, and shows none of a job without a time limit.
        return job.preempted_at and (job.end or job.preempted_at + self.projects.grace_of(job))

    def leaving(self) -> dict[str, float]:
        """By the id in the queue, running jobs that are taken back, see ``leaves_at``."""
        jobs = () if isinstance(self.slurm, Unavailable) else self.slurm.jobs
        return {job.id: at for job in jobs if (at := self.leaves_at(job))}

    def pool_of(self, slot: str) -> Pool | None:
        """The pool that has this slot."""
        return next((p for p in self.pools.values() if slot in p.slots), None)

    def node_drained(self, claim: Claim) -> bool:
        """Whether its node is drained, or held through burstctl: nobody can use it."""
        node = None if isinstance(self.slurm, Unavailable) else self.slurm.nodes.get(claim.slot)
        return claim.slot in self.drained_slots or (node is not None and node.drained)

    def accepts_any_job(self, claim: Claim) -> bool:
        """Whether its node is, or will be, one that any job may use: not shut, nor for its own jobs alone."""
        return claim.state in USABLE and not claim.dedicated and not self.node_drained(claim)

    def idle_since(self, claim: Claim) -> float:
        """When the last job on its node ended; where it had none, when it was opened or became ready."""
        began = claim.in_service_from if claim.in_service_from is not None else claim.since
        node = None if isinstance(self.slurm, Unavailable) else self.slurm.nodes.get(claim.slot)
        return max(began, node.last_busy) if node is not None else began

    def free_slots(self, pool: Pool) -> tuple[str, ...]:
        """Slots on which a new claim may be made, in the pool's order; none where Slurm could not be read.

        Free is a slot without a claim, powered down in Slurm, not drained or down there and not held through burstctl.
        """
        if isinstance(self.slurm, Unavailable):
            return ()
        nodes = self.slurm.nodes
        taken = {claim.slot for claim in self.claims}
        return tuple(
            slot
            for slot in pool.slots
            if slot not in taken
            and slot not in self.drained_slots
            and (node := nodes.get(slot)) is not None
            and node.powered_down
            and node.state != "DOWN"
            and not node.drained
            and not node.busy
        )
