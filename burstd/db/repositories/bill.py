"""The bill: charges of claims and costs of volumes, added up by who or what they are put down to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import ceil
from typing import Literal

from sqlalchemy import ColumnElement, Connection, func, select

from burstd.db.tables import CHARGE
from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.billing.use import DAY_S, Charge, Kind, day_text
from burstd.domain.claim import Claim
from burstd.domain.volume import Volume

BillGrouping = Literal["user", "account", "job", "pool", "provider", "partition", "day", "claim"]
_COLUMNS: Mapping[str, ColumnElement[object]] = {
    **{name: CHARGE.c[name] for name in ("user", "account", "job", "pool", "provider", "partition", "day")},
    "claim": CHARGE.c.claim_id,
}


@dataclass(frozen=True, slots=True)
class BillPart:
    """What a line owes for one kind of use."""

    kind: Kind
    cause: str
    """As in Charge."""
    cost: Decimal
    seconds: float
    """Of machines, shared as the cost is."""
    corrects: str = ""
    """The closed month that it puts right."""


@dataclass(frozen=True, slots=True)
class BillLine:
    """What one user (project, job, pool, provider, partition, day, claim) owes, in one currency.

    ``key`` is empty for what nobody is charged for: idle time, the end of machines, machines that failed.
    """

    key: str
    currency: str
    cost: Decimal
    """To a millionth."""
    seconds: float
    """Of machines, shared as the cost is."""
    claims: int
    """Claims (of a line for volumes: volumes) that it has a part in."""
    volumes: bool = False
    """It is of volumes, not of machines; ``seconds`` are theirs."""
    parts: tuple[BillPart, ...] = ()
    """They add up to it, dearest first; none of volumes."""


@dataclass(slots=True)
class _Sums:
    """In millionths and milliseconds, by kind, cause and the month that is put right."""

    parts: defaultdict[tuple[Kind, str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    claims: int = 0

    def add(self, kind: Kind, cause: str, corrects: str, amount: int, milliseconds: int) -> None:
        part = self.parts[kind, cause, corrects]
        part[0] += amount
        part[1] += milliseconds


class Bill:
    """The charges of whole days (UTC) from ``since`` to ``until``; of one ``user``, or empty: of all."""

    def __init__(self, group: BillGrouping, since: float, until: float, user: str = "") -> None:
        self._group, self._user = group, user
        self._days = range(int(since // DAY_S), ceil(until / DAY_S))
        self._sums: defaultdict[tuple[str, str], _Sums] = defaultdict(_Sums)

    def add_closed(self, connection: Connection) -> None:
        """Adds what is on record: all of claims that are gone, and closed months of others."""
        key = _COLUMNS[self._group]
        wanted = [CHARGE.c.day >= self._days.start, CHARGE.c.day < self._days.stop]
        if self._user:
            wanted.append(CHARGE.c.user == self._user)
        by, of = (key, CHARGE.c.currency), (CHARGE.c.kind, CHARGE.c.cause, CHARGE.c.corrects)
        sums = select(
            *by, *of, func.sum(CHARGE.c.amount), func.sum(CHARGE.c.milliseconds)
        )  # fmt: skip
        for name, currency, kind, cause, corrects, amount, milliseconds in connection.execute(
            sums.where(*wanted).group_by(*by, *of)
        ):
            self._sums[self._name(name), currency].add(kind, cause, corrects, int(amount), int(milliseconds))
        claims = select(*by, func.count(CHARGE.c.claim_id.distinct())).where(*wanted).group_by(*by)
        for name, currency, number in connection.execute(claims):
            self._sums[self._name(name), currency].claims += number

    def add_live(self, claim: Claim, charges: Iterable[Charge], frozen: Iterable[Charge] = ()) -> None:
        """Adds what a claim that lives has cost so far. ``frozen``: what ``add_closed`` adds of it."""
        met = {key for key, _ in self._wanted(claim, frozen)}
        for key, charge in self._wanted(claim, charges):
            self._sums[key].add(
                charge.kind, charge.cause, charge.corrects, charge.amount, charge.milliseconds
            )  # fmt: skip
            if key not in met:
                met.add(key)
                self._sums[key].claims += 1

    def _wanted(self, claim: Claim, charges: Iterable[Charge]) -> Iterator[tuple[tuple[str, str], Charge]]:
        for charge in charges:
            if charge.day in self._days and self._user in ("", charge.payer.user):
                yield (self._name(self._key_of(claim, charge)), claim.offer.currency), charge

    def _key_of(self, claim: Claim, charge: Charge) -> object:
        match self._group:
            case "day":
                return charge.day
            case "claim":
                return claim.id
            case "pool":
                return claim.pool
            case "provider":
                return claim.offer.provider
            case "user" | "account" | "job" | "partition":
                return getattr(charge.payer, self._group)

    def _name(self, key: object) -> str:
        return day_text(key) if isinstance(key, int) else str(key)

    def lines(self) -> tuple[BillLine, ...]:
        """All of it, dearest first; by day in order."""
        found = []
        for (key, currency), sums in self._sums.items():
            parts = [
                BillPart(kind, cause, amount * MICRO, milliseconds / 1000, corrects)
                for (kind, cause, corrects), (amount, milliseconds) in sums.parts.items()
            ]
            parts.sort(key=lambda part: (-part.cost, part.kind, part.cause, part.corrects))
            cost, milliseconds = (sum(some) for some in zip(*sums.parts.values(), strict=True))
            found.append(BillLine(key, currency, cost * MICRO, milliseconds / 1000, sums.claims, parts=tuple(parts)))
        if self._group == "day":
            return tuple(sorted(found, key=lambda line: (line.key, line.currency)))
        return tuple(sorted(found, key=lambda line: (-line.cost, line.key, line.currency)))


def volume_lines(
    volumes: Iterable[Volume], group: BillGrouping, since: float, until: float, user: str = ""
) -> tuple[BillLine, ...]:
    """The bill of volumes for a window, dearest first.

    By claim, job, pool, partition or day they are one line without a key.
    """
    found: dict[tuple[str, str], BillLine] = {}
    for volume in volumes:
        if volume.billed_from is None or (user and volume.user != user):
            continue
        end = until if volume.billed_until is None else min(until, volume.billed_until)
        seconds = max(0.0, end - max(since, volume.billed_from))
        if not seconds:
            continue
        keys = {"user": volume.user, "account": volume.account, "provider": volume.provider}
        key = (keys.get(group, ""), volume.currency)
        line = found.get(key) or BillLine(*key, Decimal(0), 0.0, 0, volumes=True)
        found[key] = replace(
            line,
            cost=line.cost + cost_of(volume.price, seconds),
            seconds=line.seconds + seconds,
            claims=line.claims + 1,
        )
    return tuple(sorted(found.values(), key=lambda line: (-line.cost, line.key, line.currency)))
