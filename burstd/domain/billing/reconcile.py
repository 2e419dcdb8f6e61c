"""What burstd charged beside what a provider did, resource by resource; each difference with its reason."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

_SECOND = Decimal(1)
_MILLISECOND = Decimal("0.001")
_HOUR_S = 3600
_MINUTE_S = 60
_DISK, _ADDRESS = re.compile(r"vol-[0-9a-f]+"), re.compile(r"eni-[0-9a-f]+")
"""AWS bills the root disk and the public address of a machine by ids of their own; they bear its tags."""


class Difference(StrEnum):
    """In what both bills differ."""

    NOT_THERE = "not there"
    """burstd charged it; the provider did not."""
    NOT_HERE = "not here"
    """It bears burstd's tag, and burstd has no charge of it."""
    NOT_OURS = "not ours"
    """burstd has no charge of it, and it bears no tag of burstd's."""
    CURRENCY = "currency"
    TIME = "time"
    PRICE = "price"


@dataclass(frozen=True, slots=True)
class OwnUse:
    """What burstd charged for a machine or a volume."""

    name: str
    """For people: of the node or volume."""
    currency: str
    cost: Decimal
    seconds: Decimal
    timed: bool = True
    """It is paid for by time alone: a machine."""
    addresses: Decimal = Decimal(0)
    """Of ``cost``, for its public address."""
    traffic: Decimal = Decimal(0)
    """For what came from it, which is not in ``cost``."""


@dataclass(slots=True)
class ProviderUse:
    """What a provider charged for a resource."""

    currency: str = ""
    """Empty: it says hours, and no cost."""
    cost: Decimal = Decimal(0)
    """Of time."""
    hours: Decimal = Decimal(0)
    other_cost: Decimal = Decimal(0)
    """Of all else, such as traffic of a machine, or gigabytes of a volume."""
    tagged: bool = False
    """It bears burstd's tag."""


@dataclass(frozen=True, slots=True)
class ResourceDifference:
    """One difference of one resource."""

    resource: str
    name: str
    kind: Difference
    amount: Decimal
    """What the provider charged more, in ``currency``."""
    currency: str
    here: str
    there: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Both bills beside each other."""

    here: Mapping[str, Decimal]
    """By currency: all that burstd charged."""
    there: Mapping[str, Decimal]
    """What the provider charged for the same, and for what bears burstd's tag."""
    traffic: Mapping[str, tuple[Decimal, Decimal]]
    """By currency: what burstd charged for traffic, what the provider did for machines beside their time. They are in
    none of the other sums."""
    disks: Mapping[str, Decimal]
    """What it charged for disks that bear burstd's tag and have no charge of their own."""
    addresses: Mapping[str, tuple[Decimal, Decimal]]
    """Of public addresses, where they have ids of their own: what burstd charged, what the provider did for those with
    burstd's tag. They are in none of the other sums."""
    agreed: int
    """Resources on which both agree."""
    differences: tuple[ResourceDifference, ...]
    """Dearest first."""

    def agrees(self, *, all_ours: bool) -> bool:
        """Whether there is no difference, but for others' resources; ``all_ours``: there should be none."""
        return all(one.kind is Difference.NOT_OURS and not all_ours for one in self.differences)


def reconcile(own: Mapping[str, OwnUse], there: Mapping[str, ProviderUse], tolerance: Decimal) -> Reconciliation:
    """Compares by the id of the resource. ``tolerance``: what may differ, as a part of what burstd charged for it.

    A difference in cost is split into one of time, at burstd's price, and one of price, for the provider's time.
    """
    here_sums, there_sums, disks = (defaultdict[str, Decimal](Decimal) for _ in range(3))
    addresses, traffic = (defaultdict[str, list[Decimal]](lambda: [Decimal(0), Decimal(0)]) for _ in range(2))
    addresses_apart = any(map(_ADDRESS.fullmatch, there))
    found: list[ResourceDifference] = []
    agreed = 0
    for resource, charged in own.items():
        mine = charged
        if addresses_apart and charged.addresses:
            addresses[charged.currency][0] += charged.addresses
            mine = replace(charged, cost=charged.cost - charged.addresses)
        if charged.traffic:
            traffic[charged.currency][0] += charged.traffic
        here_sums[mine.currency] += mine.cost
        use = there.get(resource)
        if use is None:
            if mine.cost:
                found.append(_one_sided(resource, mine.name, Difference.NOT_THERE, -mine.cost, mine.currency))
            continue
        if mine.timed and use.other_cost:
            traffic[use.currency][1] += use.other_cost
        cost = _cost_there(mine, use)
        there_sums[use.currency or mine.currency] += cost
        some = _differences(resource, mine, use, cost, tolerance)
        agreed += not some
        found += some
    for resource, use in there.items():
        if resource not in own and use.tagged and _DISK.fullmatch(resource):
            disks[use.currency] += use.cost + use.other_cost
        elif resource not in own and use.tagged and _ADDRESS.fullmatch(resource):
            addresses[use.currency][1] += use.cost + use.other_cost
        elif resource not in own and (use.cost or use.other_cost or use.hours):
            kind = Difference.NOT_HERE if use.tagged else Difference.NOT_OURS
            found.append(_one_sided(resource, "", kind, use.cost + use.other_cost, use.currency, use.hours))
            if use.tagged:
                there_sums[use.currency] += use.cost + use.other_cost
    found.sort(key=lambda one: (-abs(one.amount), one.resource, one.kind))
    return Reconciliation(
        here_sums, there_sums, _pairs(traffic), disks, _pairs(addresses), agreed, tuple(found)
    )  # fmt: skip


def _pairs(sums: Mapping[str, list[Decimal]]) -> Mapping[str, tuple[Decimal, Decimal]]:
    return {currency: (here, there) for currency, (here, there) in sums.items()}


def _cost_there(mine: OwnUse, use: ProviderUse) -> Decimal:
    if not use.currency:
        return _price(mine) * use.hours
    return use.cost if mine.timed and use.hours else use.cost + use.other_cost


def _price(mine: OwnUse) -> Decimal:
    """Of an hour."""
    return mine.cost / mine.seconds * _HOUR_S if mine.seconds else Decimal(0)


def _differences(
    resource: str, mine: OwnUse, use: ProviderUse, cost: Decimal, tolerance: Decimal
) -> list[ResourceDifference]:
    if use.currency and use.currency != mine.currency:
        here, there = f"{mine.cost:.6f} {mine.currency}", f"{cost:.6f} {use.currency}"
        one = ResourceDifference(resource, mine.name, Difference.CURRENCY, cost, use.currency, here, there)
        return [one] if cost or mine.cost else []
    limit, found = tolerance * mine.cost, []
    by_time = Decimal(0)
    if mine.timed and use.hours:
        seconds = (use.hours * _HOUR_S).quantize(_MILLISECOND)
        by_time = (seconds - mine.seconds) * _price(mine) / _HOUR_S
        if abs(by_time) > limit and abs(seconds - mine.seconds) >= _SECOND:
            here, there = f"{mine.seconds:.0f} s", f"{seconds:.0f} s"
            why = _why_time_differs(mine.seconds, seconds)
            found.append(
                ResourceDifference(resource, mine.name, Difference.TIME, by_time, mine.currency, here, there, why)
            )
    by_price = cost - mine.cost - by_time
    if abs(by_price) > limit:
        if mine.timed and use.hours:
            here, there = (f"{price:.6f} {mine.currency}/h" for price in (_price(mine), cost / use.hours))
        else:
            here, there = (f"{amount:.6f} {mine.currency}" for amount in (mine.cost, cost))
        found.append(ResourceDifference(resource, mine.name, Difference.PRICE, by_price, mine.currency, here, there))
    return found


def _why_time_differs(here: Decimal, there: Decimal) -> str:
    if there < here:
        return "billed for less"
    for unit, name in ((_MINUTE_S, "minute"), (_HOUR_S, "hour")):
        if there % unit == 0 and there - here < unit:
            return f"minimum of one {name}" if there == unit else f"rounded up to whole {name}s"
    return "billed for longer"


def _one_sided(
    resource: str, name: str, kind: Difference, amount: Decimal, currency: str, hours: Decimal = Decimal(0)
) -> ResourceDifference:
    cost = f"{abs(amount):.6f} {currency}" if currency else f"{hours:.2f} hours"
    here, there = (cost, "") if kind is Difference.NOT_THERE else ("", cost)
    return ResourceDifference(resource, name, kind, amount, currency, here, there)
