"""What an added GPU (or CPU) costs an hour: bought, by ``[site.cost]`` of burstd.toml, or rented by a commitment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.billing.rates import Rates
from burstd.domain.billing.site_cost import HourCost, NodeGroup, SiteCosts
from burstd.simulate.traces.window import Unit

BOUGHT = "bought"
_COMMITMENT = re.compile(r"([\w.+-]{1,20})=(\d{1,9}(?:\.\d{1,9})?)(?: ([A-Z]{3}))?", re.ASCII)


class BuyOrRentError(ValueError):
    """Such a comparison is not possible; the message says why, and what is to be given."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to have more GPUs (or CPUs) for good, and what an hour of one costs."""

    name: str
    hour: HourCost


@dataclass(frozen=True, slots=True)
class Commitment:
    """A price that is paid for all hours, used or not, of one GPU (or CPU)."""

    name: str
    price: Decimal
    currency: str
    """Empty: that of the clouds."""


@dataclass(frozen=True, slots=True)
class Prices:
    """All in one currency."""

    currency: str
    ways: tuple[Way, ...]
    cloud_worth: Decimal
    """What one unit of the clouds' currency is worth in it."""
    note: str = ""
    """At which rates."""


def parse_commitments(texts: Iterable[str]) -> tuple[Commitment, ...]:
    """Those of ``--committed``: ``1y=1.20``, ``1y=1.20 EUR``. Raises BuyOrRentError."""
    found: dict[str, Commitment] = {}
    for text in texts:
        match = _COMMITMENT.fullmatch(text)
        if match is None:
            raise BuyOrRentError(
                f"--committed {text!r} is no price: write NAME=PRICE, such as '1y=1.20' or '1y=1.20 EUR'"
            )
        name, price, currency = match.groups(default="")
        if name in found or name == BOUGHT:
            raise BuyOrRentError(f"--committed {text!r}: there is another {name!r}; give it another name")
        found[name] = Commitment(name, Decimal(price), currency)
    return tuple(found.values())


def prices_of(
    group: NodeGroup | None, commitments: Sequence[Commitment], cloud: str, rates: Rates, node_size: int
) -> Prices:
    """In the currency of all, else in that of the rates.

    ``cloud``: currency of the clouds' prices; ``node_size``: GPUs (or CPUs) of a node of the group. Raises
    BuyOrRentError.
    """
    ways = [Way(BOUGHT, group.hour.of_gpu(node_size))] if group else []
    ways += [Way(one.name, HourCost(one.currency or cloud, one.price, Decimal(0), per_gpu=True)) for one in commitments]
    places = {cloud: "prices of clouds are"}
    for way in ways:
        place = f"[site.cost.{group.name}] is" if group and way.name == BOUGHT else f"--committed {way.name} is"
        places.setdefault(way.hour.currency, place)
    worths = _worths(places, rates)
    currency = cloud if len(places) == 1 else rates.currency
    shown = ", ".join(f"1 {one} = {worth} {currency}" for one, worth in worths.items() if one != currency)
    return Prices(
        currency,
        tuple(Way(way.name, way.hour.times(worths[way.hour.currency], currency)) for way in ways),
        worths[cloud],
        f"rates of {rates.date}: {shown}" if shown else "",
    )


def _worths(places: Mapping[str, str], rates: Rates) -> dict[str, Decimal]:
    if len(places) == 1:
        return dict.fromkeys(places, Decimal(1))
    found: dict[str, Decimal] = {}
    for currency, place in places.items():
        worth = rates.converted(Decimal(1), currency)
        if worth is None:
            others = ", ".join(f"{text} in {other}" for other, text in places.items() if other != currency)
            raise BuyOrRentError(
                f"{place} in {currency}, {others}: say what {currency} is worth in [rates] of burstd.toml (--config)"
            )
        found[currency] = worth
    return found


def chosen_group(costs: SiteCosts, name: str, unit: Unit) -> NodeGroup | None:
    """The group of ``--site-cost``, or the only one; None: there is none. Raises BuyOrRentError."""
    groups = {group.name: group for group in costs.groups}
    known = ", ".join(groups) or "none"
    if name and name not in groups:
        raise BuyOrRentError(f"--site-cost {name}: burstd.toml (--config) has no [site.cost.{name}], it has {known}")
    if not name and len(groups) > 1:
        raise BuyOrRentError(f"[site.cost] has several groups: give --site-cost with one of {known}")
    found = groups.get(name) or next(iter(groups.values()), None)
    if found is not None and found.hour.per_gpu and unit == "cpu":
        raise BuyOrRentError(f"[site.cost.{found.name}] has a price of GPUs, and the trace has none: give node_hour")
    return found
