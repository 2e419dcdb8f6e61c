"""What a volume costs day by day."""

from __future__ import annotations

from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.billing.use import DAY_S, Charge, Kind, Payer
from burstd.domain.volume import Volume


def volume_charges(volume: Volume, days: range, until: float) -> list[Charge]:
    """A charge for each of the ``days`` (since 1970, UTC) on which it cost something by ``until``.

    They add up to what it cost from the first day on: a day costs what that grew by in it.
    """
    if volume.billed_from is None:
        return []
    begin = max(days.start * DAY_S, volume.billed_from)
    end = until if volume.billed_until is None else min(until, volume.billed_until)
    payer = Payer(user=volume.user, account=volume.account)
    found, before, passed = [], 0, 0
    for day in range(max(days.start, int(begin // DAY_S)), days.stop):
        seconds = max(0.0, min(end, (day + 1) * DAY_S) - begin)
        cost, milliseconds = int(cost_of(volume.price, seconds) / MICRO), round(seconds * 1000)
        if cost > before or milliseconds > passed:
            found.append(Charge(day, Kind.STORAGE, "", payer, cost - before, milliseconds - passed))
        before, passed = cost, milliseconds
    return found
