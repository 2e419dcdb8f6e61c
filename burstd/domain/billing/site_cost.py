"""What nodes of the site's own cost: an hour that is owned, an hour of use, and when renting is cheaper.

Prices are of one node, or of one GPU (``per_gpu``), in one currency. An hour costs

    owned     price / (life_years x 8760) + (housing_month + staff_month) / 730 + kw_idle x pue x energy_kwh
    marginal  (kw - kw_idle) x pue x energy_kwh

``owned`` is paid in every hour, used or not; ``marginal`` is what an hour of use adds. With the part of the hours that
are used, an hour of use costs owned / utilisation + marginal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase

HOURS_OF_YEAR = 8760
HOURS_OF_MONTH = 730


@dataclass(frozen=True, slots=True)
class HourCost:
    """Of a node, or of each of its GPUs."""

    currency: str
    owned: Decimal
    """Paid in every hour, used or not."""
    marginal: Decimal | None
    """What an hour of use adds; None: it is not known, and is in ``owned``."""
    per_gpu: bool = False

    @property
    def full(self) -> Decimal:
        """Of an hour of use where every hour is used: the least that an hour of use costs in all."""
        return self.owned + (self.marginal or 0)

    def used(self, utilisation: Decimal) -> Decimal | None:
        """Of an hour of use, where such a part of all hours is used (above 0, 1 at most); None: none is."""
        return self.owned / utilisation + (self.marginal or 0) if utilisation > 0 else None

    def break_even(self, price: Decimal) -> Decimal | None:
        """The part of all hours that must be used for an hour of use to cost what renting does.

        ``price``: of an hour that is rented, in ``currency``. None: renting is cheaper however much is used.
        """
        left = price - (self.marginal or 0)
        return self.owned / left if left >= self.owned and left > 0 else None

    def of_node(self, gpus: int) -> HourCost:
        """Of a whole node with so many GPUs."""
        return replace(self.times(Decimal(gpus)), per_gpu=False) if self.per_gpu else self

    def of_gpu(self, gpus: int) -> HourCost:
        """Of each GPU of a node with so many."""
        return self if self.per_gpu else replace(self.times(1 / Decimal(gpus)), per_gpu=True)

    def times(self, factor: Decimal, currency: str = "") -> HourCost:
        """So many times as much, in another currency where one is given."""
        marginal = None if self.marginal is None else self.marginal * factor
        return replace(self, currency=currency or self.currency, owned=self.owned * factor, marginal=marginal)


@dataclass(frozen=True, slots=True)
class CostParts:
    """What a node costs, in parts; money in one currency."""

    price: Decimal = Decimal(0)
    """To buy it, with its part of network and storage."""
    life_years: Decimal = Decimal(1)
    """For which it is used."""
    kw: Decimal = Decimal(0)
    """Power that it draws at work, in kW: the measured mean, or rated."""
    kw_idle: Decimal = Decimal(0)
    """The same while it is idle."""
    pue: Decimal = Decimal(1)
    """Power of the whole building for each kW of its machines."""
    energy_kwh: Decimal = Decimal(0)
    """Price of a kWh."""
    housing_month: Decimal = Decimal(0)
    """Floor, racks and cooling, for a month of 730 hours."""
    staff_month: Decimal = Decimal(0)
    """Its part of the staff, for such a month."""

    def hour(self, currency: str) -> HourCost:
        """By the formula above."""
        energy = self.pue * self.energy_kwh
        owned = (
            self.price / (self.life_years * HOURS_OF_YEAR)
            + (self.housing_month + self.staff_month) / HOURS_OF_MONTH
            + self.kw_idle * energy
        )
        return HourCost(currency, owned, (self.kw - self.kw_idle) * energy)


def plain_hour(currency: str, price: Decimal, energy: Decimal | None, *, per_gpu: bool) -> HourCost:
    """Of an hour whose price is given whole. ``energy``: what of it an hour of use adds; None: that is not known."""
    return HourCost(currency, price - (energy or 0), energy, per_gpu)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of the site that cost the same."""

    name: str
    patterns: tuple[str, ...]
    """Of their names, as in the shell."""
    hour: HourCost


@dataclass(frozen=True, slots=True)
class SiteCosts:
    """``[site.cost]``: all groups, in their order; none: the site has set no prices."""

    groups: Sequence[NodeGroup] = ()

    def group_of(self, node: str) -> NodeGroup | None:
        """The first that has the node; None: what it costs is not known."""
        named = (group for group in self.groups if any(fnmatchcase(node, pattern) for pattern in group.patterns))
        return next(named, None)
