"""``[rates]``: what other currencies are worth, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from burstd.domain.billing.rates import Rates
from burstd.settings.faults import SettingsFault
from burstd.settings.fields import CurrencyCode, Section

if TYPE_CHECKING:
    from burstd.settings.sections import Settings
    from burstd.settings.toml_source import KeyPath

_OLD_DAYS = 40


Rate = Annotated[Decimal, Field(ge=Decimal("0.000001"), le=1_000_000, allow_inf_nan=False, strict=False)]


class RateSettings(Section):
    """``[rates]``."""

    currency: CurrencyCode
    date: Annotated[date, Field(strict=True)]
    worth: Annotated[dict[CurrencyCode, Rate], Field(min_length=1)]
    """By another currency, what one unit of it is worth in ``currency``."""

    @model_validator(mode="after")
    def _is_of_others(self) -> RateSettings:
        if self.currency in self.worth:
            raise ValueError(f"'worth' must not name {self.currency}: it has what other currencies are worth in it")
        return self

    def rates(self) -> Rates:
        """As the rest of burstd has it."""
        return Rates(self.currency, self.date, self.worth)


def old_rates(settings: Settings) -> Iterator[SettingsFault]:
    """That the rates are old, or of a day to come, if they are: burstd starts, as it may be the clock that is wrong."""
    days = 0 if settings.rates is None else (datetime.now().astimezone().date() - settings.rates.date).days
    place: KeyPath = ("rates", "date")
    if days > _OLD_DAYS:
        text = f"is {days} days ago: set the rates of now, and their date"
        yield SettingsFault(place, text, settings.source.line(place))
    elif days < 0:
        text = "is in the future: set the day of which the rates are, or this machine's clock"
        yield SettingsFault(place, text, settings.source.line(place))


def currency_faults(settings: Settings, currencies: Mapping[str, str]) -> Iterator[SettingsFault]:
    """Of pools whose offers would be compared, and are paid in two currencies without a rate.

    Pools of one partition are compared. ``currencies``: by provider, as far as its settings have one.
    """
    rates = Rates() if settings.rates is None else settings.rates.rates()
    groups: dict[str, list[tuple[KeyPath, str]]] = {}
    for name, pool in settings.pools.items():
        for i, offer in enumerate(pool.offers):
            for partition in dict.fromkeys(pool.partitions):
                place: KeyPath = ("pools", name, "offers", i, "provider")
                groups.setdefault(partition, []).append((place, offer.provider))
    said: set[KeyPath] = set()
    for partition, offers in groups.items():
        paid = [
            (place, provider, currency, rates.comparable(Decimal(0), currency)[0])
            for place, provider in offers
            if (currency := currencies.get(provider))
        ]
        for place, provider, currency, unit in paid:
            _, first, other, first_unit = paid[0]
            if unit == first_unit or place in said:
                continue
            said.add(place)
            missing = " and ".join(sorted({currency, other} - {rates.currency, *rates.worth}))
            need = (
                f"a rate for {missing} in [rates]"
                if rates.currency
                else f"[rates], what {currency} is worth in {other}"
            )
            text = (
                f"names {provider}, whose prices are in {currency}; those of {first}, in partition {partition} too, "
                f"are in {other}. Prices are compared: set {need}"
            )
            yield SettingsFault(place, text)
