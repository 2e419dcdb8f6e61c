"""The file of ``burstctl simulate --offers``: what the clouds of a replay sell.

    currency = "EUR"
    [[offers]]
    gpus = 8                 # or cpus; a pool is made for each size
    provider = "aws"         # these four are what policies and breakers know an offer by
    region = "eu-central-1"
    zone = "a"
    instance_type = "p4d.24xlarge"
    price = "24.00"          # of the whole machine, for an hour
    boot_s = 240
    spot = false
    stockout = 0.1           # share of the time in which there is none ...
    stockout_s = 3600        # ... for so long at a time, on average
    losses_per_hour = 0.05   # how often a spot machine is taken back, on average

With the pools of burstd.toml an offer names the one that it fills, ``pool = "gpu"``, in place of its size.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.settings.faults import SettingsError, SettingsFault, faults_of_validation
from burstd.settings.fields import Count, Seconds, Section
from burstd.settings.toml_source import TomlSource, key_lines
from burstd.simulate.traces.window import Unit
from burstd.simulate.world.market import PARTITION, Market, MarketOffer, shape_of

Share = Annotated[float, Field(ge=0, le=1)]


class OfferTable(Section):
    """``[[offers]]``."""

    pool: str = ""
    gpus: Count | None = None
    cpus: Count | None = None
    provider: str = "cloud"
    region: str = "region"
    zone: str = "zone"
    instance_type: str = ""
    price: Annotated[Decimal, Field(ge=0)]
    boot_s: Seconds | None = None
    spot: bool = False
    stockout: Share = 0.0
    stockout_s: Seconds = 3600.0
    losses_per_hour: Annotated[float, Field(ge=0)] = 0.0


class OffersFile(Section):
    """The whole file."""

    currency: str = "EUR"
    offers: Annotated[tuple[OfferTable, ...], Field(min_length=1)]


def read_market(path: Path, unit: Unit, boot_s: float, pools: Mapping[str, Pool] | None = None) -> Market:
    """What is sold, and the pools that it fills: those of burstd.toml, or one for each size.

    ``boot_s``: of offers that do not say. Raises SettingsError.
    """
    source, table = _read(path)
    made: dict[str, Pool] = dict(pools or {})
    market_offers: list[MarketOffer] = []
    faults: list[SettingsFault] = []
    for place, offer in enumerate(table.offers):
        fault = _fault(offer, unit, pools)
        if fault:
            faults.append(SettingsFault(("offers", place), fault))
            continue
        size = offer.gpus if unit == "gpu" else offer.cpus
        name = offer.pool or f"{unit}{size}"
        if pools is None:
            made.setdefault(name, Pool(name, (), (PARTITION,), shape_of(size or 1, unit)))
        pool = made[name]
        ware = _market_offer(offer, table.currency, pool, boot_s)
        if pools is None:
            rule = OfferRule(offer.provider, (ware.offer.instance_type,), (offer.zone,), (ware.offer.market,))
            made[name] = pool = replace(pool, rules=(*pool.rules, rule))
        if not any(rule.allows(ware.offer) for rule in pool.rules):
            faults.append(SettingsFault(("offers", place), f"pool {name} has no rule that allows {ware.offer.id}"))
        if ware.offer.id in {other.offer.id for other in market_offers}:
            faults.append(SettingsFault(("offers", place), f"{ware.offer.id} stands there twice"))
        market_offers.append(ware)
    if faults:
        raise SettingsError(source, faults)
    return Market(tuple(made.values()), tuple(market_offers))


def _read(path: Path) -> tuple[TomlSource, OffersFile]:
    source = TomlSource(str(path))
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(source, [SettingsFault((), f"cannot be read ({error.strerror})")]) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(source, [SettingsFault((), f"is no TOML: {error}")]) from None
    source = TomlSource(str(path), key_lines(text))
    try:
        return source, OffersFile.model_validate(data)
    except ValidationError as error:
        raise SettingsError(source, faults_of_validation(error, OffersFile, data)) from None


def _fault(offer: OfferTable, unit: Unit, pools: Mapping[str, Pool] | None) -> str:
    if pools is not None:
        known = ", ".join(sorted(pools)) or "none"
        return "" if offer.pool in pools else f"must name its pool of burstd.toml with 'pool', one of: {known}"
    if offer.pool:
        return "names a pool, but no burstd.toml is given (--config)"
    if (offer.gpus if unit == "gpu" else offer.cpus) is None:
        return f"must say its size with '{unit}s': jobs of the trace are counted by {unit.upper()}s"
    return ""


def _market_offer(offer: OfferTable, currency: str, pool: Pool, boot_s: float) -> MarketOffer:
    kind = offer.instance_type or pool.name
    made = Offer(offer.provider, offer.region, offer.zone, kind, offer.spot, pool.shape, offer.price, currency)
    return MarketOffer(made, offer.boot_s or boot_s, offer.stockout, offer.stockout_s, offer.losses_per_hour)
