"""Work on nodes of the site at each price of ``[site.cost]``, and at which utilisation renting costs the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from burstd.domain.billing.rates import Rates
from burstd.domain.billing.site_cost import HourCost, SiteCosts

_HOUR_MS = 3_600_000


@dataclass(slots=True)
class SitePrices:
    """What work on nodes of the site costs, by currency, in three ways."""

    owned: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """Of the hours of the work, what is paid whether they are used or not."""
    marginal: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """What the work adds."""
    used: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """``marginal``, and ``owned`` with its part of the hours in which nobody used the nodes."""
    reason: str = ""
    """Why none of it is known; empty: it is."""
    marginal_reason: str = ""
    """Why ``marginal`` is not known, and is in ``owned``; empty: it is."""
    used_reason: str = ""
    """Why ``used`` is not known; empty: it is."""


def site_prices(
    work: Mapping[str, Decimal], costs: SiteCosts, utilisation: Mapping[str, Decimal], gpus: Mapping[str, int]
) -> SitePrices:
    """Of so many milliseconds of nodes of each group, by the prices of now, whatever they were then.

    ``utilisation``: of each group, the part of its hours that was used; missing: it is not known. ``gpus``: of each of
    its nodes; missing: they have different numbers.
    """
    hours, found = {group.name: group.hour for group in costs.groups}, SitePrices()
    for group, milliseconds in sorted(work.items()):
        if (hour := hours.get(group)) is None:
            return SitePrices(reason=f"[site.cost] has no group {group} any more")
        if hour.per_gpu and group not in gpus:
            return SitePrices(
                reason=f"nodes of group {group} have different numbers of GPUs, or are not in Slurm any more"
            )
        hour, node_hours = hour.of_node(gpus.get(group, 0)), milliseconds / _HOUR_MS
        currency = hour.currency
        found.owned[currency] += node_hours * hour.owned
        found.marginal[currency] += node_hours * (hour.marginal or 0)
        used = hour.used(utilisation.get(group, Decimal(0)))
        found.used[currency] += node_hours * (used or 0)
        if used is None:
            found.used_reason = f"how much of group {group} was used is not known"
        if hour.marginal is None:
            found.marginal_reason = f"[site.cost.{group}] does not say what an hour of use adds"
    return found


def break_even(here: SitePrices, there: Mapping[str, Decimal], rates: Rates) -> tuple[Decimal | None, str]:
    """The utilisation at which the work costs as much here as there; None: there is none, for this reason.

    Both are of the same work. Several currencies are compared at the site's rates.
    """
    owned, marginal, rent = (
        [rates.comparable(amount, currency) for currency, amount in some.items()]
        for some in (here.owned, here.marginal, there)
    )
    if here.reason or not owned or not rent:
        return None, here.reason or "costs are not known at both places"
    currencies = sorted({currency for currency, _ in (*owned, *rent)})
    if len(currencies) > 1:
        return None, f"there is no rate between {' and '.join(currencies)}"
    found = HourCost(currencies[0], _sum(owned), _sum(marginal)).break_even(_sum(rent))
    return found, "" if found is not None else "renting is cheaper however much is used"


def _sum(amounts: Iterable[tuple[str, Decimal]]) -> Decimal:
    return sum((amount for _, amount in amounts), Decimal(0))
