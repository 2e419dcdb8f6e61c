"""A store in any database: on PostgreSQL its writer leads first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from burstd.db import Leadership, Store, StoreLocked
from burstd.db.database import database_url, is_sqlite
from burstd.domain.clock import Clock


@contextmanager
def open_store(place: str, clock: Clock) -> Iterator[Store]:
    if is_sqlite(database_url(place)):
        with Store.open(place, clock) as store:
            yield store
        return
    with Leadership.open(place, "site", "head1") as leadership:
        if not leadership.try_lead("", "1"):
            raise StoreLocked("Another burstd leads.")
        with Store.open(place, clock, leadership) as store:
            yield store
