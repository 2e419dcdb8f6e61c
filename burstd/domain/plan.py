"""The steps of one loop. Each is checked again, written down, then done, by the executor."""

from __future__ import annotations

from dataclasses import dataclass, field

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.instance import Instance, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.idle_gpus import IdleJob, IdleRun, RunKey
from burstd.domain.plugins.policy import Remark, Target
from burstd.domain.project import OverQuotaLimits
from burstd.domain.slurm.job_update import JobUpdate


@dataclass(frozen=True, slots=True)
class MakeClaim:
    """Write down a new claim and launch it."""

    claim: Claim
    """As it is to stand on record; its id and its times are given when it is written down."""
    others: tuple[Offer, ...] = ()
    """Offers of the same provider and market that will do as well, best first."""


@dataclass(frozen=True, slots=True)
class LaunchMachine:
    """Ask the cloud (again) for a claim's machine, with the request that is on record."""

    claim_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeClaimState:
    """Bring a claim into another state because of what was seen; no outside call."""

    claim_id: str
    old: ClaimState
    new: ClaimState
    reason: str
    error: str = ""
    instance_id: str = ""
    address: str = ""
    offer: Offer | None = None
    """The offer that its machine turns out to be of; None: the claim's."""


@dataclass(frozen=True, slots=True)
class RecordAddress:
    """Write down the address that the cloud has given to a claim's machine; the state stays."""

    claim_id: str
    address: str
    instance_id: str
    offer: Offer | None = None
    """The offer that its machine turns out to be of; None: the claim's."""


@dataclass(frozen=True, slots=True)
class ProbeMachine:
    """Find out whether a machine that lists lack answers all the same."""

    claim_id: str


@dataclass(frozen=True, slots=True)
class ValidateNode:
    """Reach the machine, check it, hand over secrets."""

    claim_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegisterNodes:
    """Tell Slurm the addresses of validated machines; their slurmd may then register."""

    addresses: tuple[tuple[str, str], ...]
    """Pairs of node name and address."""


@dataclass(frozen=True, slots=True)
class StartSlurmd:
    """Start slurmd on a validated machine; Slurm has its address."""

    claim_id: str


@dataclass(frozen=True, slots=True)
class TestFabric:
    """Measure the network between two ready machines."""

    __test__ = False
    first: str
    """A claim's id."""
    second: str


@dataclass(frozen=True, slots=True)
class SetGate:
    """The gate shall hold exactly these slots; claims in ``into_service`` and ``into_drain`` change state with it.

    ``claim_reasons`` has a reason for each of them.
    """

    nodes: frozenset[str]
    reason: str
    into_service: tuple[str, ...] = ()
    into_drain: tuple[str, ...] = ()
    claim_reasons: tuple[str, ...] = ()
    """For each of ``into_service``, then for each of ``into_drain``."""


@dataclass(frozen=True, slots=True)
class BindJob:
    """Let one job start on these claims' nodes while the gate holds them."""

    job_id: str
    user: str
    claims: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class UnbindJob:
    """End what BindJob made."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class PowerDown:
    """Tell Slurm that nodes are going, or put slots right that Slurm believes in and no machine stands behind.

    Its claims go from DRAINING to TERMINATING once Slurm has been told.
    """

    nodes: tuple[str, ...]
    force: bool
    reason: str
    terminating: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandOver:
    """The machine of a claim becomes another node: its node is powered down in Slurm, its claim goes on as ``claim``.

    What it has cost so far stays with the node that it was, as a claim of its own that is GONE.
    """

    claim_id: str
    claim: Claim
    """As it is to go on: pool, slot, cause, jobs and their owners, reserves, reason."""
    is_done: bool = False
    """Slurm has it as that node already: the record is older."""


@dataclass(frozen=True, slots=True)
class SetNodesDown:
    """Tell Slurm that machines died under their nodes."""

    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DrainNodes:
    """Tell Slurm that machines are taken back: no new job on their nodes. ``claims`` in the order of ``nodes``."""

    claims: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class UndrainNodes:
    """Take our own drain off slots without a machine."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job. ``rows``: ids of its rows in the queue, several for a het job; ``number``: restarts before."""

    job_id: str
    """As scontrol takes it."""
    queue_ids: tuple[str, ...]
    restarts: int
    reason: str
    cause: str = "spot"
    """Of the events that tell of it."""
    ended: bool = False
    """It was told to go, and has ended by itself."""


@dataclass(frozen=True, slots=True)
class RequeueJobs:
    """Have running jobs begin anew elsewhere. One that may not be requeued runs on."""

    runs: tuple[JobRun, ...]


@dataclass(frozen=True, slots=True)
class WarnJobs:
    """Tell running jobs that they are requeued at ``until``, in burstd's time, and remember it."""

    runs: tuple[JobRun, ...]
    until: float
    takes_checkpoint: bool
    """Their last checkpoint is taken, and they are requeued then. Else their steps get SIGCONT and SIGTERM."""
    by_slurm: bool = False
    """slurmctld preempts them, and has told them so."""


@dataclass(frozen=True, slots=True)
class HoldJob:
    """Keep a pending job from starting until it is released."""

    job_id: str
    """As scontrol takes it."""
    queue_id: str
    reason: str
    cause: str
    """Who asks for it, in the job's event: ``mounts``, ``homes``."""


@dataclass(frozen=True, slots=True)
class UpdateJobs:
    """Change what pending jobs ask Slurm for."""

    jobs: tuple[str, ...]
    """As scontrol takes them."""
    queue_ids: tuple[str, ...]
    """The same jobs, as the queue has them."""
    update: JobUpdate
    reason: str


@dataclass(frozen=True, slots=True)
class RecordInterruptions:
    """Write down that runs end because their machine was taken away."""

    runs: tuple[JobRun, ...]


@dataclass(frozen=True, slots=True)
class LimitJobTime:
    """Lower the time limit of a job that runs, to ``limit_s`` seconds from its start."""

    job_id: str
    limit_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class RecordIdleJobs:
    """Write down which running jobs are warned of idle GPUs."""

    warned: tuple[tuple[IdleJob, str], ...]
    """Those that are new, each with the warning."""
    over: tuple[RunKey, ...]
    """Runs that use their GPUs again, have ended, or are not known well enough any more."""


@dataclass(frozen=True, slots=True)
class ActOnIdleJobs:
    """Cancel or requeue running jobs that do not use their GPUs, or shorten their time limits."""

    runs: tuple[IdleRun, ...]


@dataclass(frozen=True, slots=True)
class SetProjectLimits:
    """Have slurmctld enforce these limits on the over-quota partitions of projects."""

    limits: tuple[tuple[str, OverQuotaLimits], ...]
    """By project, those only that differ from what slurmctld enforces."""
    reason: str


@dataclass(frozen=True, slots=True)
class SetQuotaPreemption:
    """Have the quota partitions of these projects preempt what runs beyond quotas, or nobody for the time being."""

    preempt: tuple[str, ...]
    wait: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StartJobsNow:
    """Spare requeued jobs the two minutes for which Slurm keeps them."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TerminateMachines:
    """End the machines of claims that are TERMINATING."""

    claims: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveOrphans:
    """End instances and leftovers that bear our tag and have no claim."""

    provider: str
    instances: tuple[Instance, ...]
    leftovers: tuple[Leftover, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class AdoptMachine:
    """Write down a claim for a machine that bears our tag and that the record never knew."""

    claim: Claim
    """As it is to stand on record; its id is empty where the machine's tags name none."""
    replaces: str = ""
    """The claim on record for the slot, whose machine is not listed any more; empty: there is none."""


Action = (
    AdoptMachine
    | MakeClaim
    | LaunchMachine
    | ChangeClaimState
    | RecordAddress
    | ValidateNode
    | ProbeMachine
    | RegisterNodes
    | StartSlurmd
    | TestFabric
    | SetGate
    | BindJob
    | UnbindJob
    | PowerDown
    | HandOver
    | SetNodesDown
    | DrainNodes
    | UndrainNodes
    | RequeueJobs
    | WarnJobs
    | RecordInterruptions
    | LimitJobTime
    | HoldJob
    | RecordIdleJobs
    | ActOnIdleJobs
    | UpdateJobs
    | SetProjectLimits
    | SetQuotaPreemption
    | StartJobsNow
    | TerminateMachines
    | RemoveOrphans
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in the order in which they are to be done, the target behind them, and every remark."""

    actions: tuple[Action, ...] = ()
    target: Target = field(default_factory=Target)
    remarks: tuple[Remark, ...] = ()
    idle_gpus: tuple[IdleJob, ...] = ()
    """Running jobs that are warned of idle GPUs."""
