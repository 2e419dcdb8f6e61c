"""Messages to people: what is still to be sent, and what was, so that nothing is told twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import Connection, delete, insert, select, update

from burstd.db.codec import from_json, to_json
from burstd.db.database import chunks
from burstd.db.tables import NOTIFICATION
from burstd.domain.notification import Delivery, DeliveryState, Notification

KEPT_S = 62 * 86400.0
"""Longer than a month, in which a budget is told of once."""

_T = NOTIFICATION.c


def add(connection: Connection, deliveries: Iterable[Delivery], now: float) -> None:
    """Writes what is to be sent, and forgets what was long ago."""
    connection.execute(delete(NOTIFICATION).where(_T.time < now - KEPT_S))
    rows = [
        {"id": one.notification.id, "way": one.way, "time": one.notification.time, "tries": one.tries, "due": one.due,
         "state": DeliveryState.WAITING, "message": to_json(one.notification)}
        for one in deliveries
    ]  # fmt: skip
    if rows:
        connection.execute(insert(NOTIFICATION), rows)


def settle(connection: Connection, delivery: Delivery, state: DeliveryState) -> None:
    """Writes down what became of one try."""
    same = (_T.id == delivery.notification.id, _T.way == delivery.way)
    values = {"state": state, "tries": delivery.tries, "due": delivery.due}
    connection.execute(update(NOTIFICATION).where(*same).values(**values))


def waiting(connection: Connection) -> list[Delivery]:
    """What is still to be sent, oldest first."""
    query = select(NOTIFICATION).where(_T.state == DeliveryState.WAITING).order_by(_T.time, _T.id, _T.way)
    return [
        Delivery(from_json(Notification, row["message"]), row["way"], row["tries"], row["due"])
        for row in connection.execute(query).mappings()
    ]


def known(connection: Connection, ids: Collection[str]) -> set[str]:
    """Those of these ids that are on record, sent or not."""
    found: set[str] = set()
    for some in chunks(list(ids)):
        found |= set(connection.execute(select(_T.id).where(_T.id.in_(some))).scalars())
    return found
