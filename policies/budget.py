"""Hard limits on money: in all, for each project (Slurm account) and user, by calendar month (UTC), year or for ever.

Use it wherever somebody pays. Before a machine is started, the most that it may cost is reserved: price times the
longest time limit of its jobs and ``overhead_s``, and what their output costs to send home. It is started only where
that fits into what is left; when it is gone, what it really cost takes the place of what was reserved. A machine under
a budget is its own jobs' alone, and ends with them: no other job can lengthen the bill. Jobs that run are never ended;
a time limit that is lengthened afterwards is lowered to what is reserved.

``"*"`` names every project or user that has no budget of its own (each has as much). Amounts are in ``currency``.

    [policies.budget]
    limit = 5000
    [policies.budget.projects.atlas]
    limit = 800
    [policies.budget.users."*"]
    limit = 100
    period = "year"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from math import isfinite
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.billing.costs import Reserve, worst_case
from burstd.domain.claim import ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import (
    NodeRelease,
    PolicyPlugin,
    Remark,
    Target,
    Want,
    gang_units,
    without_refused_offers,
)
from burstd.domain.slurm.job import Job, users_and_accounts
from burstd.domain.snapshot import SlurmView, Snapshot
from policies.budget_balance import WHOLE_SITE, BudgetBalance, BudgetLimit, BudgetLimits, Payer, Period


class BudgetSettings(BaseModel):
    """``[policies.budget]``; ``limit`` and ``period`` here hold for all machines together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Decimal | None = Field(default=None, ge=0)
    period: Period = "month"
    currency: str = "EUR"
    """Of all amounts here."""
    rates: dict[str, Annotated[Decimal, Field(gt=0)]] = {}
    """What one unit of another currency is worth in ``currency``. Offers in one that is not named are not taken."""
    projects: dict[str, BudgetLimit] = {}
    users: dict[str, BudgetLimit] = {}
    overhead_s: float = Field(default=900, ge=240)
    """How long a machine may be paid for beside its jobs' time limit: boot, validation, start, end. The default is
    ``boot_timeout_s`` and ``validation_timeout_s`` with their defaults, and two minutes for the end; add slurm.conf's
    OverTimeLimit. A machine on which its jobs cannot start in time any more is given back."""
    unlimited_s: float | None = Field(default=None, gt=0)
    """Taken for the time limit of a job, or the life of a spare node, that has none; without it such are refused."""
    egress_gib: Decimal = Field(default=Decimal(0), ge=0)
    """How much output a job is taken to have at most, in GiB; what it costs to send home says the offer."""

    def limits(self) -> BudgetLimits:
        """All budgets."""
        total = {} if self.limit is None else {"": BudgetLimit(limit=self.limit, period=self.period)}
        by_kind = {"": total, "project": self.projects, "user": self.users}
        return BudgetLimits(by_kind, self.currency, self.rates)


_GB_OF_GIB = Decimal(2**30) / 10**9


@dataclass(frozen=True, slots=True)
class _Shortage:
    """Why something is not started."""

    reason: str
    jobs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Verdict and reason of those that are to wait, so that the others may start; empty: all, for ``reason``."""
    impossible: bool = False


_Costs = tuple[Mapping[str, Reserve], Mapping[str, Decimal]]


@dataclass(frozen=True, slots=True)
class _PricedWant:
    """A want, and what one of its machines may cost by each of its offers."""

    want: Want
    keys: Sequence[Payer]
    reserves: Mapping[str, Reserve]
    worth: Mapping[str, Decimal]
    """In the currency of the budgets; offers without a rate are not in it."""

    def charges(self, amount: Decimal) -> dict[Payer, Decimal]:
        """What each budget must have where one machine costs so much: all, also where others share it."""
        return dict.fromkeys(self.keys, amount * self.want.nodes)

    def least(self) -> dict[Payer, Decimal]:
        """The same by the cheapest offer."""
        return self.charges(min(self.worth.values()))


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """The policy."""

    settings: BudgetSettings
    name: str = "budget"
    hard: bool = True

    @property
    def payers(self) -> Mapping[str, frozenset[str]]:
        """A machine of several would be paid by all of them, however much longer the job of one is."""
        return {"account": frozenset(self.settings.projects), "user": frozenset(self.settings.users)}

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Takes away what does not fit into what is left, from the last want on; the rest bears what is reserved."""
        if not isinstance(snapshot.slurm, SlurmView):
            return target
        settings = self.settings
        balance = BudgetBalance(settings.limits(), snapshot, settings.overhead_s, settings.unlimited_s or 0.0)
        for line in target.budgets:
            # What was stopped in the first of this decision's two looks is not in the second.
            balance.stop((line.kind, line.name), line.stops)
        asked = {job for want in target.wants for job in want.jobs}
        rows = {job.id: job for job in snapshot.slurm.jobs if job.id in asked} if asked else {}
        allocator = _BudgetAllocator(settings, rows, balance, self.name)
        wants: list[Want] = []
        remarks: list[Remark] = []
        for unit in gang_units(target.wants):
            found, unit_remarks = allocator.allocate(unit)
            wants += found
            remarks += [self._seen_from_premises(remark, snapshot) for remark in unit_remarks]
        releases = self._releases(snapshot, snapshot.slurm, target, balance)
        remarks += [Remark(self.name, f"claim:{r.claim_id}", "release", r.reason) for r in releases]
        return replace(
            target,
            wants=tuple(wants),
            releases=(*target.releases, *releases),
            remarks=(*target.remarks, *remarks),
            budgets=balance.lines(),
        )

    def _seen_from_premises(self, remark: Remark, snapshot: Snapshot) -> Remark:
        """What the cloud can never do is no last word on a job that the site's own nodes are going to start."""
        if remark.verdict != "impossible":
            return remark
        outlook = snapshot.outlook.get(remark.subject.removeprefix("job:"))
        starts = outlook is not None and isfinite(outlook.local_start)
        return replace(remark, verdict="wait") if starts else remark

    def _releases(
        self, snapshot: Snapshot, slurm: SlurmView, target: Target, balance: BudgetBalance
    ) -> list[NodeRelease]:
        """Idle nodes that were started for no job, where the limit of the whole site is passed."""
        if not balance.is_exceeded(WHOLE_SITE):
            return []
        known = {release.claim_id for release in target.releases}
        return [
            NodeRelease(claim.id, claim.pool, "the site's budget is used up and the node has no job")
            for claim in snapshot.claims
            if claim.state in (ClaimState.IN_SERVICE, ClaimState.READY)
            and not claim.jobs
            and claim.id not in known
            and (node := slurm.nodes.get(claim.slot)) is not None
            and not node.busy
        ]


@dataclass(slots=True)
class _BudgetAllocator:
    """Where the wants of one decision are paid, in their order."""

    settings: BudgetSettings
    rows: Mapping[str, Job]
    balance: BudgetBalance
    name: str
    _known: dict[tuple[int, float], tuple[tuple[Offer, ...], _Costs]] = field(default_factory=dict)
    _verdicts: dict[tuple[Payer, Decimal, Decimal], tuple[str, str]] = field(default_factory=dict)

    def allocate(self, unit: tuple[Want, ...]) -> tuple[Sequence[Want], list[Remark]]:
        """What of wants that stand or fall together can be paid, and what is to be said of the rest."""
        remarks: list[Remark] = []
        while True:
            found = self._fit(unit)
            if not isinstance(found, _Shortage):
                return found, remarks
            out = found.jobs
            if not out or len(unit) > 1 or unit[0].gang:
                verdict = "impossible" if found.impossible else "wait"
                out = dict.fromkeys((job for want in unit for job in want.jobs), (verdict, found.reason))
            remarks += [Remark(self.name, f"job:{job}", *said) for job, said in out.items()]
            left = tuple(job for want in unit for job in want.jobs if job not in out)
            if not out or not left:
                remarks += [
                    Remark(
                        self.name, f"pool:{want.pool}", "drop", f"{want.nodes} node(s) ({want.reason}): {found.reason}"
                    )
                    for want in unit
                ]
                return (), remarks
            # Others share the machine: it is started for them.
            unit = (replace(unit[0], jobs=left, reason=f"{_list(left)}, without jobs over budget"),)

    def _fit(self, unit: tuple[Want, ...]) -> Sequence[Want] | _Shortage:
        """The wants with the offers that can be paid and what is reserved for them, taken from the balance."""
        nodes = sum(want.nodes for want in unit)
        priced: list[_PricedWant] = []
        for want in unit:
            one = self._price(_with_payers(want, self.rows), nodes)
            if isinstance(one, _Shortage):
                return one
            priced.append(one)
        least = _sum(one.least() for one in priced if one.worth)
        short = {key: cost for key, cost in least.items() if self.balance.lacks(key, cost)}
        if short:
            return self._shortage(priced, short)
        found: list[Want] = []
        for one, before in zip(priced, unit, strict=True):
            if not one.worth:
                found.append(replace(before, reserved=()) if before.reserved and not one.keys else before)
                continue
            # The cheapest offer of each fits; a dearer one must leave enough for the others.
            rest = _sum([least, {key: -cost for key, cost in one.least().items()}])
            slim = without_refused_offers(one.want, self.name, partial(_refusal, one, rest, self.balance))
            slim = replace(slim, reserved=tuple(one.reserves[offer.id] for offer in slim.offers))
            least = _sum([rest, one.charges(max(one.worth[offer.id] for offer in slim.offers))])
            found.append(before if slim == before else slim)
        self.balance.reserve(least)
        return found

    def _shortage(self, priced: Sequence[_PricedWant], short: Mapping[Payer, Decimal]) -> _Shortage:
        """Whose jobs wait: those that could not be paid with any others, or else those that others make too dear."""
        key, cost = next(iter(short.items()))
        verdict, reason = self._verdict_for(key, cost)
        whole = _Shortage(reason, impossible=verdict == "impossible")
        if len(priced) > 1 or priced[0].want.gang:
            if not whole.impossible:
                self.balance.stop(key, (job for one in priced for job in one.want.jobs))
            return whole
        one = priced[0]
        mine: dict[Payer, list[str]] = {key: [] for key in short}
        for job in one.want.jobs:
            row = self.rows.get(job)
            for payer in (WHOLE_SITE, *_payers(row)) if row is not None else tuple(short):
                if payer in mine:
                    mine[payer].append(job)
        out: dict[str, tuple[str, str]] = {}
        for payer, jobs in mine.items():
            alike: dict[tuple[float, int, int], tuple[str, str] | None] = {}
            for job in jobs:
                row = self.rows.get(job)
                like = (self._limit(job), row.tasks, row.cpus) if row is not None else (self._limit(job), 1, 1)
                if like not in alike:
                    lasts = like[0] + self.settings.overhead_s
                    _, worth = self._worth(one.want.offers, lasts, (job,), one.want.nodes)
                    own = one.charges(min(worth.values()))[payer]
                    alike[like] = self._verdict_for(payer, own) if self.balance.lacks(payer, own) else None
                if said := alike[like]:
                    out.setdefault(job, said)
                    if said[0] == "wait":
                        self.balance.stop(payer, [job])
        if out:
            return replace(whole, jobs=out)
        for payer, jobs in mine.items():
            longest = max((self._limit(job) for job in jobs), default=0.0)
            for job in jobs:
                # What its output costs depends on the jobs: without some of them the others may fit.
                if not self.settings.egress_gib or self._limit(job) == longest:
                    out.setdefault(job, ("wait", self.balance.shortage_reason(payer, short[payer])))
                    self.balance.stop(payer, [job])
        return replace(whole, jobs=out)

    def _verdict_for(self, key: Payer, cost: Decimal) -> tuple[str, str]:
        known = (key, cost, self.balance.left(key))
        if known not in self._verdicts:
            line = self.balance.line(key)
            never = not line.fault and cost > line.limit
            said = (
                ("impossible", self.balance.impossible_reason(key, cost))
                if never
                else ("wait", self.balance.shortage_reason(key, cost))
            )
            self._verdicts[known] = said
        return self._verdicts[known]

    def _price(self, want: Want, nodes: int) -> _PricedWant | _Shortage:
        """``nodes`` are those of all wants that stand or fall with this one: they share the output of its job."""
        keys = self.balance.payers_of(want.accounts, want.users)
        if no := self._unpayable(want, keys):
            return no
        if not keys or not want.offers:
            return _PricedWant(want, keys, {}, {})
        limit = max((self._limit(job) for job in want.jobs), default=self.settings.unlimited_s or 0.0)
        lasts = limit + self.settings.overhead_s
        reserves, worth = self._worth(want.offers, lasts, want.jobs, nodes)
        if not worth:
            paid_in = ", ".join(sorted({offer.currency for offer in want.offers}))
            return _Shortage(f"its offers are paid in {paid_in}, and {_NO_RATE}")
        return _PricedWant(want, keys, reserves, worth)

    def _worth(self, offers: tuple[Offer, ...], lasts: float, jobs: Sequence[str] = (), nodes: int = 1) -> _Costs:
        """By offer what one machine may cost at most that is paid for so long, with the output of these jobs."""
        gib = self.settings.egress_gib if jobs else Decimal(0)
        known = self._known.get((id(offers), lasts)) if not gib else None
        # Kept with its offers, so that no others can come to the same id.
        if known is not None:
            return known[1]
        limits, reserves, worth = self.settings.limits(), {}, {}
        for offer in offers:
            rate = limits.converted(Decimal(1), offer.currency)
            if not rate:
                continue
            out = sum(_at_once(self.rows[job], offer) for job in jobs if job in self.rows) * gib if gib else gib
            egress = offer.egress_price * out * _GB_OF_GIB / nodes
            amount = worst_case(offer.price, lasts + offer.capacity_wait_s, egress)
            reserves[offer.id], worth[offer.id] = Reserve(offer.id, amount, egress), amount * rate
        if not gib:
            self._known[id(offers), lasts] = offers, (reserves, worth)
        return reserves, worth

    def _limit(self, job: str) -> float:
        """How long a job may run, in seconds."""
        row = self.rows.get(job)
        return (row.time_limit_s if row is not None else 0.0) or self.settings.unlimited_s or 0.0

    def _unpayable(self, want: Want, keys: Sequence[Payer]) -> _Shortage | None:
        """Jobs that no budget can answer for, whatever is left of it."""
        every = "*" in self.settings.projects
        out: dict[str, tuple[str, str]] = {}
        for job in want.jobs:
            row = self.rows.get(job)
            if every and row is not None and not row.account:
                why = f"job {job} has no account, and every project has a budget: name one (sbatch --account)"
                out[job] = "wait", why
            elif keys and not self._limit(job):
                why = f"job {job} has no time limit, and its cost is unbounded: set one (sbatch --time)"
                out[job] = "wait", f"{why}, or {_SET_UNLIMITED}"
        if out:
            return _Shortage(next(iter(out.values()))[1], out)
        if keys and not want.jobs and want.offers and not self.settings.unlimited_s:
            return _Shortage(f"a node that waits for jobs has no end, and its cost is unbounded: {_SET_UNLIMITED}")
        return None


_NO_RATE = "[policies.budget.rates] has no rate for it"
_SET_UNLIMITED = "set unlimited_s of [policies.budget]"


def _with_payers(want: Want, jobs: Mapping[str, Job]) -> Want:
    """Who pays follows from the jobs, whatever other policies have written there."""
    users, accounts = users_and_accounts([jobs[job] for job in want.jobs if job in jobs])
    same = (users, accounts) == (want.users, want.accounts)
    return want if same else replace(want, users=users, accounts=accounts)


def _list(jobs: Sequence[str]) -> str:
    more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs[:3])}{more}"


def _payers(job: Job) -> tuple[Payer, Payer]:
    return ("project", job.account), ("user", job.user)


def _at_once(job: Job, offer: Offer) -> int:
    """How many tasks of a job may run on such a machine at once."""
    return max(1, min(job.tasks, offer.shape.cpus // max(1, job.cpus)))


def _refusal(one: _PricedWant, rest: Mapping[Payer, Decimal], balance: BudgetBalance, offer: Offer) -> str:
    if offer.id not in one.worth:
        return f"it is paid in {offer.currency}, and {_NO_RATE}"
    for key, cost in _sum([rest, one.charges(one.worth[offer.id])]).items():
        if cost > balance.left(key):
            return balance.shortage_reason(key, cost)
    return ""


def _sum(parts: Iterable[Mapping[Payer, Decimal]]) -> dict[Payer, Decimal]:
    found: dict[Payer, Decimal] = {}
    for part in parts:
        for key, amount in part.items():
            found[key] = found.get(key, Decimal(0)) + amount
    return found


plugin = PolicyPlugin("budget", BudgetSettings, BudgetPolicy)
