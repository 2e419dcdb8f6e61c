"""A replay as it is asked for: a trace, a window, a site, clouds and chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.planner.timeouts import Tuning
from burstd.settings import PluginRegistry, PolicyChainSettings, Settings, build_pools, load_settings
from burstd.simulate.policy_chains import BASELINES, PolicyChain, make_policy_chain
from burstd.simulate.replay import replay_chains
from burstd.simulate.report.result import ChainResult, ReplayResult
from burstd.simulate.run import Scenario
from burstd.simulate.traces.read import AUTO, Trace, read_trace
from burstd.simulate.traces.window import Unit, WindowError, Workload, cut_window, nodes_for_load, unit_of
from burstd.simulate.world.market import Market, MarketOffer, OfferTerms, default_market, size_of
from burstd.simulate.world.offers_file import read_market

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
    policy_overrides: tuple[str, ...] = ()
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
class PreparedStudy:
    """All that is needed to answer it."""

    study: Study
    trace: Trace
    workload: Workload
    scenario: Scenario
    chains: tuple[PolicyChain, ...]
    settings: Settings

    def run_study(self, on_result: Callable[[ChainResult], None] = lambda _: None) -> ReplayResult:
        """Replays every chain. Raises ReplayError."""
        world = self.scenario
        return ReplayResult(
            title=self.title,
            trace=self.trace_text,
            site=self.site_text,
            cloud=self.cloud_text,
            window=self.workload.window,
            seed=world.seed,
            results=replay_chains(self.workload, world, self.chains, on_result),
            notes=self.notes,
            site_size=world.nodes * world.node_size,
            site_unit=self.unit_word,
        )

    @property
    def unit_word(self) -> str:
        """What the site is counted in: ``GPUs``."""
        return f"{self.workload.unit.upper()}s"

    @property
    def title(self) -> str:
        """``jobs.txt, 2026-03-01 to 2026-03-15``."""
        window = self.workload.window
        return f"{self.study.trace.name}, {_date(window.start)} to {_date(window.end)}"

    @property
    def trace_text(self) -> str:
        """The file and its format."""
        return f"{self.study.trace.name} ({self.trace.format})"

    @property
    def site_text(self) -> str:
        """``31 nodes with 8 GPUs each (load 1.00)``."""
        world, window = self.scenario, self.workload.window
        capacity_s = world.nodes * world.node_size * (window.end - window.start)
        load = self.workload.work_s / capacity_s
        return f"{world.nodes} nodes with {world.node_size} {self.unit_word} each (load {load:.2f})"

    @property
    def cloud_text(self) -> str:
        """Machines and their prices."""
        return _describe_offers(self.scenario)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, in sentences."""
        return (*self.trace.notes, *self.workload.notes, *self.scenario.market.notes, *_notes(self.scenario))


def prepare_study(study: Study, plugins: PluginRegistry | None = None, trace: Trace | None = None) -> PreparedStudy:
    """Reads and checks everything, but a trace that is given.

    Raises TraceError, SettingsError, ChainError, WindowError.
    """
    settings = (
        load_settings(study.config, check_files=False) if study.config is not None else Settings(cluster="replay")
    )
    if plugins is None:
        folder = settings.policies.folder if study.config is not None else None
        plugins = PluginRegistry.installed(folder)
    texts = study.chains or (",".join(settings.policies.chain or PolicyChainSettings().chain), *BASELINES)
    chains = tuple(make_policy_chain(text, settings, study.policy_overrides, plugins) for text in texts)
    trace = trace if trace is not None else read_trace(study.trace, study.format)
    unit = unit_of(trace)
    size = study.size or NODE_SIZE[unit]
    workload = cut_window(trace, study.start, study.days, size, unit, study.seed)
    tuning = settings.tuning if study.config is not None else Tuning()
    if study.bind_depth is not None:
        tuning = replace(tuning, bind_depth=study.bind_depth)
    world = Scenario(
        nodes=_nodes(study, workload, size), node_size=size, market=_market(study, settings, unit),
        staging_s=study.staging_s, tick_s=study.tick_s, seed=study.seed, tuning=tuning,
    )  # fmt: skip
    return PreparedStudy(study, trace, workload, world, chains, settings)


def _nodes(study: Study, workload: Workload, size: int) -> int:
    if study.nodes is not None:
        return study.nodes
    if study.units is None:
        return nodes_for_load(workload, study.load, size)
    if study.units % size:
        raise WindowError(f"{study.units} {workload.unit.upper()}s are no whole number of nodes with {size} each")
    return study.units // size


def _market(study: Study, settings: Settings, unit: Unit) -> Market:
    terms = OfferTerms(
        study.price if study.price is not None else PRICE[unit], study.boot_s, stockout=study.stockout,
        spot_price=study.spot_price, losses_per_hour=study.losses_per_hour,
    )  # fmt: skip
    if study.config is None or not settings.pools:
        return read_market(study.offers, unit, study.boot_s) if study.offers else default_market(unit, terms)
    from burstd.slurm.hostlist import expand  # noqa: PLC0415  # needed with pools of the site's own only

    own = build_pools(settings, expand)
    if study.offers:
        return read_market(study.offers, unit, study.boot_s, own)
    return _priced(own, terms, unit)


def _priced(own: Mapping[str, Pool], terms: OfferTerms, unit: Unit) -> Market:
    """Offers for pools of burstd.toml: for each of their rules one of the pool's own size."""
    made: list[Pool] = []
    market_offers: list[MarketOffer] = []
    left_out: list[str] = []
    for pool in own.values():
        size = size_of(pool.shape, unit)
        if not size:
            left_out.append(pool.name)
            continue
        rules: list[OfferRule] = []
        for provider in dict.fromkeys(rule.provider for rule in pool.rules):
            found = terms.pool_offers(pool.name, provider, pool.name, pool.shape, size)
            rules.append(OfferRule(provider, (pool.name,), (), tuple(ware.offer.market for ware in found)))
            market_offers += found
        made.append(replace(pool, rules=tuple(rules)))
    notes = [f"pools without GPUs are left out: {', '.join(left_out)}"] if left_out else []
    return Market(tuple(made), tuple(market_offers), tuple(notes))


def _describe_offers(world: Scenario) -> str:
    shown: dict[str, None] = {}
    for ware in world.market.market_offers:
        offer = ware.offer
        price = f"{offer.price:f}".rstrip("0").rstrip(".") if "." in f"{offer.price:f}" else f"{offer.price:f}"
        kind = " spot" if offer.spot else ""
        shown[f"{offer.instance_type}{kind} {price} {offer.currency}/h"] = None
    return ", ".join(shown)


def _notes(world: Scenario) -> list[str]:
    market_offers = world.market.market_offers
    boots = sorted({ware.boot_s for ware in market_offers})
    boot_times = [f"{seconds:g} s" for seconds in (boots[0], boots[-1])] if boots else []
    notes = [f"machines boot for {' to '.join(dict.fromkeys(boot_times))}" if boot_times else "there is no cloud"]
    if world.staging_s:
        notes.append(
            f"the input of a job is in the cloud's store {world.staging_s:g} s after its submission; the upload"
            " goes on beside the boot, and starts on the site do not wait for it"
        )
    if any(ware.stockout for ware in market_offers):
        notes.append(f"offers are sold out for up to {max(w.stockout for w in market_offers):.0%} of the time")
    if any(ware.losses_per_hour for ware in market_offers):
        most = max(ware.losses_per_hour for ware in market_offers)
        notes.append(f"spot machines are taken back {most:g} times an hour on average; their jobs begin anew")
    notes.append("the site is empty when the window begins; jobs of the trace that had ended by then are known")
    return notes


def _date(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
