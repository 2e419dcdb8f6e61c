"""Projects: a Slurm account with a quota of GPUs that is always its own, and a share of what others leave.

GPUs are counted as fractions: a share of a GPU (``gres/shard``) is its part of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from burstd.domain.slurm.job import Job

QUOTA_PREFIX = "q-"
"""Of the partition and the QOS in which a project's jobs run within its quota: never preempted."""
OVER_QUOTA_PREFIX = "o-"
"""Of those in which they run beyond it: requeued when another project asks for its own."""


class BurstOverQuota(StrEnum):
    """Whether machines are started for what a project asks beyond its quota."""

    NEVER = "never"
    BUDGET = "budget"
    """Where a budget names the project's account."""
    ALWAYS = "always"


LOWEST_TIER = 1
"""PriorityTier of over-quota partitions whose jobs go first, and of a quota partition that preempts nobody."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The nodes of any of these partitions of the site that have all of these features."""

    partitions: frozenset[str]
    features: frozenset[str] = frozenset()

    def has(self, partitions: Iterable[str], features: AbstractSet[str]) -> bool:
        """Whether a node that is in these partitions and has these features is of the group."""
        return self.features <= features and not self.partitions.isdisjoint(partitions)

    def __str__(self) -> str:
        """``gpu``, ``gpu and long with a100``."""
        features = " and ".join(sorted(self.features))
        return " and ".join(sorted(self.partitions)) + (f" with {features}" if features else "")


@dataclass(frozen=True, slots=True)
class Project:
    """What the site has granted to a project. Times in seconds.

    Jobs run in leaves of the tree only: a project that is another's ``parent`` has no ``account``.
    """

    name: str
    account: str = ""
    """Its Slurm account; empty: it only has children."""
    quota: Fraction = Fraction(0)
    """GPUs that are its own whenever it asks."""
    weight: Fraction | None = None
    """Its part of what others leave, in proportion to its siblings'; None: its quota."""
    limit: Fraction | None = None
    """The most GPUs that it may have at a time; None: no limit."""
    priority: int = 0
    """Projects of a higher priority are served before others with what is beyond all quotas."""
    parent: str = ""
    partitions: tuple[str, ...] = ()
    """Partitions of the site whose nodes it shares."""
    features: tuple[str, ...] = ()
    """Of these nodes it shares those that have all of these features; empty: all."""
    interactive_max_s: float | None = None
    """Time limit of its jobs of srun and salloc, which run within the quota only; None: the partition's."""
    min_runtime_s: float = 0.0
    """A job of it that runs beyond the quota is not requeued earlier."""
    reclaim_after_s: float = 0.0
    """For how long it waits for machines that are on their way before jobs of others are requeued for it."""
    burst_over_quota: BurstOverQuota = BurstOverQuota.NEVER

    @property
    def node_group(self) -> NodeGroup:
        """The nodes that it shares with others of the same group."""
        return NodeGroup(frozenset(self.partitions), frozenset(self.features))

    @property
    def quota_partition(self) -> str:
        """The partition, and the QOS, of its jobs within the quota."""
        return QUOTA_PREFIX + self.name

    @property
    def over_quota_partition(self) -> str:
        """The partition, and the QOS, of its jobs beyond the quota."""
        return OVER_QUOTA_PREFIX + self.name


class SetupStep(StrEnum):
    """What is still to be done in Slurm after a change through ``burstctl project``."""

    NONE = ""
    SET_UP = "set up"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class ProjectOverride:
    """What ``burstctl project`` has changed of a project. It lies over [projects.NAME] of burstd.toml."""

    name: str
    values: Mapping[str, object]
    """Keys of [projects.NAME], with values as JSON has them."""
    created: bool
    """Made by ``burstctl project create``: burstd.toml has no such project, and burstd keeps Slurm's side of it."""
    pending: SetupStep
    by: str
    """Who changed it last, as events name him."""
    since: float
    """When, in burstd's seconds since 1970."""


@dataclass(frozen=True, slots=True)
class FairShare:
    """``[fair_share]``: how the division is made."""

    overcommit: bool = False
    """Quotas may add up to more GPUs than there are."""
    usage_half_life_s: float = 604_800.0
    usage_factor: float = 0.0
    """k of weight' = max(0, w + k(w - u)), as in KAI-Scheduler's time-based fair share; 0: usage does not count."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one project has and is to have, in GPUs."""

    demand: Fraction
    """What its running and its eligible pending jobs ask for together."""
    running: Fraction
    """Of it, what runs, within the quota and beyond it."""
    over_quota: Fraction
    """Of ``running``, what runs in the over-quota partition and may be requeued."""
    share: Fraction
    """What it is to have now: never more than ``demand``, never less than the smaller of quota and demand."""

    @property
    def missing(self) -> Fraction:
        """What it is still to get."""
        return max(Fraction(0), self.share - self.running)


@dataclass(frozen=True, slots=True)
class OverQuotaLimits:
    """What slurmctld enforces on a project's over-quota partition now, or is to enforce."""

    gpus: Fraction | None
    """GrpTRES of its QOS; None: it has no limit."""
    tier: int
    """PriorityTier of the partition: jobs of the lowest tier are preempted first."""


@dataclass(frozen=True, slots=True)
class ProjectsView:
    """The projects of a snapshot, and what Slurm enforces of them."""

    projects: Mapping[str, Project] = field(default_factory=dict)
    limits: Mapping[str, OverQuotaLimits] = field(default_factory=dict)
    """By project, as slurmctld shows them; a project without QOS or partition there is not in it."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """By project, what Slurm lacks of it, with the remedy."""
    without_preemption: frozenset[str] = frozenset()
    """Projects, known here or not, whose quota partition preempts nobody now."""
    unwritten: tuple[str, ...] = ()
    """Partitions of projects, known here or not, that slurm.conf lacks."""
    fair_share: FairShare = FairShare()
    usage: Mapping[str, float] = field(default_factory=dict)
    """By project, GPU seconds used, of which half count no more after each half-life."""
    accounting_error: str = ""
    """Why slurmdbd cannot be reached; the limits stay as they are. Empty: it can."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """By project, the shards of a GPU in which slurmctld counts its jobs and limits; left out: it counts whole GPUs."""
    grace_s: Mapping[str, float] = field(default_factory=dict)
    """By project, GraceTime of its over-quota partition, where it is not 0."""

    def grace_of(self, job: Job) -> float:
        """How long a running job is left after it is told that it is requeued, in seconds."""
        return self.grace_s.get(job.partitions[0].removeprefix(OVER_QUOTA_PREFIX), 0.0) if job.partitions else 0.0


def gpus_text(gpus: Fraction) -> str:
    """``1 GPU``, ``4 GPUs``, ``0.5 GPUs``, ``1/3 GPUs``."""
    return f"{gpu_number(gpus)} GPU{'' if gpus == 1 else 's'}"


def gpu_number(gpus: Fraction) -> str:
    """``4``, ``0.5``, ``1/3``: as [projects.NAME] takes it."""
    return str(gpus) if 10_000 % gpus.denominator else f"{Decimal(gpus.numerator) / gpus.denominator:f}"
