"""``[site.cost.NAME]``: what nodes of the site's own cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from burstd.domain.billing.site_cost import CostParts, NodeGroup, SiteCosts, plain_hour
from burstd.settings.faults import SettingsFault
from burstd.settings.fields import CurrencyCode, Name, Section

Amount = Annotated[Decimal, Field(ge=0, le=1_000_000_000, allow_inf_nan=False, strict=False)]
Power = Annotated[Decimal, Field(ge=0, le=1000, allow_inf_nan=False, strict=False)]
_WHOLE = ("node_hour", "gpu_hour")
_BOUGHT = ("price", "life_years")
_BESIDE = ("housing_month", "staff_month")


class NodeCostSettings(Section):
    """``[site.cost.NAME]``: of one node (with ``gpu_hour``: of one GPU); see ``burstd.domain.billing.site_cost``."""

    nodes: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    currency: CurrencyCode = "EUR"
    node_hour: Amount | None = None
    gpu_hour: Amount | None = None
    price: Amount | None = None
    life_years: Annotated[Decimal, Field(gt=0, le=50, allow_inf_nan=False, strict=False)] | None = None
    kw: Power | None = None
    kw_idle: Power | None = None
    pue: Annotated[Decimal, Field(ge=1, le=10, allow_inf_nan=False, strict=False)] = Decimal(1)
    energy_kwh: Amount | None = None
    housing_month: Amount | None = None
    staff_month: Amount | None = None

    def given(self, *names: str) -> list[str]:
        """Those of the keys that are set."""
        return [name for name in names if getattr(self, name) is not None]

    @property
    def energy(self) -> Decimal | None:
        """Of an hour of use; None: it is not known."""
        if self.kw is None or self.energy_kwh is None:
            return None
        return (self.kw - (self.kw_idle or 0)) * self.pue * self.energy_kwh

    def group(self, name: str) -> NodeGroup:
        """As the rest of burstd has it."""
        whole = self.gpu_hour if self.node_hour is None else self.node_hour
        if whole is not None:
            hour = plain_hour(self.currency, whole, self.energy, per_gpu=self.gpu_hour is not None)
        else:
            parts = ("price", "life_years", "kw", "kw_idle", "pue", "energy_kwh", "housing_month", "staff_month")
            hour = CostParts(**{part: getattr(self, part) for part in self.given(*parts)}).hour(self.currency)
        return NodeGroup(name, self.nodes, hour)


class SiteSettings(Section):
    """``[site]``."""

    cost: dict[Name, NodeCostSettings] = Field(default_factory=dict)

    def costs(self) -> SiteCosts:
        """As the rest of burstd has them."""
        return SiteCosts(tuple(group.group(name) for name, group in self.cost.items()))


def site_cost_faults(costs: Mapping[str, NodeCostSettings]) -> Iterator[SettingsFault]:
    """Of prices that say too much, or too little."""
    for name, group in costs.items():
        place = ("site", "cost", name)
        whole = group.given(*_WHOLE)
        parts = group.given(*_BOUGHT, *_BESIDE)
        if len(whole) + bool(parts) > 1:
            text = f"has {' and '.join([*whole, *parts])}: give node_hour, or gpu_hour, or the parts"
            yield SettingsFault(place, text)
        elif not whole and group.given(*_BOUGHT) != [*_BOUGHT]:
            yield SettingsFault(place, "needs node_hour, or gpu_hour, or price and life_years")
        if (group.kw is None) != (group.energy_kwh is None):
            yield SettingsFault(place, "needs both of kw and energy_kwh, or none")
        elif (group.kw_idle or 0) > (group.kw or 0):
            yield SettingsFault((*place, "kw_idle"), "must not be more than kw")
        elif whole and (group.energy or 0) > getattr(group, whole[0]):
            yield SettingsFault((*place, whole[0]), "must not be less than the energy in it: kw x pue x energy_kwh")
