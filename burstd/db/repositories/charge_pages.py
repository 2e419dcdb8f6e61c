"""Every charge of some days, in pages: of machines that live, of all that is gone, of volumes that live.

A page costs what its rows cost, wherever it is: the next one begins behind the last key of this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, RowMapping, or_, select, tuple_

from burstd.db.codec import value_from_row
from burstd.db.database import chunks
from burstd.db.repositories.charges import (
    charge_of_row,
    charges_so_far,
    volume_charges_on_record,
    volume_charges_so_far,
)
from burstd.db.tables import CHARGE, CLAIM, VOLUME
from burstd.domain.billing.closing import MonthCharge, month_charge
from burstd.domain.billing.use import Charge, IdleMode
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.volume import Volume, VolumeState

_AT_A_TIME = 50
"""Machines that live, or volumes, that are worked out at a time."""
_PLACE = (CHARGE.c.day, CHARGE.c.claim_id, CHARGE.c.number)
_LEAST = -1
_KEY = ("day", "thing", "number")
"""Of the cursor, as _PLACE of the table."""


class Part(IntEnum):
    """Of the list, in its order."""

    LIVE = 0
    CLOSED = 1
    VOLUMES = 2


class Cursor(NamedTuple):
    """Up to where charges were read."""

    moment: float
    """When the first page was asked for. A machine that ends later is shown as it was then."""
    part: Part = Part.LIVE
    day: int = _LEAST
    thing: str = ""
    """Id of a claim or volume."""
    number: int = _LEAST


@dataclass(frozen=True, slots=True)
class ChargeLine:
    """A charge, and what it is for: a machine, a volume, or what only has the fields of the charge's row."""

    charge: Charge
    id: str
    thing: Claim | Volume | None
    pool: str
    provider: str
    currency: str


class ChargePages:
    """The charges of whole days (UTC); of one ``user``, or empty: of all."""

    def __init__(self, days: range, until: float, user: str, idle: IdleMode) -> None:
        """``until``: when the last of the days ends, or now, in seconds since 1970."""
        self._days, self._until, self._user, self._idle = days, until, user, idle

    def page(self, connection: Connection, cursor: Cursor, rows: int) -> tuple[list[ChargeLine], Cursor | None]:
        """About ``rows`` charges after the cursor, and where to go on; None: that was all."""
        found: list[ChargeLine] = []
        read = {Part.LIVE: self._live, Part.CLOSED: self._closed, Part.VOLUMES: self._volumes}
        while len(found) < rows:
            lines, last = read[cursor.part](connection, cursor, rows)
            found += lines
            if last is not None:
                cursor = last
            elif cursor.part is Part.VOLUMES:
                return found, None
            else:
                cursor = Cursor(cursor.moment, Part(cursor.part + 1))
        return found, cursor

    def _live(self, connection: Connection, cursor: Cursor, _: int) -> tuple[list[ChargeLine], Cursor | None]:
        lived = or_(CLAIM.c.state != ClaimState.GONE, CLAIM.c.since > cursor.moment)
        query = select(CLAIM).where(lived, CLAIM.c.id > cursor.thing).order_by(CLAIM.c.id).limit(_AT_A_TIME)
        claims = [value_from_row(Claim, row) for row in connection.execute(query).mappings()]
        known = charges_so_far(connection, claims, min(self._until, cursor.moment), self._idle)
        lines = self._lines(
            (claim, one)
            for claim in claims
            for one in chain(known[claim.id][0], (month_charge(claim, charge) for charge in known[claim.id][1]))
        )
        return [*lines], _after(cursor, claims)

    def _volumes(self, connection: Connection, cursor: Cursor, _: int) -> tuple[list[ChargeLine], Cursor | None]:
        lived = or_(VOLUME.c.state != VolumeState.GONE, VOLUME.c.since > cursor.moment)
        query = select(VOLUME).where(lived, VOLUME.c.id > cursor.thing).order_by(VOLUME.c.id).limit(_AT_A_TIME)
        volumes = [value_from_row(Volume, row) for row in connection.execute(query).mappings()]
        frozen = volume_charges_on_record(connection, volumes)
        more = volume_charges_so_far(connection, volumes, min(self._until, cursor.moment))
        lines = self._lines(
            (volume, one)
            for volume in volumes
            for one in chain(frozen[volume.id], (month_charge(volume, charge) for charge in more[volume.id]))
        )
        return [*lines], _after(cursor, volumes)

    def _lines(self, charged: Iterable[tuple[Claim | Volume, MonthCharge]]) -> Iterator[ChargeLine]:
        for thing, one in charged:
            if one.charge.day in self._days and self._user in ("", one.charge.payer.user):
                yield _line(one, thing)

    def _closed(self, connection: Connection, cursor: Cursor, rows: int) -> tuple[list[ChargeLine], Cursor | None]:
        wanted: list[ColumnElement[bool]] = [
            CHARGE.c.day >= self._days.start, CHARGE.c.day < self._days.stop,
            tuple_(*_PLACE) > tuple_(cursor.day, cursor.thing, cursor.number),
        ]  # fmt: skip
        if self._user:
            wanted.append(CHARGE.c.user == self._user)
        query = select(CHARGE).where(*wanted).order_by(*_PLACE).limit(rows)
        found = connection.execute(query).mappings().all()
        things = _things(connection, found)
        lines = [
            _line(charge_of_row(row), thing)
            for row in found
            if (thing := things.get(row["claim_id"])) is None
            or (thing.state in (ClaimState.GONE, VolumeState.GONE) and thing.since <= cursor.moment)
        ]  # fmt: skip
        if len(found) < rows:
            return lines, None
        return lines, cursor._replace(**{key: found[-1][column.name] for key, column in zip(_KEY, _PLACE, strict=True)})


def _line(one: MonthCharge, thing: Claim | Volume | None) -> ChargeLine:
    return ChargeLine(one.charge, one.machine, thing, one.pool, one.provider, one.currency)


def _after(cursor: Cursor, things: Sequence[Claim | Volume]) -> Cursor | None:
    return cursor._replace(thing=things[-1].id) if len(things) == _AT_A_TIME else None


def _things(connection: Connection, rows: Sequence[RowMapping]) -> dict[str, Claim | Volume]:
    found: dict[str, Claim | Volume] = {}
    for some in chunks(sorted({row["claim_id"] for row in rows})):
        for row in connection.execute(select(CLAIM).where(CLAIM.c.id.in_(some))).mappings():
            found[row["id"]] = value_from_row(Claim, row)
        for row in connection.execute(select(VOLUME).where(VOLUME.c.id.in_(some))).mappings():
            found[row["id"]] = value_from_row(Volume, row)
    return found
