"""The plan of the next loop, and the bill."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, OptionalTime, Time


class StepView(AnswerView):
    """One step that the next loop would take."""

    action: str
    text: str
    claims: list[str] = []
    nodes: list[str] = []
    jobs: list[str] = []


class RejectedOfferView(AnswerView):
    """An offer that a policy took out of a want, and why; an empty ``reason``: it did not say."""

    offer: str
    by: str
    reason: str


class PolicyDecisionView(AnswerView):
    """What a policy (or a pin, or a hold) decided, and about what: ``job:104``, ``pool:gpu``, ``claim:...``."""

    by: str
    verdict: str
    about: list[str]
    reason: str


class WantView(AnswerView):
    """Machines wanted, and why."""

    pool: str
    nodes: int
    cause: str
    reason: str
    offer: str
    """The first that would be tried."""
    jobs: list[str]
    slots: list[str]
    left_out: list[RejectedOfferView]


class PlanView(AnswerView):
    """``burstctl plan``: what the next loop would do. Nothing of it was done."""

    now: Time
    seen: Time
    paused: str
    failed: list[str]
    """Policies that failed; while there is one, nothing is wanted and nothing let go."""
    steps: list[StepView]
    wants: list[WantView]
    words: list[PolicyDecisionView]
    """What policies, pins and a hold took away, added or kept, and why."""


class BillPartView(AnswerView):
    """What a line owes for one kind of use."""

    kind: str
    """``boot``, ``work``, ``idle``, ``end``, ``failed``, ``storage``, ``volume``; ``shared``: use was not recorded."""
    cause: str
    """Of idle time: ``before_first_job``, ``gap``, ``keep_alive``, ``floor``, ``pin``, ``fragment``, ``drained``."""
    cost: Money
    machine_s: float
    corrects: str = ""
    """The closed month that it puts right: ``2026-10``."""


class BillLineView(AnswerView):
    """What one user (account, job, partition, pool, provider, day, claim) owes.

    An empty ``key``: what nobody is charged for.
    """

    key: str
    cost: Money
    machine_s: float
    claims: int
    others: int = 0
    """So many jobs or claims in one line, which are not among the dearest; ``claims`` is 0 then."""
    volumes: bool = False
    """It is of volumes, not of machines; ``machine_s`` and ``claims`` are theirs."""
    parts: list[BillPartView] = []
    """They add up to it, dearest first."""


class SiteBillLineView(AnswerView):
    """What jobs cost on nodes of the site's own, at the prices of ``[site.cost]``. Keys as of BillLineView.

    By pool they are groups of ``[site.cost]``; by provider and claim there is one line without a key.
    """

    key: str
    cost: Money
    node_s: float
    """Of nodes, by the jobs' shares of them."""
    others: int = 0
    """So many jobs in one line, which are not among the dearest."""


class BudgetView(AnswerView):
    """How a budget stood in the last loop."""

    kind: str
    """``project`` or ``user``; empty: of the whole site."""
    name: str
    period: str
    """``month`` or ``year`` (UTC), or ``total``."""
    limit: Money
    spent: Money
    """On machines that are gone."""
    committed: Money
    """The most that machines which are there, or on their way, may cost."""
    left: Money
    fault: str
    """Why it cannot be reckoned, and nothing is started on it; empty: it can."""


class ConvertedTotalView(AnswerView):
    """The total of all currencies in one, at the rates of burstd.toml: an estimate, no part of the bill."""

    total: Money
    date: str
    """Of the rates, ``2026-11-01``."""
    rates: dict[str, str]
    """By another currency of the bill, what one unit of it is worth in that of ``total``."""


class BillMonthView(AnswerView):
    """Whether the charges of a month stay as they are."""

    month: str
    """``2026-10`` (UTC)."""
    closed: OptionalTime = None
    """Since when; null: they may change."""
    sha256: str = ""
    """Of the file that ``burstctl bill charges`` prints; empty until the month is closed."""
    waits_for: list[str] = []
    """Claims that keep it from being closed: it is not certain when they ended."""


class ClosedMonthView(BillMonthView):
    """A closed month, and what is on record of it now."""

    rule: int
    """Version of the rules by which charges were made."""
    charges: int
    totals: list[Money]
    found_charges: int
    found_sha256: str
    """Another one: the charges were changed, or are kept no longer."""
    site_charges: int
    """On nodes of the site, which are no part of the others. So are the fields that follow."""
    site_totals: list[Money]
    site_sha256: str
    """Of the file that ``burstctl bill charges --site`` prints; empty: the month was closed without it."""
    found_site_charges: int
    found_site_sha256: str


class MonthFileView(AnswerView):
    """A part of the file of a closed month."""

    csv: str


class BillView(AnswerView):
    """``burstctl bill``, of whole days (UTC). Running machines count up to now."""

    now: Time
    since: Time
    until: Time
    group: str
    lines: list[BillLineView]
    total: list[Money]
    """One a currency."""
    converted: ConvertedTotalView | None = None
    """None: all is in the currency of the rates, or there is no rate for some of it."""
    months: list[BillMonthView] = []
    """Those that the bill has days of."""
    site_lines: list[SiteBillLineView] = []
    site_total: list[Money] = []
    """Of ``site_lines``; no part of ``total``, which is what clouds charge."""
    budgets: list[BudgetView] = []
    """Those that the caller may see, whatever the bill's time and group."""


class BillSheetView(AnswerView):
    """A bill as it is handed on: the same charges split in several ways, as of one moment."""

    cluster: str
    user: str
    """Whose bill it is; empty: everybody's."""
    accounts: BillView
    users: BillView
    days: BillView
    jobs: BillView
    """The dearest; the others are one line."""
