"""What a job would meet that is not submitted (``burstctl quote``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from burstd.domain.billing.costs import BudgetLine
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.option_change import OptionChange


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Times in burstd's seconds since 1970, before each of which it is with a chance of 10, 50 and 90 %."""

    p10: float
    p50: float
    p90: float

    def plus(self, p10_s: float, p50_s: float, p90_s: float) -> TimeRange:
        """So many seconds later."""
        return TimeRange(self.p10 + p10_s, self.p50 + p50_s, self.p90 + p90_s)


@dataclass(frozen=True, slots=True)
class UsablePartition:
    """A partition that the user may name for the job, and what it gives the job there. None: the same as elsewhere."""

    name: str
    time_limit_s: float | None = None
    memory_mib: int | None = None
    memory_per_cpu: bool | None = None
    memory_whole: bool | None = None
    exclusive: bool | None = None
    exclusive_user: bool | None = None

    @classmethod
    def for_job(cls, name: str, job: Job) -> UsablePartition:
        """``job``: as it would be in this partition."""
        return cls(name, **{given: getattr(job, given) for given in _GIVEN})

    def job_in(self, job: Job) -> Job:
        """The job in this partition."""
        given = {name: value for name in _GIVEN if (value := getattr(self, name)) is not None}
        return replace(job, partitions=(self.name,), **given)


_GIVEN = ("time_limit_s", "memory_mib", "memory_per_cpu", "memory_whole", "exclusive", "exclusive_user")


@dataclass(frozen=True, slots=True)
class QuotedWay:
    """One way to run the job."""

    pool: str
    """Empty: nodes of the site."""
    partitions: tuple[str, ...]
    options: str
    """What sbatch needs besides to go this way: ``-p burst -C a100``; empty: nothing."""
    nodes: int = 0
    names: tuple[str, ...] = ()
    """Nodes that are there, or on their way; empty: new machines, or the site's."""
    offer: Offer | None = None
    start: TimeRange | None = None
    end: TimeRange | None = None
    expected: Decimal | None = None
    """Of an array that of one task, in ``currency``: what the bill would charge; None: nothing."""
    worst: Decimal | None = None
    """If it runs to its time limit, with the machines for it alone; None: it has none."""
    currency: str = ""
    taken: bool = False
    """burstd takes this way by these options, and no other; of the site's nodes: they may start it."""
    reason: str = ""
    """Why it is closed, or why it comes after another; empty: neither."""
    by: str = ""
    """The policy, or the step of the decision, that says so; empty: none."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Of one job, or one component of a het job."""

    now: float
    """When Slurm was read on which it rests, in burstd's time."""
    asks: str
    job: Job
    run_s: float
    """How long it is expected to run."""
    run_basis: str
    """As Outlook's."""
    verdict: str
    """burstd's word on the job as it is, by whom and why."""
    by: str
    summary: str
    ways: tuple[QuotedWay, ...]
    budgets: tuple[BudgetLine, ...]
    changes: tuple[OptionChange, ...] = ()
    """Where no way is open, changes of one option that open one, the smallest first."""
