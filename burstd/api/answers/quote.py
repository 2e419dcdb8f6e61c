"""What jobs would meet that are not submitted: ``burstctl quote``."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, Time
from burstd.api.answers.jobs import OptionChangeView
from burstd.api.answers.plan import BudgetView
from burstd.domain.billing.use import IdleMode


class TimeRangeView(AnswerView):
    """Times before each of which it is with a chance of 10, 50 and 90 %."""

    p10: Time
    p50: Time
    p90: Time


class QuotedWayView(AnswerView):
    """One way to run the job."""

    pool: str
    """Empty: the site's own nodes."""
    partitions: list[str]
    options: str
    """What sbatch needs besides to go this way; empty: nothing."""
    line: str
    """The same as a line of the script: ``#SBATCH -p burst -C a100``."""
    nodes: int
    names: list[str]
    """Nodes that are there, or on their way; empty: new machines, or the site's."""
    offer: str
    market: str
    """``on-demand`` or ``spot``; empty: no machine is started."""
    price_per_hour: Money | None
    """Of one machine."""
    start: TimeRangeView | None
    end: TimeRangeView | None
    expected: Money | None
    """What the bill would charge; None: nothing. Of an array that of one task, as all other figures."""
    worst: Money | None
    """The most, if it runs to its time limit with machines for it alone; None: it has none."""
    taken: bool
    """burstd goes this way by these options; False: it is closed, or comes after another, see ``reason``."""
    reason: str
    by: str
    """The policy that says so; empty: none."""


class QuoteView(AnswerView):
    """Of one job, or one component of a het job."""

    asks: str
    tasks: int
    """Of its array."""
    run_s: float
    """How long it is expected to run."""
    run_basis: str
    """Which runs say so, ``time limit``, or ``none``: an hour is assumed."""
    verdict: str
    """burstd's word on the job as it is."""
    summary: str
    ways: list[QuotedWayView]
    changes: list[OptionChangeView]
    """Where no way is open, changes of one option that open one, the smallest first; ``command`` is empty."""
    budgets: list[BudgetView]
    """Of its account and of its user."""
    unseen_account: str
    """Its account, where the caller has no job in it: the job is quoted as one of no account. Empty: looked at."""


class QuotesView(AnswerView):
    """``burstctl quote``: of a het job one quote a component. ``now`` is when Slurm was read on which they rest."""

    now: Time
    quotes: list[QuoteView]
    idle: IdleMode = IdleMode.APART
    """Who is charged for idle time of machines, which is in no cost here."""
    slurm: str = ""
    """What ``sbatch --test-only`` said, which burstctl adds; empty: nothing of use."""
    refused: bool = False
    """slurmctld would not take the job; also of burstctl."""
    waits_for: list[str] = []
    """Options for which the job may wait besides (``--begin=...``), and its data; also of burstctl."""
