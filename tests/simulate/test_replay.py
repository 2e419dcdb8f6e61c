"""Traces replayed through the decision code: what must hold whatever the policies do, and what clouds do to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import inf

import pytest

from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.settings import PluginRegistry, Settings, SettingsError
from burstd.simulate.policy_chains import BASELINES, PolicyChain, PolicyChainError, make_policy_chain
from burstd.simulate.replay import replay_chains
from burstd.simulate.report.result import ChainResult
from burstd.simulate.run import ReplayError, ReplayRun, Scenario
from burstd.simulate.traces.trace_job import Trace, TraceJob
from burstd.simulate.traces.window import Workload, common_limit, cut_window, seeded_random
from burstd.simulate.world.market import OfferTerms, StockoutModel, default_market

pytestmark = pytest.mark.slow


START = 1_507_420_800.0  # 2017-10-08 00:00 UTC
PLUGINS = PluginRegistry.installed()
TERMS = OfferTerms(Decimal("2.50"))
GPUS = (1, 1, 1, 1, 2, 4, 8, 16)


def trace(count: int = 300, seed: int = 1) -> Trace:
    """Jobs of a few users, more than the site can take at once."""
    random = seeded_random(seed, "trace")
    at, jobs = START, []
    for number in range(count):
        at += random.expovariate(1 / 300)
        run = random.lognormvariate(7, 1.5)
        jobs.append(TraceJob(str(number), at, round(run, 1), gpus=random.choice(GPUS), account=f"p{number % 3}"))
    return Trace(tuple(jobs), "philly")


def work(found: Trace | None = None, seed: int = 1) -> Workload:
    return cut_window(found or trace(), None, None, 8, "gpu", seed)


def world(terms: OfferTerms = TERMS, **changed: object) -> Scenario:
    return replace(Scenario(3, 8, default_market("gpu", terms)), **changed)  # type: ignore[arg-type]


def chain(text: str) -> PolicyChain:
    return make_policy_chain(text, Settings(cluster="replay"), (), PLUGINS)


def one(text: str, workload: Workload | None = None, where: Scenario | None = None) -> ChainResult:
    return replay_chains(workload or work(), where or world(), [chain(text)])[0]


@pytest.mark.parametrize("text", [*BASELINES, "idle,limits", "wait_aware,idle"])
def test_every_job_ends_once_and_what_was_used_was_paid(text: str) -> None:
    workload = work()
    result = one(text, workload, world(OfferTerms(Decimal("2.50"), spot_price=Decimal(1), losses_per_hour=0.5)))
    assert [job.id for job in result.jobs] == [job.id for job in workload.jobs]
    for job, given in zip(result.jobs, workload.jobs, strict=True):
        assert given.submitted <= job.started < inf
        assert job.ended - job.started == pytest.approx(given.run_s)
    figures = result.figures
    assert figures.unfinished == 0
    assert figures.cloud_gpu_hours >= figures.cloud_busy_gpu_hours
    assert 0.0 <= figures.waste <= 1.0
    burst = sum(job.gpus * (job.ended - job.started) for job in result.jobs if job.burst) / 3600
    # Beside the runs that ended well there are those that were cut short.
    assert figures.cloud_busy_gpu_hours >= burst * (1 - 1e-9)
    assert (figures.cloud_busy_gpu_hours == pytest.approx(burst)) is (figures.interruptions == 0)


def test_the_same_seed_gives_the_same() -> None:
    terms = OfferTerms(Decimal("2.50"), stockout=0.3, spot_price=Decimal(1), losses_per_hour=0.2)
    first, second = (one("wait_aware,idle", work(seed=7), world(terms, seed=7)) for _ in range(2))
    other = one("wait_aware,idle", work(seed=8), world(terms, seed=8))
    assert replace(first, figures=replace(first.figures, elapsed_s=0)) == replace(
        second, figures=replace(second.figures, elapsed_s=0)
    )
    assert first.jobs != other.jobs


@dataclass(slots=True)
class RecordingPolicy:
    """Writes down what the decision code is shown."""

    name: str = "watching"
    seen: list[tuple[float, object]] = field(default_factory=list)

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        slurm = snapshot.slurm
        assert isinstance(slurm, SlurmView)
        self.seen.append((snapshot.now, (slurm.jobs, slurm.nodes, snapshot.claims, snapshot.data, target.wants)))
        return target


def _shown(
    workload: Workload, where: Scenario | None = None, text: str = "wait_aware,idle"
) -> list[tuple[float, object]]:
    watching = RecordingPolicy()
    policies = chain(text).policies
    assert policies is not None
    ReplayRun(workload, where or world(), [watching, *policies()]).run()
    return watching.seen


def _users_on_one_machine(scenario: Scenario) -> int:
    """The most users whose jobs ever ran together on a machine of the cloud; every job ends."""
    most = 0
    for _, shown in _shown(work(), scenario, "idle"):
        jobs, claims = shown[0], shown[2]  # type: ignore[index]
        slots = {claim.slot for claim in claims}
        users: dict[str, set[str]] = {}
        for job in jobs:
            for name in slots.intersection(job.node_list):
                users.setdefault(name, set()).add(job.user)
        most = max(most, *map(len, users.values()), 0)
    return most


def test_machines_that_run_jobs_of_one_user_at_a_time() -> None:
    market = default_market("gpu", TERMS)
    large = tuple(pool for pool in market.pools if pool.shape.gpus() == 8)
    shared, apart = (
        world(market=replace(market, pools=tuple(replace(pool, exclusive_user=alone) for pool in large)))
        for alone in (False, True)
    )
    assert _users_on_one_machine(shared) > 1
    assert _users_on_one_machine(apart) == 1
    assert one("idle", where=apart).figures.unfinished == 0


def test_nothing_of_the_future_is_seen() -> None:
    """Two futures: until they part, the decision code is shown the same, and decides the same."""
    whole = work()
    part = whole.jobs[150].submitted
    running = [job for job in whole.jobs if job.submitted + job.run_s > part]
    # From then on other jobs come, and of those before every one that cannot have ended runs for its whole limit.
    ids = {job.id for job in running if job.submitted < part}
    longer = tuple(replace(job, run_s=job.limit_s) if job.id in ids else job for job in whole.jobs[:150])
    later = tuple(replace(job, run_s=job.run_s / 2, units=1, nodes=1) for job in whole.jobs[150:])
    other = replace(whole, jobs=longer + later)
    assert len(ids) > 5
    first, second = ([shown for shown in _shown(w) if shown[0] < part] for w in (whole, other))
    assert len(first) > 20
    assert first == second


def test_time_limits_hide_the_run_time() -> None:
    jobs = work().jobs
    assert all(job.limit_s >= job.run_s for job in jobs)
    assert all(job.limit_s == common_limit(job.limit_s) for job in jobs)
    assert sum(job.limit_s > 1.5 * job.run_s for job in jobs) > len(jobs) / 2
    # Jobs that the trace gives a limit keep it.
    given = Trace(tuple(replace(job, time_limit_s=1e6) for job in trace().jobs), "swf")
    assert {job.limit_s for job in work(given).jobs} == {1e6}


def test_baselines() -> None:
    never, immediate, soon, late = (one(text) for text in BASELINES)
    assert never.figures.cloud_gpu_hours == never.figures.launches == 0
    assert immediate.figures.max_wait_s <= 180 + 60 + 15
    assert soon.figures.max_wait_s <= 600 + 180 + 60
    assert late.figures.max_wait_s <= 3600 + 180 + 360
    waits = [result.figures.mean_wait_s for result in (immediate, soon, late, never)]
    assert waits == sorted(waits)
    hours = [result.figures.cloud_gpu_hours for result in (never, late, soon, immediate)]
    assert hours == sorted(hours)
    assert min(job.wait_s for job in late.jobs if job.burst) >= 0


def test_stockouts_move_on_to_other_offers() -> None:
    plain = world().market
    out = default_market("gpu", replace(TERMS, stockout=1.0), provider="empty")
    both = replace(
        plain,
        market_offers=(*out.market_offers, *plain.market_offers),
        pools=tuple(
            replace(pool, rules=(*pool.rules, *empty.rules)) for pool, empty in zip(plain.pools, out.pools, strict=True)
        ),
    )
    # Cheaper, so that it is asked first.
    cheaper = tuple(
        replace(w, offer=replace(w.offer, price=w.offer.price / 2)) if w.stockout else w for w in both.market_offers
    )
    result = one("immediate", where=world(market=replace(both, market_offers=cheaper)))
    alone = one("immediate")
    assert result.figures.stockouts > 0
    assert [job.started for job in result.jobs] == [job.started for job in alone.jobs]
    assert result.figures.cost == alone.figures.cost
    assert one("immediate", where=world(market=out)).figures.launches == 0


def test_offers_are_sold_out_for_their_share_of_the_time() -> None:
    market = default_market("gpu", replace(TERMS, stockout=0.25))
    offer = market.market_offers[0].offer
    times = [START + 60.0 * n for n in range(200_000)]
    one_way = StockoutModel(market.market_offers, 3, START)
    sold = [one_way.is_sold_out(offer, at) for at in times]
    assert 0.2 < sum(sold) / len(sold) < 0.3
    other_way = StockoutModel(market.market_offers, 3, START)
    assert [other_way.is_sold_out(offer, at) for at in reversed(times[:500])] == sold[:500][::-1]


def test_spot_machines_that_are_taken_back_have_their_jobs_begin_anew() -> None:
    terms = OfferTerms(Decimal("2.50"), spot_price=Decimal(1), losses_per_hour=2.0)
    result = one("immediate", where=world(terms))
    lost = [job for job in result.jobs if job.interruptions]
    assert result.figures.interruptions >= len(lost) > 5
    assert all(job.ended < inf for job in lost)
    # burstd takes machines on demand after two interruptions: nobody loses many.
    assert max(job.interruptions for job in lost) <= 3
    steady = one("immediate", where=world(replace(terms, losses_per_hour=0.0)))
    assert steady.figures.interruptions == 0
    assert steady.figures.cost < one("immediate").figures.cost


def test_staging_delays_the_cloud_only() -> None:
    quick, slow = (one("immediate", where=world(staging_s=seconds)) for seconds in (0.0, 3600.0))
    assert min(job.wait_s for job in slow.jobs if job.burst) >= 3600
    assert min(job.wait_s for job in quick.jobs if job.burst) <= 180
    assert quick.figures.waste == pytest.approx(slow.figures.waste, abs=0.2)


def test_a_policy_that_fails_ends_the_replay() -> None:
    @dataclass
    class Broken:
        name: str = "broken"

        def evaluate(self, snapshot: Snapshot, target: Target) -> Target:  # noqa: ARG002
            raise KeyError("nothing")

    policies: Sequence[Policy] = [Broken()]
    with pytest.raises(ReplayError, match=r"policy broken failed on 2017-10-08 at .*KeyError"):
        replay_chains(work(), world(), [PolicyChain("broken", lambda: policies)])


def test_jobs_that_nothing_can_run_are_not_counted() -> None:
    jobs = (*trace(20).jobs, TraceJob("huge", START + 1e5, 10.0, nodes=1, gpus=16))
    few = replace(world(), market=replace(world().market, pools=(), market_offers=()))
    result = one("never", work(Trace(jobs, "philly")), replace(few, nodes=1))
    huge = sum(job.gpus > 8 for job in jobs)
    assert (result.figures.impossible, result.figures.jobs) == (huge, len(jobs) - huge)


def test_settings_of_a_chain() -> None:
    idle = Settings.model_validate({"cluster": "x", "policies": {"idle": {"keep_alive_s": 50}}})

    def kept(text: str, *sets: str) -> object:
        made = make_policy_chain(text, idle, sets, PLUGINS).policies
        assert made is not None
        policy = made()[-1]
        return policy.settings.keep_alive_s  # type: ignore[attr-defined]

    assert kept("limits,idle") == 50
    assert kept("limits,idle", "idle.keep_alive_s=60") == 60
    assert kept("limits,idle(keep_alive_s=70)", "idle.keep_alive_s=60") == 70
    assert kept("aged:600", "idle.keep_alive_s=60") == 60


@pytest.mark.parametrize(
    ("text", "sets", "error"),
    [
        ("idle;limits", [], "'idle;limits' is no chain: expected names of policies with commas"),
        ("", [], "a chain has no policy"),
        ("idle", ["idle"], "'idle' is no setting: expected POLICY.KEY=VALUE"),
        ("idle", ["idle.keep_alive_s=1", "idle.keep_alive_s.x=1"], "keep_alive_s is a value, not a table"),
        ("wait_awar,idle", [], "there is no policy 'wait_awar'; did you mean 'wait_aware'?"),
        ("idle", ["idle.keep_aliv_s=1"], "there is no such key; did you mean 'keep_alive_s'?"),
    ],
)
def test_faulty_chains(text: str, sets: list[str], error: str) -> None:
    with pytest.raises((PolicyChainError, SettingsError)) as found:
        make_policy_chain(text, Settings(cluster="replay"), sets, PLUGINS)
    assert error in str(found.value)
