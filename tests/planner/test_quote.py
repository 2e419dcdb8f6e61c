"""A job that is not submitted: each way to run it, what selects it, and why others are closed."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

import policies.backlog
import policies.budget
import policies.spot
from burstd.domain.billing.rates import Rates
from burstd.domain.billing.site_cost import NodeGroup, SiteCosts, plain_hour
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import OfferRule
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_history import EndedJob, JobHistory
from burstd.domain.slurm.outlook import Outlooks
from burstd.domain.slurm.quote import Quote, QuotedWay, TimeRange, UsablePartition
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import RuntimeState, SlurmView, Snapshot
from burstd.planner.explain import quote as quote_
from burstd.planner.explain.quote import quote_jobs
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.policy_chain import make_target

from .worlds import NOW, claim, job, make_snapshot, node, offer, pool

A100 = Shape(16, 64_000, (Gres("gpu", "a100", 4),), frozenset({"a100", "cloud"}))
V100 = Shape(8, 32_000, (Gres("gpu", "v100", 2),), frozenset({"v100", "cloud"}))
BOTH = ("on-demand", "spot")
POOLS = (
    pool("v100", shape=V100, rules=(OfferRule("sky", ("v*",), markets=BOTH),)),
    pool("a100", shape=A100, rules=(OfferRule("sky", ("a*",)),)),
)
OFFERS = (offer("v1", "2", V100), offer("v1", "0.5", V100, spot=True), offer("a1", "9", A100))
BOOTS = RuntimeState(boot_durations={"v100": (90.0, 100.0, 110.0, 200.0), "a100": (300.0,)})
SITE = node("op1", partitions=("gpu",), cpus=8, gres=(Gres("gpu", "v100", 2),))
GPU = (Gres("gpu", "", 1),)
USABLE = (UsablePartition("burst"), UsablePartition("gpu"))


def world(*jobs: Job, **fields: Any) -> Snapshot:
    given: dict[str, Any] = {"pools": POOLS, "offers": OFFERS, "nodes": (SITE,), "runtime_state": BOOTS}
    return make_snapshot(*jobs, **(given | fields))


def quotes(snapshot: Snapshot, *jobs: Job, chain: tuple[Policy, ...] = ()) -> tuple[Quote, ...]:
    found = make_target(snapshot, chain)
    plan = Plan((), found, found.remarks)
    return quote_jobs(snapshot, plan, jobs, USABLE, lambda seen: make_target(seen, chain))


def quote(snapshot: Snapshot, asked: Job, *chain: Policy) -> Quote:
    (found,) = quotes(snapshot, asked, chain=chain)
    return found


def asked(**fields: Any) -> Job:
    return job("", user="ada", reason="", **{"time_limit_s": 7200.0, "gres_per_node": GPU, **fields})


def ways(found: Quote) -> list[tuple[str, str, str, bool, str]]:
    return [(w.pool, w.offer.market if w.offer else "", w.options, w.taken, w.reason) for w in found.ways]


def waits(way: QuotedWay) -> list[int]:
    assert way.start is not None
    return [round(at - NOW) for at in (way.start.p10, way.start.p50, way.start.p90)]


def test_a_job_that_waits_does_not_wait_for_itself() -> None:
    wanted = {"partitions": ("gpu",), "gres_per_node": (Gres("gpu", "", 2),)}
    queued = job("7", user="ada", priority=5, time_limit_s=7200.0, **wanted)
    alone, own, of_another = (
        waits(quote(world(*rows), asked(id="7", **wanted)).ways[0])
        for rows in ((), (queued,), (replace(queued, user="bob"),))
    )
    assert alone == own == [0, 0, 60]
    assert of_another != own


def times(found: TimeRange) -> list[float]:
    return [found.p10, found.p50, found.p90]


def test_the_sites_nodes_both_markets_and_the_other_pool() -> None:
    found = quote(world(), asked())
    assert (found.verdict, found.run_basis, found.run_s) == ("boot", "time limit", 7200.0)
    assert ways(found) == [
        ("", "", "-p gpu", True, ""),
        ("v100", "on-demand", "", False, "more expensive than the chosen one"),
        ("v100", "spot", "", True, ""),
        ("a100", "on-demand", "-C a100", True, ""),
    ]
    site, on_demand, spot, other = found.ways
    assert (waits(site)[:2], site.expected) == ([0, 0], None)
    assert waits(spot) == [90, 105, 260]
    assert waits(other)[:2] == [300, 300]
    # Half of the machine for two hours, and all of it while it boots; all of it to the time limit.
    assert spot.expected == Decimal("0.514583")
    assert on_demand.worst == Decimal("4.111111")


def test_the_sites_own_prices() -> None:
    groups = (NodeGroup("old", ("op1",), plain_hour("CHF", Decimal(3), None, per_gpu=False)),)
    target = make_target(world(), ())
    plan = Plan((), target, target.remarks)
    (found,) = quote_jobs(world(), plan, [asked()], USABLE, lambda s: make_target(s, ()), SiteCosts(groups))
    site = found.ways[0]
    # One of two GPUs for two hours.
    assert (site.pool, site.expected, site.worst, site.currency) == ("", Decimal(3), Decimal(3), "CHF")


@pytest.mark.parametrize(("rate", "worst"), [("1.3", "4.000000 USD"), ("1.4", "3.000000 CHF")])
def test_the_sites_own_prices_in_two_currencies(rate: str, worst: str) -> None:
    prices = (("old", "op1", "CHF", 3), ("new", "op2", "USD", 4))
    groups = [NodeGroup(name, (n,), plain_hour(unit, Decimal(p), None, per_gpu=False)) for name, n, unit, p in prices]
    rates = Rates("USD", date(2026, 11, 1), {"CHF": Decimal(rate)})
    snapshot = world(nodes=(SITE, replace(SITE, name="op2")), rates=rates)
    target = make_target(snapshot, ())
    plan = Plan((), target, target.remarks)
    (found,) = quote_jobs(snapshot, plan, [asked()], USABLE, lambda s: make_target(s, ()), SiteCosts(groups))
    assert f"{found.ways[0].worst} {found.ways[0].currency}" == worst


def test_no_requeue_keeps_a_job_off_spot_where_the_policy_says_so() -> None:
    chain = policies.spot.plugin.make(policies.spot.SpotSettings())
    assert ways(quote(world(), asked(), chain))[1:3] == [
        ("v100", "on-demand", "--no-requeue", True, ""),
        ("v100", "spot", "", True, ""),
    ]


def test_where_the_site_is_asked_for_the_cloud_is_another_partition() -> None:
    busy = job("7", partitions=("gpu",), state=JobState.RUNNING, node_list=("op1",), cpus=8, time_limit_s=4000.0,
               gres_per_node=(Gres("gpu", "", 2),), start=NOW - 1000)  # fmt: skip
    full = replace(SITE, state="ALLOCATED", cpus_allocated=8, gres_used=(Gres("gpu", "v100", 2),))
    found = quote(world(busy, nodes=(full,)), asked(partitions=("gpu",)))
    assert [(w.pool, w.options) for w in found.ways if w.taken] == [
        ("", ""), ("v100", "-p burst"), ("a100", "-p burst -C a100"),
    ]  # fmt: skip
    assert waits(found.ways[0])[1] == 3000
    both = quote(world(busy, nodes=(full,)), asked(partitions=("gpu", "burst")))
    assert [(w.pool, w.options) for w in both.ways if w.taken][:2] == [("", "-p gpu"), ("v100", "-p burst")]


def test_closed_ways_say_why() -> None:
    assert {w.reason for w in quote(world(), asked(gres_per_node=(Gres("gpu", "h100", 1),))).ways} == {
        "a node lacks gpu:h100:1"
    }
    no_offer = quote(world(offers=()), asked())
    assert [w.reason for w in no_offer.ways if w.pool] == [no_offer.summary] * 2
    assert "no offer" in no_offer.summary
    none = quote(world(pools=(POOLS[0],), nodes=()), asked(nodes=9, nodes_max=9))
    assert [w.taken for w in none.ways] == [False]
    assert [(change.before, change.after, change.command) for change in none.changes] == [("-N 9", "-N 4", "")]


def test_budgets_say_what_is_left_and_what_is_reserved() -> None:
    settings = policies.budget.BudgetSettings.model_validate(
        {"projects": {"atlas": {"limit": 20}, "lhc": {"limit": 1}}}
    )
    chain = policies.budget.plugin.make(settings)
    found = quote(world(), asked(account="atlas"), chain)
    assert [(line.name, line.left) for line in found.budgets] == [("atlas", Decimal(20))]
    (spot,) = (w for w in found.ways if w.offer is not None and w.offer.spot)
    # All of the machine, for it is this job's alone.
    assert spot.worst == Decimal("1.125000")
    assert spot.expected == Decimal("1.014583")
    poor = quote(world(), asked(account="lhc"), chain)
    assert all("lhc" in w.reason for w in poor.ways if w.pool)


@pytest.mark.parametrize("field", ["paused", "record_doubt"])
def test_no_machine_is_promised_while_none_is_started(field: str) -> None:
    found = quote(world(**{field: "an old backup"}), asked())
    assert (found.verdict, found.by, found.changes) == ("wait", "hold", ())
    assert [w.pool for w in found.ways if w.taken] == [""]


def test_a_policy_that_lets_jobs_wait_first() -> None:
    chain = policies.backlog.plugin.make(policies.backlog.BacklogSettings(min_age_s=250))
    found = quote(world(), asked(), chain)
    (spot,) = (w for w in found.ways if w.offer is not None and w.offer.spot)
    assert (found.verdict, waits(spot)) == ("wait", [390, 405, 560])


def test_two_smaller_nodes_where_the_job_may() -> None:
    spread = asked(gres_per_node=(), gres_per_job=(Gres("gpu", "", 4),), nodes_max=2, cpus=2)
    taken = [w for w in quote(world(), spread).ways if w.taken and w.pool]
    assert [(w.pool, w.nodes, w.options) for w in taken] == [("v100", 2, "-C v100"), ("a100", 1, "")]
    whole = replace(spread, nodes_max=1)
    assert [(w.pool, w.nodes) for w in quote(world(), whole).ways if w.taken and w.pool] == [("a100", 1)]


def test_nodes_that_are_there_or_on_their_way() -> None:
    there = claim("v1001", S.IN_SERVICE, pool="v100", offer=OFFERS[0])
    (way, *_) = (w for w in quote(world(claims=(there,)), asked()).ways if w.pool == "v100")
    assert (way.names, waits(way)[:2], way.taken) == (("v1001",), [0, 0], True)
    coming = claim("v1001", S.BOOTING, created=NOW - 50, pool="v100", offer=OFFERS[0])
    (way, *_) = (w for w in quote(world(claims=(coming,)), asked()).ways if w.pool == "v100")
    assert (way.names, waits(way)[1]) == (("v1001",), 55)


@pytest.mark.parametrize(("started_for", "parts"), [(("9",), 1), (("8", "9"), 2), (("8",), 0), ((), 0)])
def test_a_job_that_a_machine_boots_for_is_charged_its_part_of_the_boot(
    started_for: tuple[str, ...], parts: int
) -> None:
    waiting = replace(asked(), id="9")
    coming = claim("v1001", S.BOOTING, created=NOW - 50, pool="v100", offer=OFFERS[0], billed_from=NOW - 50)
    found = quote(world(waiting, claims=(replace(coming, jobs=started_for),)), waiting)
    (way, *_) = (w for w in found.ways if w.pool == "v100" and w.names)
    boot = Decimal(2) * 105 / 3600
    assert way.expected is not None
    assert abs(way.expected - (boot / parts if parts else 0) - Decimal(2)) < Decimal("0.00001")


def test_its_place_in_the_queue_is_that_of_who_came_last() -> None:
    others = [job(str(n), priority=50, gres_per_node=(Gres("gpu", "", 2),), cpus=8) for n in range(1, 5)]
    found = quote(world(*others, pools=POOLS[:1], nodes=()), asked())
    assert (found.job.priority, found.verdict) == (50, "wait")
    assert quote(world(*(replace(o, user="bob", priority=9) for o in others)), asked()).job.priority == 9


@pytest.mark.parametrize("known", [0, 8])
def test_how_long_like_jobs_ran(known: int) -> None:
    ended = [
        EndedJob(
            str(n), "ada", "", "train", ("burst",), 1, 1, 1, 7200.0, NOW - 9000, NOW - 9000, NOW - 9000 + 600, True
        )
        for n in range(known)
    ]
    found = quote(world(history=JobHistory.from_jobs(ended)), asked(name="train"))
    assert found.run_s == (600 if known else 7200)
    assert found.run_basis == ("8 jobs train of ada with 1 GPU" if known else "time limit")
    end = found.ways[0].end
    assert end is not None
    assert end.p50 == NOW + found.run_s


def test_few_long_runs_among_many_short_ones_leave_the_times_in_order() -> None:
    """The mean is seven minutes; nine of ten have ended after one."""
    ended = [
        EndedJob(str(n), "ada", "", "train", ("burst",), 1, 1, 1, 7200.0, 0.0, 0.0, 60.0 if n % 20 else 7200.0, True)
        for n in range(200)
    ]
    found = quote(world(history=JobHistory.from_jobs(ended)), asked(name="train"))
    assert found.run_s == pytest.approx(417)
    for way in found.ways:
        assert way.start is not None
        assert way.end is not None
        assert [end - start for start, end in zip(times(way.start), times(way.end), strict=True)] == [60.0] * 3


def test_no_end_is_told_of_a_job_of_which_nothing_is_known() -> None:
    found = quote(world(), asked(time_limit_s=0.0))
    assert found.run_basis == "none"
    assert [(way.start is None, way.end, way.worst) for way in found.ways if way.taken] == [(False, None, None)] * 3


def test_what_starts_in_thousands_of_years_does_not_start() -> None:
    busy = job("7", partitions=("gpu",), state=JobState.RUNNING, node_list=("op1",), cpus=8, time_limit_s=2e11,
               start=NOW - 10)  # fmt: skip
    full = replace(SITE, state="ALLOCATED", cpus_allocated=8)
    found = quote(world(busy, nodes=(full,)), asked(partitions=("gpu",)))
    assert [w.reason for w in found.ways if not w.pool] == ["no node of the site in gpu can run it within ten years"]


def test_another_partition_gives_the_job_its_own_defaults() -> None:
    """In ``whole`` it has the node for itself, and ends after its hour."""
    site = replace(SITE, partitions=("whole",))
    groups = (NodeGroup("old", ("op1",), plain_hour("CHF", Decimal(3), None, per_gpu=False)),)
    target = make_target(world(nodes=(site,)), ())
    whole = UsablePartition("whole", time_limit_s=3600.0, exclusive=True)
    (found,) = quote_jobs(
        world(nodes=(site,)),
        Plan((), target, target.remarks),
        [asked()],
        [whole],
        lambda seen: make_target(seen, ()),
        SiteCosts(groups),
    )
    way = found.ways[0]
    assert (way.options, way.expected, way.worst) == ("-p whole", Decimal(3), Decimal(3))
    assert way.end is not None
    assert way.end.p50 == NOW + 3600
    assert found.ways[1].end is not None
    assert found.ways[1].end.p50 > NOW + 7200


def test_the_queue_is_looked_at_twice_whatever_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number}" for number in range(9)]
    nodes = tuple(replace(SITE, name=f"op{name}", partitions=(name,)) for name in names)
    others = [job(str(n), partitions=(names[n % 9],), gres_per_node=(Gres("gpu", "", 2),)) for n in range(1, 40)]
    snapshot = world(*others, nodes=nodes)
    target = make_target(snapshot, ())
    looks: list[int] = []

    def counted(seen: Snapshot) -> Outlooks:
        assert isinstance(seen.slurm, SlurmView)
        looks.append(len(seen.slurm.jobs))
        return job_outlooks(seen)

    monkeypatch.setattr(quote_, "job_outlooks", counted)

    def site_ways(times: int) -> list[QuotedWay]:
        left = iter([True] * times)
        usable = [UsablePartition(name) for name in names]
        (found,) = quote_jobs(
            snapshot, Plan((), target, target.remarks), [asked()], usable, lambda seen: make_target(seen, ()),
            in_time=lambda: next(left, False),
        )  # fmt: skip
        return [way for way in found.ways if not way.pool]

    assert [way.taken for way in site_ways(2)] == [True] * 9
    # How long it runs, where it can run alone, and two looks behind others.
    assert looks[:2] == [1, 9]
    assert len(looks) == 4
    assert {way.reason for way in site_ways(1)} == {quote_._NOT_DECIDED}


def test_components_of_a_het_job_stay_where_they_are() -> None:
    first, second = quotes(world(), asked(), asked(gres_per_node=(Gres("gpu", "a100", 1),)))
    assert [(w.pool, w.options) for q in (first, second) for w in q.ways if w.taken] == [
        ("v100", ""), ("a100", "-C a100"), ("a100", ""),
    ]  # fmt: skip


def test_a_site_too_large_for_every_way_says_which_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote_, "MAX_DECISIONS", 1)
    in_cloud, on_site = quote(world(), asked()), quote(world(), asked(partitions=("gpu",)))
    assert [(w.pool, w.options) for w in in_cloud.ways if "not looked at" in w.reason] == [("a100", "-C a100")]
    assert [(w.pool, w.options) for w in on_site.ways if "not looked at" in w.reason] == [("", "-p burst")]


def test_an_array_is_quoted_by_its_first_task() -> None:
    found = quote(world(), asked(tasks=100_000))
    assert (found.job.tasks, found.verdict) == (1, "boot")


def test_asking_leaves_the_snapshot_as_it_was() -> None:
    snapshot = world(job("1", gres_per_node=GPU))
    before = repr(snapshot)
    assert quote(snapshot, asked()) == quote(snapshot, asked())
    assert repr(snapshot) == before
    assert isinstance(snapshot.slurm, SlurmView)
