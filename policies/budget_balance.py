"""What is left of each budget (see budget.py), reckoned once a decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.billing.commitments import Commitments
from burstd.domain.billing.costs import BudgetLine, Spent, month_of, month_start
from burstd.domain.claim import Claim
from burstd.domain.snapshot import Snapshot

Period = Literal["month", "year", "total"]
Payer = tuple[str, str]
"""Kind and name of who pays: ``("project", "atlas")``, ``("user", "ada")``, ``("", "")`` for all together."""
WHOLE_SITE: Payer = ("", "")


class BudgetLimit(BaseModel):
    """One budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Decimal = Field(ge=0)
    period: Period = "month"
    """Calendar month or year (UTC), or ``total``: for ever."""


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """All budgets, and what amounts are worth."""

    by_kind: Mapping[str, Mapping[str, BudgetLimit]]
    currency: str
    rates: Mapping[str, Decimal]

    def limit_for(self, key: Payer) -> BudgetLimit | None:
        """The budget of one who pays; None: he has none."""
        named = self.by_kind.get(key[0], {})
        return named.get(key[1]) or (named.get("*") if key[1] else None)

    def converted(self, amount: Decimal, currency: str) -> Decimal | None:
        """An amount in the currency of the budgets; None: there is no rate for its own."""
        rate = Decimal(1) if currency == self.currency else self.rates.get(currency)
        return None if rate is None else amount * rate


class BudgetBalance:
    """What each who pays has left. ``take`` takes from it."""

    def __init__(self, limits: BudgetLimits, snapshot: Snapshot, overhead_s: float, unlimited_s: float) -> None:
        self._limits = limits
        self._now = snapshot.now
        self._spent: dict[Payer, list[Spent]] = {}
        for spent in snapshot.spent:
            self._spent.setdefault((spent.kind, spent.name), []).append(spent)
        committed = Commitments(snapshot, overhead_s, unlimited_s)
        self._keys: dict[tuple[tuple[str, ...], tuple[str, ...]], Sequence[Payer]] = {}
        self._live: dict[Payer, list[tuple[Claim, Decimal]]] = {}
        for claim in (*snapshot.claims, *snapshot.storage_claims, *snapshot.quarantined_claims):
            if keys := self.payers_of(claim.accounts, claim.users):
                amount = committed.committed_cost(claim)
                for key in keys:
                    self._live.setdefault(key, []).append((claim, amount))
        self._lines: dict[Payer, BudgetLine] = {}
        self._reserved: dict[Payer, Decimal] = {}
        self._stopped: dict[Payer, dict[str, None]] = {}

    def payers_of(self, accounts: tuple[str, ...], users: tuple[str, ...]) -> Sequence[Payer]:
        """The budgets that pay for a machine: each may come to pay for all of it."""
        known = self._keys.get((accounts, users))
        if known is None:
            known = self._keys[accounts, users] = self._find_payers(accounts, users)
        return known

    def _find_payers(self, accounts: tuple[str, ...], users: tuple[str, ...]) -> Sequence[Payer]:
        named = [(kind, name) for kind, names in (("project", accounts), ("user", users)) for name in names if name]
        return [key for key in dict.fromkeys((WHOLE_SITE, *named)) if self._limits.limit_for(key) is not None]

    def line(self, key: Payer) -> BudgetLine:
        """How a budget stands; what was taken since is not in it."""
        if key not in self._lines:
            limit = self._limits.limit_for(key)
            if limit is None:
                raise KeyError(key)
            spent, fault = self._spent_by(key, limit.period)
            committed, unknown = self._committed_by(key, limit.period)
            self._lines[key] = BudgetLine(
                *key, limit.period, self._limits.currency, limit.limit, spent, committed, fault or unknown
            )
        return self._lines[key]

    def left(self, key: Payer) -> Decimal:
        """What may still be promised."""
        return self.line(key).left - self._reserved.get(key, Decimal(0))

    def lacks(self, key: Payer, cost: Decimal) -> bool:
        """Whether so much is not to be had from this budget."""
        return bool(self.line(key).fault) or cost > self.left(key)

    def is_exceeded(self, key: Payer) -> bool:
        """Whether more than the whole of a budget is spent and promised."""
        return self._limits.limit_for(key) is not None and (bool(self.line(key).fault) or self.line(key).left < 0)

    def reserve(self, charges: Mapping[Payer, Decimal]) -> None:
        """Promises so much more."""
        for key, amount in charges.items():
            self._reserved[key] = self._reserved.get(key, Decimal(0)) + amount

    def stop(self, key: Payer, jobs: Iterable[str]) -> None:
        """Notes that these jobs wait because there is too little left."""
        if self._limits.limit_for(key) is not None and not self.line(key).fault:
            self._stopped.setdefault(key, {}).update(dict.fromkeys(jobs))

    def lines(self) -> tuple[BudgetLine, ...]:
        """Every budget that has a name, and of ``"*"`` those who have spent or promised something."""
        named = [(kind, name) for kind, some in self._limits.by_kind.items() for name in some if name != "*"]
        others = {*self._spent, *self._live}.difference(named)
        lines = [self._shown(key) for key in others if self._limits.limit_for(key) is not None]
        used = [line for line in lines if line.spent or line.committed or line.fault]
        return tuple(sorted((*map(self._shown, named), *used), key=lambda line: (line.kind, line.name)))

    def _shown(self, key: Payer) -> BudgetLine:
        return replace(self.line(key), stops=tuple(self._stopped.get(key, ())))

    def shortage_reason(self, key: Payer, cost: Decimal) -> str:
        """Why so much is not to be had from this budget."""
        line = self.line(key)
        if line.fault:
            return f"the budget of {payer_name(key)} cannot be computed: {line.fault}"
        left = _floor(max(self.left(key), Decimal(0)))
        of = f"{_floor(line.limit)} {line.currency} left{_THIS_PERIOD[line.period]}"
        return f"{payer_name(key)} has {left} of {of}; this may cost up to {_ceil(cost)}"

    def impossible_reason(self, key: Payer, cost: Decimal) -> str:
        """Why so much will never be had from it."""
        line = self.line(key)
        whole = f"{_floor(line.limit)} {line.currency}{_PER_PERIOD[line.period]}"
        return (
            f"the job may cost up to {_ceil(cost)}, and the whole budget of {payer_name(key)} is {whole};"
            " a shorter time limit lowers the cost"
        )

    def _spent_by(self, key: Payer, period: Period) -> tuple[Decimal, str]:
        whole, prefix = Decimal(0), _prefix(period, self._now)
        for spent in self._spent.get(key, ()):
            if not spent.month.startswith(prefix):
                continue
            worth = self._limits.converted(spent.amount, spent.currency)
            if worth is None:
                return whole, f"{spent.currency} was spent, and [policies.budget.rates] has no rate for it"
            whole += worth
        return whole, ""

    def _committed_by(self, key: Payer, period: Period) -> tuple[Decimal, str]:
        whole, began = Decimal(0), _start(period, self._now)
        for claim, amount in self._live.get(key, ()):
            before = _cost_before(claim, began)
            worth = self._limits.converted(amount - before, claim.offer.currency)
            if worth is None:
                what = f"{claim.slot} is paid in {claim.offer.currency}"
                return whole, f"{what}, and [policies.budget.rates] has no rate for it"
            whole += worth
        return whole, ""


_THIS_PERIOD = {"month": " this month", "year": " this year", "total": ""}
_PER_PERIOD = {"month": " a month", "year": " a year", "total": " in all"}


def payer_name(key: Payer) -> str:
    """Who pays, for a sentence."""
    return f"{key[0]} {key[1]}" if key[0] else "the site"


def _prefix(period: Period, now: float) -> str:
    """How the months of the running period begin."""
    return {"month": month_of(now), "year": month_of(now)[:5], "total": ""}[period]


def _start(period: Period, now: float) -> float:
    """When the running period began; 0 for one that has no end."""
    if period == "total":
        return 0.0
    return month_start(month_of(now) if period == "month" else month_of(now)[:5] + "01")


def _cost_before(claim: Claim, time: float) -> Decimal:
    """What a claim had cost by then: it is in the bill of an earlier period."""
    if claim.billed_from is None or claim.billed_from >= time:
        return Decimal(0)
    ended = claim.billed_until is not None and claim.billed_until < time
    return claim.cost(time) if claim.billed_until is None or ended else replace(claim, billed_until=time).cost(time)


def _floor(amount: Decimal) -> str:
    return str(amount.quantize(_step(amount), ROUND_FLOOR))


def _ceil(amount: Decimal) -> str:
    return str(amount.quantize(_step(amount), ROUND_CEILING))


def _step(amount: Decimal) -> Decimal:
    """Cents, and more digits for small amounts."""
    return Decimal("0.01") if not amount or amount >= Decimal("0.1") else Decimal("0.0001")
