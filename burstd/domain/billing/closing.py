"""Closed months: their charges stay as they were; what turns out otherwise later is charged by lines of its own."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from io import StringIO
from typing import TypeVar

from burstd.domain.billing.costs import MICRO, month_start, next_month
from burstd.domain.billing.site_runs import SiteCharge
from burstd.domain.billing.use import DAY_S, Charge, Kind, Payer, day_text
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.volume import Volume

RULE = 2
"""Version of the rules by which charges are made (ADR 24), for those who compare months. Before 2: without volumes."""
COLUMNS = (
    "date", "machine", "kind", "cause", "job", "user", "account", "partition", "pool", "provider", "currency",
    "amount", "milliseconds", "corrects",
)  # fmt: skip
"""Of the file whose SHA-256 a closed month has."""
SITE_COLUMNS = (
    "date", "group", "nodes", "job", "run", "user", "account", "partition", "currency", "amount", "milliseconds",
    "corrects",
)  # fmt: skip
"""Of the other file that it has: of nodes of the site's own."""
_ENDING = (ClaimState.LAUNCHING, ClaimState.FAILED, ClaimState.LOST, ClaimState.TERMINATING)


@dataclass(frozen=True, slots=True)
class ClosedMonth:
    """A month whose charges stay as they are."""

    month: str
    """``2026-10``."""
    closed: float
    """In seconds since 1970."""
    rule: int
    """``RULE`` then."""
    charges: int
    """How many there are."""
    totals: Mapping[str, Decimal]
    """By currency."""
    sha256: str
    """Of the file that ``month_file`` makes."""
    site_charges: int
    """As ``charges``, of nodes of the site's own; these are not among those."""
    site_totals: Mapping[str, Decimal]
    site_sha256: str
    """Of the file that ``site_month_file`` makes; empty: the month was closed without it."""


@dataclass(frozen=True, slots=True)
class MonthCharge:
    """A charge with what else its line in the file of a month has."""

    machine: str
    """Id of the claim or volume."""
    pool: str
    provider: str
    currency: str
    charge: Charge


_ChargeT = TypeVar("_ChargeT", MonthCharge, SiteCharge)


def month_charge(thing: Claim | Volume, charge: Charge) -> MonthCharge:
    """As it goes on record, of a claim while that is in its pool."""
    match thing:
        case Claim():
            return MonthCharge(thing.id, thing.pool, thing.offer.provider, thing.offer.currency, charge)
        case Volume():
            return MonthCharge(thing.id, "", thing.provider, thing.currency, charge)


def days_of(month: str) -> range:
    """The days of a month, since 1970."""
    return range(*(int(month_start(one) // DAY_S) for one in (month, next_month(month))))


def is_frozen(charge: Charge, first_open: int) -> bool:
    """Whether it stays as it is: it is of a closed month, or puts one right. ``first_open``: see ``unfrozen``."""
    return charge.day < first_open or "" < charge.corrects < day_text(first_open)[:7]


def unfrozen(charges: Iterable[Charge], kept: Iterable[Charge], first_open: int) -> list[Charge]:
    """What is to stand beside ``kept`` so that a claim or volume is charged for what it has cost.

    ``charges``: all that it has cost. ``kept``: its charges of closed months, and corrections of such. ``first_open``:
    the first day of the first month that is not closed. What differs in a closed month is a correction, of that day.
    """
    due: defaultdict[tuple[str, Kind, str, Payer], list[int]] = defaultdict(lambda: [0, 0])
    found = []
    for sign, some in ((1, charges), (-1, kept)):
        for one in some:
            if sign > 0 and one.day >= first_open:
                found.append(one)
                continue
            sums = due[one.corrects or day_text(one.day)[:7], one.kind, one.cause, one.payer]
            sums[0] += sign * one.amount
            sums[1] += sign * one.milliseconds
    for (month, kind, cause, payer), (amount, milliseconds) in due.items():
        if amount or milliseconds:
            found.append(Charge(first_open, kind, cause, payer, amount, milliseconds, month))
    return found


def awaited(claims: Iterable[Claim], month: str) -> list[Claim]:
    """Of claims that live, those whose part in a month is not certain: their clouds have not confirmed their ends.

    Or whether they began. Of all others it is what they have cost up to its end.
    """
    end = month_start(next_month(month))
    return [claim for claim in claims if claim.state in _ENDING and claim.since < end]


def month_file(charges: Iterable[MonthCharge], *, head: bool = True) -> Iterator[str]:
    """CSV (RFC 4180, but lines end with LF), in pieces; the same charges give the same bytes.

    ``charges`` in the order of days, then of all other columns. ``head``: the first line has the names of the columns.
    """
    return _csv(
        COLUMNS if head else (),
        (
            (day_text(one.charge.day), one.machine, one.charge.kind, one.charge.cause, *one.charge.payer, one.pool,
             one.provider, one.currency, f"{one.charge.amount * MICRO:f}", one.charge.milliseconds,
             one.charge.corrects)
            for one in charges
        ),
    )  # fmt: skip


def site_month_file(charges: Iterable[SiteCharge], *, head: bool = True) -> Iterator[str]:
    """As ``month_file``, of nodes of the site's own."""
    return _csv(
        SITE_COLUMNS if head else (),
        (
            (day_text(one.charge.day), one.group, one.nodes, one.charge.payer.job, one.run_start,
             *one.charge.payer[1:], one.currency, f"{one.charge.amount * MICRO:f}", one.charge.milliseconds,
             one.charge.corrects)
            for one in charges
        ),
    )  # fmt: skip


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    text = StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    if head:
        write(head)
    for row in rows:
        write(row)
        if text.tell() > 1 << 16:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


def close_month(month: str, closed: float, charges: Iterable[MonthCharge], site: Iterable[SiteCharge]) -> ClosedMonth:
    """Adds up its charges, in the orders of ``month_file`` and ``site_month_file``."""
    return ClosedMonth(month, closed, RULE, *_added_up(charges, month_file), *_added_up(site, site_month_file))


def _added_up(
    charges: Iterable[_ChargeT], file: Callable[[Iterable[_ChargeT]], Iterator[str]]
) -> tuple[int, Mapping[str, Decimal], str]:
    """How many there are, their totals and the SHA-256 of their file."""
    totals: defaultdict[str, int] = defaultdict(int)
    number = 0

    def counted() -> Iterator[_ChargeT]:
        nonlocal number
        for one in charges:
            number += 1
            totals[one.currency] += one.charge.amount
            yield one

    digest = hashlib.sha256()
    for piece in file(counted()):
        digest.update(piece.encode())
    return number, {currency: amount * MICRO for currency, amount in sorted(totals.items())}, digest.hexdigest()
