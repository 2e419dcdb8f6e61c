"""What a volume costs day by day."""

from __future__ import annotations

from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.billing.use import DAY_S, Charge, Kind, Payer
from burstd.domain.volume import Volume


def volume_charges(volume: Volume, until: float, first_day: int = 0) -> list[Charge]:
    """What it has cost by ``until``, or by its end, on each day (UTC) from ``first_day`` (since 1970) on.

    A day costs what the cost of the volume grew by in it.
    """
    if volume.billed_from is None:
        return []
    end = until if volume.billed_until is None else min(until, volume.billed_until)
    length = round((end - volume.billed_from) * 1000)
    payer = Payer(user=volume.user, account=volume.account)
    first = max(first_day, int(volume.billed_from // DAY_S))
    found, before, at = [], None, 0
    for day in range(first, int(end // DAY_S) + 1):
        since, to = (max(0, min(length, round((one * DAY_S - volume.billed_from) * 1000))) for one in (day, day + 1))
        if before is None:
            before, at = _cost(volume, since), since
        cost = _cost(volume, to)
        if to > at:
            found.append(Charge(day, Kind.VOLUME, "", payer, cost - before, to - at))
        before, at = cost, to
    return found


def _cost(volume: Volume, milliseconds: int) -> int:
    """In millionths."""
    return int(cost_of(volume.price, milliseconds / 1000) / MICRO)
