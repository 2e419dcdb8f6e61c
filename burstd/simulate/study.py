"""A replay as it is asked for: a trace, a window, a site, clouds and chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.planner.timeouts import Tuning
from burstd.settings import Plugins, Policies, Settings, load, pools
from burstd.simulate.policy_chains import BASELINES, Chain, make_chain
from burstd.simulate.replay import replay
from burstd.simulate.report.result import Replay, Result
from burstd.simulate.run import World
from burstd.simulate.traces.read import AUTO, Trace, read
from burstd.simulate.traces.window import Unit, WindowError, Workload, cut, nodes_for_load, unit_of
from burstd.simulate.world.market import Market, Terms, Ware, plain_market, size_of
from burstd.simulate.world.offers_file import market_of

NODE_SIZE: Mapping[Unit, int] = {"gpu": 8, "cpu": 64}
"""GPUs (or CPUs) of a node of the site."""
PRICE: Mapping[Unit, Decimal] = {"gpu": Decimal("2.50"), "cpu": Decimal("0.05")}
"""Of a GPU (or CPU) and hour; about what clouds ask for one of some years ago."""


@dataclass(frozen=True, slots=True)
class Study:
    """The question. Lengths of time in seconds; None: the default."""

    trace: Path
    format: str = AUTO
    chains: tuple[str, ...] = ()
    """Empty: the site's own, and all baselines."""
    sets: tuple[str, ...] = ()
    """``POLICY.KEY=VALUE``."""
    config: Path | None = None
    """burstd.toml: its pools, its policies with their settings, its times."""
    offers: Path | None = None
    start: float | None = None
    days: float | None = 14.0
    """None: to the end of the trace."""
    nodes: int | None = None
    units: int | None = None
    """GPUs (or CPUs) of the whole site, in place of ``nodes``."""
    size: int | None = None
    load: float = 1.0
    """Where neither is given: the window's work over what the site could do in it."""
    boot_s: float = 180.0
    staging_s: float = 120.0
    price: Decimal | None = None
    spot_price: Decimal | None = None
    losses_per_hour: float = 0.05
    stockout: float = 0.0
    tick_s: float = 60.0
    bind_depth: int | None = None
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is needed to answer it."""

    study: Study
    trace: Trace
    workload: Workload
    world: World
    chains: tuple[Chain, ...]

    def answer(self, tell: Callable[[Result], None] = lambda _: None) -> Replay:
        """Replays every chain. Raises ReplayError."""
        workload, world = self.workload, self.world
        word = f"{workload.unit.upper()}s"
        able = world.nodes * world.size * (workload.window.end - workload.window.start)
        return Replay(
            title=f"{self.study.trace.name}, {_date(workload.window.start)} to {_date(workload.window.end)}",
            trace=f"{self.study.trace.name} ({self.trace.format})",
            site=f"{world.nodes} nodes with {world.size} {word} each (load {workload.work_s / able:.2f})",
            cloud=_cloud(world),
            window=workload.window,
            seed=world.seed,
            results=replay(workload, world, self.chains, tell),
            notes=(*self.trace.notes, *workload.notes, *world.market.notes, *_notes(world)),
            site_size=world.nodes * world.size,
            site_unit=word,
        )


def prepare(study: Study, plugins: Plugins | None = None, trace: Trace | None = None) -> Prepared:
    """Reads and checks everything, but a trace that is given.

    Raises TraceError, SettingsError, ChainError, WindowError.
    """
    settings = load(study.config, check_files=False) if study.config is not None else Settings(cluster="replay")
    if plugins is None:
        folder = settings.policies.folder if study.config is not None else None
        plugins = Plugins.installed(folder)
    texts = study.chains or (",".join(settings.policies.chain or Policies().chain), *BASELINES)
    chains = tuple(make_chain(text, settings, study.sets, plugins) for text in texts)
    trace = trace if trace is not None else read(study.trace, study.format)
    unit = unit_of(trace)
    size = study.size or NODE_SIZE[unit]
    workload = cut(trace, study.start, study.days, size, unit, study.seed)
    tuning = settings.tuning if study.config is not None else Tuning()
    if study.bind_depth is not None:
        tuning = replace(tuning, bind_depth=study.bind_depth)
    world = World(
        nodes=_nodes(study, workload, size), size=size, market=_market(study, settings, unit),
        staging_s=study.staging_s, tick_s=study.tick_s, seed=study.seed, tuning=tuning,
    )  # fmt: skip
    return Prepared(study, trace, workload, world, chains)


def _nodes(study: Study, workload: Workload, size: int) -> int:
    if study.nodes is not None:
        return study.nodes
    if study.units is None:
        return nodes_for_load(workload, study.load, size)
    if study.units % size:
        raise WindowError(f"{study.units} {workload.unit.upper()}s are no whole number of nodes with {size} each")
    return study.units // size


def _market(study: Study, settings: Settings, unit: Unit) -> Market:
    terms = Terms(
        study.price if study.price is not None else PRICE[unit], study.boot_s, stockout=study.stockout,
        spot_price=study.spot_price, losses_per_hour=study.losses_per_hour,
    )  # fmt: skip
    if study.config is None or not settings.pools:
        return market_of(study.offers, unit, study.boot_s) if study.offers else plain_market(unit, terms)
    from burstd.slurm.hostlist import expand  # noqa: PLC0415  # needed with pools of the site's own only

    own = pools(settings, expand)
    if study.offers:
        return market_of(study.offers, unit, study.boot_s, own)
    return _priced(own, terms, unit)


def _priced(own: Mapping[str, Pool], terms: Terms, unit: Unit) -> Market:
    """Offers for pools of burstd.toml: for each of their rules one of the pool's own size."""
    made: list[Pool] = []
    wares: list[Ware] = []
    left_out: list[str] = []
    for pool in own.values():
        size = size_of(pool.shape, unit)
        if not size:
            left_out.append(pool.name)
            continue
        rules: list[OfferRule] = []
        for provider in dict.fromkeys(rule.provider for rule in pool.rules):
            found = terms.wares(pool.name, provider, pool.name, pool.shape, size)
            rules.append(OfferRule(provider, (pool.name,), (), tuple(ware.offer.market for ware in found)))
            wares += found
        made.append(replace(pool, rules=tuple(rules)))
    notes = [f"pools without GPUs are left out: {', '.join(left_out)}"] if left_out else []
    return Market(tuple(made), tuple(wares), tuple(notes))


def _cloud(world: World) -> str:
    shown: dict[str, None] = {}
    for ware in world.market.wares:
        offer = ware.offer
        price = f"{offer.price:f}".rstrip("0").rstrip(".") if "." in f"{offer.price:f}" else f"{offer.price:f}"
        kind = " spot" if offer.spot else ""
        shown[f"{offer.instance_type}{kind} {price} {offer.currency}/h"] = None
    return ", ".join(shown)


def _notes(world: World) -> list[str]:
    wares = world.market.wares
    boots = sorted({ware.boot_s for ware in wares})
    told = [f"{seconds:g} s" for seconds in (boots[0], boots[-1])] if boots else []
    notes = [f"machines boot for {' to '.join(dict.fromkeys(told))}" if told else "there is no cloud"]
    if world.staging_s:
        notes.append(
            f"the input of a job is in the cloud's store {world.staging_s:g} s after its submission; the upload"
            " goes on beside the boot, and starts on the site do not wait for it"
        )
    if any(ware.stockout for ware in wares):
        notes.append(f"offers are sold out for up to {max(w.stockout for w in wares):.0%} of the time")
    if any(ware.losses_per_hour for ware in wares):
        most = max(ware.losses_per_hour for ware in wares)
        notes.append(f"spot machines are taken back {most:g} times an hour on average; their jobs begin anew")
    notes.append("the site is empty when the window begins; jobs of the trace that had ended by then are known")
    return notes


def _date(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
