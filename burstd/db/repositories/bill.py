"""The bill: charges of claims and volumes, added up by who or what they are put down to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from operator import itemgetter
from typing import Any, Literal, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, func, select

from burstd.db.database import chunks
from burstd.db.tables import CHARGE
from burstd.domain.billing.closing import MonthCharge, month_charge
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.use import DAY_S, Charge, Kind, day_text
from burstd.domain.claim import Claim
from burstd.domain.volume import Volume

BillGrouping = Literal["user", "account", "job", "pool", "provider", "partition", "day", "claim"]
_USE = (CHARGE.c.kind, CHARGE.c.cause, CHARGE.c.corrects)
_Use = tuple[Kind, str, str]
_SUMS = (func.sum(CHARGE.c.amount), func.sum(CHARGE.c.milliseconds))
_COLUMNS: Mapping[str, ColumnElement[object]] = {
    **{name: CHARGE.c[name] for name in ("user", "account", "job", "pool", "provider", "partition", "day")},
    "claim": CHARGE.c.claim_id,
}
_OF_VOLUME = frozenset({"user", "account", "provider"})
"""By which volumes are told apart; by all else they are one line without a key."""


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
    others: int = 0
    """So many lines in one, which are not among the dearest; ``claims`` is 0 then."""
    volumes: bool = False
    """It is of volumes, not of machines; ``seconds`` are theirs."""
    parts: tuple[BillPart, ...] = ()
    """They add up to it, dearest first."""


@dataclass(slots=True)
class _Sums:
    """In millionths and milliseconds, by kind, cause and the month that is put right."""

    parts: defaultdict[_Use, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    claims: int = 0
    others: int = 0
    """As in BillLine."""

    def add(self, use: _Use, amount: int, milliseconds: int) -> None:
        part = self.parts[use]
        part[0] += amount
        part[1] += milliseconds

    def take_in(self, line: _Sums) -> None:
        """Adds a whole line, or several, as others."""
        for use, (amount, milliseconds) in line.parts.items():
            self.add(use, amount, milliseconds)
        self.others += line.others or 1

    def line(self, key: str, currency: str, *, volumes: bool = False) -> BillLine:
        """As it stands in the bill."""
        parts = [
            BillPart(kind, cause, amount * MICRO, milliseconds / 1000, corrects)
            for (kind, cause, corrects), (amount, milliseconds) in self.parts.items()
            if amount or milliseconds
        ]
        parts.sort(key=lambda part: (-part.cost, part.kind, part.cause, part.corrects))
        cost, milliseconds = (sum(some) for some in zip(*self.parts.values(), strict=True))
        return BillLine(
            key, currency, cost * MICRO, milliseconds / 1000, self.claims, self.others, volumes, tuple(parts)
        )  # fmt: skip


class Bill:
    """The charges of whole days (UTC) from ``since`` to ``until``; of one ``user``, or empty: of all.

    ``limit``: by job or claim so many lines, the dearest; what is not among them is one line a currency. None: all.
    """

    def __init__(
        self, group: BillGrouping, since: float, until: float, user: str = "", limit: int | None = None
    ) -> None:
        self._group, self._user = group, user
        self._limit = limit if group in ("job", "claim") else None
        self._days = range(int(since // DAY_S), ceil(until / DAY_S))
        self._sums: defaultdict[tuple[str, str], _Sums] = defaultdict(_Sums)
        self._others: defaultdict[str, _Sums] = defaultdict(_Sums)
        self._volumes: defaultdict[tuple[str, str], _Sums] = defaultdict(_Sums)
        self._volume_ids: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """Their ids."""

    def add_closed(self, connection: Connection) -> None:
        """Adds what is on record: all of what is gone, and closed months of others. After those that live."""
        wanted = [CHARGE.c.day >= self._days.start, CHARGE.c.day < self._days.stop]
        if self._user:
            wanted.append(CHARGE.c.user == self._user)
        self._add_volumes(connection, [*wanted, CHARGE.c.kind == Kind.VOLUME])
        wanted.append(CHARGE.c.kind != Kind.VOLUME)
        key = _COLUMNS[self._group]
        if self._limit is None or len(dearest := self._dearest(connection, self._limit + 1, wanted)) <= self._limit:
            self._add_sums(connection, wanted)
            return
        names = {row.name for row in dearest} | {name for name, _ in self._sums}
        by = (CHARGE.c.currency, *_USE)
        for currency, *use, amount, milliseconds in connection.execute(
            select(*by, *_SUMS).where(*wanted).group_by(*by)
        ):
            self._others[currency].add(tuple(use), int(amount), int(milliseconds))
            self._others[currency].others = dearest[0].lines
        if len(self._others) > 1:
            number = select(by[0], func.count(key.distinct())).where(*wanted).group_by(by[0])
            for currency, lines in connection.execute(number):
                self._others[currency].others = lines
                of_it = [*wanted, by[0] == currency]
                names |= {row.name for row in self._dearest(connection, self._limit, of_it)}
        for some in chunks(sorted(names)):
            self._add_sums(connection, [*wanted, key.in_(some)], self._others)

    def _dearest(
        self, connection: Connection, limit: int, wanted: Sequence[ColumnElement[bool]]
    ) -> Sequence[Row[tuple[Any, ...]]]:
        """Names and currencies of the first ``limit`` lines, each with how many there are."""
        by = (_COLUMNS[self._group].label("name"), CHARGE.c.currency)
        dearest = select(*by, func.count().over().label("lines")).where(*wanted).group_by(*by)
        return connection.execute(dearest.order_by(func.sum(CHARGE.c.amount).desc(), *by).limit(limit)).all()

    def _add_sums(
        self, connection: Connection, wanted: Sequence[ColumnElement[bool]], others: Mapping[str, _Sums] | None = None
    ) -> None:
        """Adds up lines; what is in them is no more among the ``others``."""
        by = (_COLUMNS[self._group], CHARGE.c.currency)
        for name, currency, *use, amount, milliseconds in connection.execute(
            select(*by, *_USE, *_SUMS).where(*wanted).group_by(*by, *_USE)
        ):
            self._sums[self._name(name), currency].add(tuple(use), int(amount), int(milliseconds))
            if others is not None:
                others[currency].add(tuple(use), -int(amount), -int(milliseconds))
        claims = select(*by, func.count(CHARGE.c.claim_id.distinct())).where(*wanted).group_by(*by)
        for name, currency, number in connection.execute(claims):
            self._sums[self._name(name), currency].claims += number
            if others is not None:
                others[currency].others -= 1

    def _add_volumes(self, connection: Connection, wanted: Sequence[ColumnElement[bool]]) -> None:
        by = [CHARGE.c.currency, *([_COLUMNS[self._group]] if self._group in _OF_VOLUME else ())]
        for currency, *name, kind, cause, corrects, amount, milliseconds in connection.execute(
            select(*by, *_USE, *_SUMS).where(*wanted).group_by(*by, *_USE)
        ):
            self._volumes["".join(name), currency].add((kind, cause, corrects), int(amount), int(milliseconds))
        for currency, *name, volume in connection.execute(select(*by, CHARGE.c.claim_id).where(*wanted).distinct()):
            self._volume_ids["".join(name), currency].add(volume)

    def add_live_volume(self, volume: Volume, charges: Iterable[Charge]) -> None:
        """Adds what a volume that lives has cost so far, but for what ``add_closed`` adds of it."""
        names = {"user": volume.user, "account": volume.account, "provider": volume.provider}
        key = (names.get(self._group, ""), volume.currency)
        for charge in charges:
            if charge.day in self._days and self._user in ("", volume.user):
                self._volumes[key].add((charge.kind, charge.cause, charge.corrects), charge.amount, charge.milliseconds)
                self._volume_ids[key].add(volume.id)

    def add_live(self, claim: Claim, charges: Iterable[Charge], frozen: Iterable[MonthCharge] = ()) -> None:
        """Adds what a claim that lives has cost so far. ``frozen``: what ``add_closed`` adds of it."""
        met = {key for key, _ in self._wanted(frozen)}
        for key, charge in self._wanted(month_charge(claim, charge) for charge in charges):
            use = (charge.kind, charge.cause, charge.corrects)
            self._sums[key].add(use, charge.amount, charge.milliseconds)
            if key not in met:
                met.add(key)
                self._sums[key].claims += 1

    def _wanted(self, charges: Iterable[MonthCharge]) -> Iterator[tuple[tuple[str, str], Charge]]:
        for one in charges:
            if one.charge.day in self._days and self._user in ("", one.charge.payer.user):
                yield (self._name(self._key_of(one)), one.currency), one.charge

    def _key_of(self, one: MonthCharge) -> object:
        match self._group:
            case "day":
                return one.charge.day
            case "claim":
                return one.machine
            case "pool" | "provider":
                return getattr(one, self._group)
            case "user" | "account" | "job" | "partition":
                return getattr(one.charge.payer, self._group)

    def _name(self, key: object) -> str:
        return day_text(key) if isinstance(key, int) else str(key)

    def lines(self) -> tuple[BillLine, ...]:
        """All of it, as ``dearest_first`` has it, then the others; by day in order. Volumes are last."""
        for key, sums in self._volumes.items():
            sums.claims = len(self._volume_ids[key])
        volumes = dearest_first(sums.line(*key, volumes=True) for key, sums in self._volumes.items())
        return (*self._machines(), *volumes)

    def _machines(self) -> tuple[BillLine, ...]:
        found = [sums.line(key, currency) for (key, currency), sums in self._sums.items()]
        if self._group == "day":
            return tuple(sorted(found, key=lambda line: (line.key, line.currency)))
        found = dearest_first(found)
        for line in found[self._limit :] if self._limit is not None else ():
            self._others[line.currency].take_in(self._sums[line.key, line.currency])
        others = [sums.line("", currency) for currency, sums in sorted(self._others.items()) if sums.others]
        return (*found[: self._limit], *others)


class _Line(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def currency(self) -> str: ...
    @property
    def cost(self) -> Decimal: ...


LineT = TypeVar("LineT", bound=_Line)


def dearest_first(lines: Iterable[LineT]) -> list[LineT]:
    """First the dearest of each currency, then the second of each: their amounts cannot be compared."""
    ranks = Counter[str]()
    placed = []
    for line in sorted(lines, key=lambda line: (-line.cost, line.key)):
        ranks[line.currency] += 1
        placed.append((ranks[line.currency], line.currency, line))
    return [line for _, _, line in sorted(placed, key=itemgetter(0, 1))]
