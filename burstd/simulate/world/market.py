"""What the replay's clouds sell: pools, offers with prices and boot times, when they are sold out, what spot loses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random

from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from burstd.simulate.traces.window import Unit, seeded_random

MACHINE_SIZES: Mapping[Unit, tuple[int, ...]] = {"gpu": (1, 2, 4, 8), "cpu": (4, 16, 64)}
PARTITION = "burst"
SITE_PARTITION = "site"


@dataclass(frozen=True, slots=True)
class MarketOffer:
    """One offer and how its cloud behaves."""

    offer: Offer
    boot_s: float
    """From the launch until jobs may start on it."""
    stockout: float = 0.0
    """Share of the time in which there is none to be had."""
    stockout_s: float = 3600.0
    """How long that lasts, on average."""
    losses_per_hour: float = 0.0
    """How often a machine is taken back, on average; spot only."""


@dataclass(frozen=True, slots=True)
class Market:
    """Pools and what fills them. Pools without slots of their own grow as they are needed."""

    pools: tuple[Pool, ...]
    market_offers: tuple[MarketOffer, ...]
    notes: tuple[str, ...] = ()

    def some_pool_fits(self, nodes: int, units: int, unit: Unit) -> bool:
        """Whether some pool could run such a job."""
        return any(
            size_of(pool.shape, unit) >= units and (not pool.slots or len(pool.slots) >= nodes) for pool in self.pools
        )

    @property
    def currency(self) -> str:
        """Of its prices; they are all in one."""
        return self.market_offers[0].offer.currency if self.market_offers else "EUR"


@dataclass(frozen=True, slots=True)
class OfferTerms:
    """Of the offers that are made for pools without any: one on demand and, with a price, one spot for each pool."""

    price: Decimal
    """For a GPU (or CPU) and hour."""
    boot_s: float = 180.0
    currency: str = "EUR"
    stockout: float = 0.0
    stockout_s: float = 3600.0
    spot_price: Decimal | None = None
    losses_per_hour: float = 0.05

    def pool_offers(self, pool: str, provider: str, instance_type: str, shape: Shape, size: int) -> list[MarketOffer]:
        """Those of a pool whose machines have ``size`` GPUs (or CPUs)."""
        made = [self._market_offer(pool, provider, instance_type, shape, self.price * size, spot=False)]
        if self.spot_price is not None:
            made.append(self._market_offer(pool, provider, instance_type, shape, self.spot_price * size, spot=True))
        return made

    def _market_offer(
        self, pool: str, provider: str, kind: str, shape: Shape, price: Decimal, *, spot: bool
    ) -> MarketOffer:
        offer = Offer(provider, "region", "zone", kind or pool, spot, shape, price, self.currency)
        losses = self.losses_per_hour if spot else 0.0
        return MarketOffer(offer, self.boot_s, self.stockout, self.stockout_s, losses)


def size_of(shape: Shape, unit: Unit) -> int:
    """GPUs (or CPUs) of a machine."""
    return shape.gpus() if unit == "gpu" else shape.cpus


def shape_of(size: int, unit: Unit) -> Shape:
    """Of a machine with so many GPUs (and a CPU for each), or CPUs. Traces are replayed without memory."""
    return Shape(size, size * 1024, (Gres("gpu", "", size),) if unit == "gpu" else ())


def default_market(unit: Unit, terms: OfferTerms, provider: str = "cloud") -> Market:
    """Pools of machines with 1, 2, 4 and 8 GPUs (4, 16 and 64 CPUs), at the same price for each GPU (or CPU)."""
    pools: list[Pool] = []
    market_offers: list[MarketOffer] = []
    markets = ("on-demand",) if terms.spot_price is None else ("on-demand", "spot")
    for size in MACHINE_SIZES[unit]:
        name, shape = f"{unit}{size}", shape_of(size, unit)
        pools.append(Pool(name, (), (PARTITION,), shape, (OfferRule(provider, (name,), (), markets),)))
        market_offers += terms.pool_offers(name, provider, name, shape, size)
    return Market(tuple(pools), tuple(market_offers))


@dataclass(slots=True)
class _StockoutTimes:
    random: Random
    edges: list[float] = field(default_factory=list)
    """Moments at which it goes from there to sold out and back, in turn."""


class StockoutModel:
    """When offers are sold out. The same for all chains of a replay: it hangs on the seed and the time alone."""

    def __init__(self, market_offers: Sequence[MarketOffer], seed: int, start: float) -> None:
        self._market_offers = {ware.offer.id: ware for ware in market_offers}
        self._start = start
        self._sold = {
            w.offer.id: _StockoutTimes(seeded_random(seed, w.offer.id)) for w in market_offers if 0.0 < w.stockout < 1.0
        }

    def market_offer(self, offer: Offer) -> MarketOffer:
        """The ware of an offer."""
        return self._market_offers[offer.id]

    def is_sold_out(self, offer: Offer, now: float) -> bool:
        """Whether a launch at this time is refused for want of machines."""
        sold, ware = self._sold.get(offer.id), self._market_offers[offer.id]
        if sold is None:
            return ware.stockout >= 1.0
        there_s = ware.stockout_s * (1.0 - ware.stockout) / ware.stockout
        while not sold.edges or sold.edges[-1] <= now:
            last = sold.edges[-1] if sold.edges else self._start
            mean_s = ware.stockout_s if len(sold.edges) % 2 else there_s
            sold.edges.append(last + sold.random.expovariate(1.0 / mean_s))
        return bisect_right(sold.edges, now) % 2 == 1
