"""A head that does nothing but act, so that it is seen when it may and when it may not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from burstd.db import Leadership, Store, StoreError

from .samples import ManualClock


def act_without_end(
    leadership: Leadership,
    place: str,
    acted: Callable[[str], object],
    max_age_s: float,
    pause: Callable[[], object] = int,
) -> NoReturn:
    """Asks a cloud, as it were, and writes, again and again while it leads; ``acted`` is told each, as it is done.

    What is refused is tried again, as by the daemon's loop, until Leadership ends the process. ``pause`` is called
    after each.
    """
    with Store.open(place, ManualClock(), leadership) as store:
        while True:
            with suppress(StoreError):
                leadership.sure(max_age_s)
                acted("asked")
                store.log_event("daemon", new="did")
                acted("wrote")
            pause()
