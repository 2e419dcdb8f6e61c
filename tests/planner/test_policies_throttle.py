"""The policy throttle: growth, flapping, half-open breakers, and what fails too often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import policies.idle
import policies.throttle
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import CircuitBreaker, EndedClaim, RecentLaunch
from burstd.planner.policy_chain import make_target

from .test_policies import limits
from .worlds import NOW, claim, job, last_verdict, make_snapshot, offer, pool, slot_node, target, wants

TEN = pool(slots=10)
GOOD = offer(zone="b", price="2")
BAD = offer(zone="a", price="1")
OVER = CircuitBreaker("sky/r1/a/small/on-demand", "capacity", 3, NOW - 10, "no room")


def throttle(**given: Any) -> Policy:
    return policies.throttle.plugin.make(policies.throttle.ThrottleSettings(**given))


def jobs(count: int) -> list[Job]:
    return [job(str(n), exclusive=True) for n in range(1, count + 1)]


def busy(count: int, state: S = S.IN_SERVICE) -> tuple[tuple[Claim, ...], tuple[Node, ...]]:
    """Nodes with a job each."""
    slots = [f"cpu{n}" for n in range(1, count + 1)]
    nodes = tuple(replace(slot_node(TEN, s, up=True), state="ALLOCATED", cpus_allocated=4) for s in slots)
    return tuple(claim(s, state) for s in slots), nodes


@pytest.mark.parametrize(
    ("case", "given", "there", "started", "nodes"),
    [
        ("ten from nothing", {}, 0, 0, 10),
        ("two from nothing", {"start_nodes": 2}, 0, 0, 2),
        ("at most double", {"start_nodes": 1}, 3, 0, 3),
        ("half as many again", {"start_nodes": 1, "growth_percent": 50}, 4, 0, 2),
        ("a constant number", {"start_nodes": 2, "growth_percent": 0}, 5, 0, 2),
        ("some were started in this minute", {"start_nodes": 3}, 0, 2, 1),
        ("a pool of its own mind", {"start_nodes": 1, "pools": {"cpu": {"start_nodes": 4}}}, 0, 0, 4),
    ],
)
def test_a_pool_grows_slowly(case: str, given: dict[str, Any], there: int, started: int, nodes: int) -> None:
    claims, up = busy(there)
    past = tuple(RecentLaunch(NOW - s, "cpu", "sky", ()) for s in [*([30] * started), 70, 80])
    found = target(
        *jobs(10), pools=(TEN,), claims=claims, nodes=up, recent_launches=past, policies=(throttle(**given),)
    )  # fmt: skip
    assert sum(w.nodes for w in found.wants) == nodes, case


def test_a_job_of_more_nodes_goes_alone() -> None:
    gang = job("2", nodes=3, cpus=3)
    assert wants(target(gang, pools=(TEN,), policies=(throttle(start_nodes=2),))) == [("cpu", 3, ("2",))]
    just = (RecentLaunch(NOW - 30, "cpu", "sky", ()),)
    late = target(gang, pools=(TEN,), recent_launches=just, policies=(throttle(start_nodes=2),))
    assert wants(late) == []
    assert last_verdict(late, "2") == ("wait", "pool cpu: growth limit, 1 of 2 node(s) started in the last minute")


@pytest.mark.parametrize(
    "policy", [throttle(start_nodes=2, growth_percent=0), limits(launches_per_minute=2)], ids=["throttle", "limits"]
)
def test_small_jobs_do_not_starve_one_of_more_nodes_in_front_of_them(policy: Policy) -> None:
    now, launched, started = NOW, [RecentLaunch(NOW - 40, "cpu", "sky", ("ada",))], list[str]()
    while "9" not in started and now < NOW + 600:
        rows = (job("9", nodes=4, cpus=4, priority=1000), job(str(now), exclusive=True, priority=1))
        snapshot = replace(make_snapshot(*rows, pools=(TEN,), recent_launches=tuple(launched)), now=now)
        for want in make_target(snapshot, (policy,)).wants:
            launched += [RecentLaunch(now, want.pool, "sky", want.users)] * want.nodes
            started += want.jobs
        now += 20
    assert started == ["9"]


def idle(count: int, idle_s: float = 100) -> tuple[tuple[Claim, ...], tuple[Node, ...]]:
    slots = [f"cpu{n}" for n in range(1, count + 1)]
    nodes = tuple(replace(slot_node(TEN, s, up=True), last_busy=NOW - idle_s) for s in slots)
    return tuple(claim(s, S.IN_SERVICE, in_service_from=NOW - 5000) for s in slots), nodes


def shrunk(count: int, policy: Policy, idle_s: float = 100, going: tuple[Claim, ...] = (), **fields: Any) -> Target:
    claims, nodes = idle(count, idle_s)
    return target(pools=(TEN,), claims=(*claims, *going), nodes=nodes, policies=(policy,), **fields)


def test_a_pool_shrinks_slowly() -> None:
    assert len(shrunk(4, throttle()).releases) == 4
    assert len(shrunk(4, throttle(release_per_minute=3)).releases) == 3
    leaving = (claim("cpu9", S.DRAINING, since=NOW - 20), claim("cpu10", S.TERMINATING, since=NOW - 90))
    found = shrunk(4, throttle(release_per_minute=3), going=leaving)
    assert len(found.releases) == 2
    assert [r.reason for r in found.remarks if r.by == "throttle"] == [
        "pool cpu terminates at most 3 node(s) a minute"
    ] * 2
    ended = tuple(EndedClaim(NOW - s, claim("cpu8", S.GONE, in_service_from=NOW - 900)) for s in (10, 100))
    assert len(shrunk(4, throttle(release_per_minute=3), ended_claims=ended).releases) == 2


@pytest.mark.parametrize(
    ("case", "ended", "started", "given", "stays"),
    [
        ("three times let go and started again", (900, 600, 300), (800, 500, 200), {}, True),
        ("started before they were let go", (900, 600, 300), (1000, 1100, 1200), {}, False),
        ("one of them long ago", (1900, 600, 300), (800, 500, 200), {}, False),
        ("twice", (900, 600), (800, 500), {}, False),
        ("twice, of which two are enough", (900, 600), (800, 500), {"flaps": 2}, True),
        ("never mind", (900, 600, 300), (800, 500, 200), {"flaps": 0}, False),
        ("idle long enough", (900, 600, 300), (800, 500, 200), {"flap_keep_s": 100}, False),
    ],
)
def test_a_flapping_pool_keeps_its_idle_nodes(
    case: str, ended: tuple[int, ...], started: tuple[int, ...], given: dict[str, Any], stays: bool
) -> None:
    past = tuple(EndedClaim(NOW - s, claim("cpu8", S.GONE, in_service_from=NOW - 2000)) for s in ended)
    launches = tuple(RecentLaunch(NOW - s, "cpu", "sky", ()) for s in started)
    found = shrunk(2, throttle(**given), idle_s=120, ended_claims=past, recent_launches=launches)
    assert (found.releases == ()) == stays, case


def test_it_says_why_a_flapping_pool_keeps_them() -> None:
    past = tuple(EndedClaim(NOW - s, claim("cpu8", S.GONE, in_service_from=NOW - 2000)) for s in (300, 200, 100))
    launches = tuple(RecentLaunch(NOW - s, "cpu", "sky", ()) for s in (250, 150, 50))
    found = shrunk(1, throttle(), ended_claims=past, recent_launches=launches)
    assert [r.reason for r in found.remarks if r.by == "throttle"] == [
        "pool cpu terminated 3 node(s) and started as many within 30 min: cpu1 stays for 30 min"
    ]


def trial(age_s: float) -> Claim:
    return claim("cpu9", S.BOOTING, offer=BAD, created=NOW - age_s)


@pytest.mark.parametrize(
    ("case", "breaker", "claims", "zones"),
    [
        ("no breaker", (), (), ["ab", "ab", "ab"]),
        ("one tries it, the others take the next", (OVER,), (), ["ab", "b", "b"]),
        ("one is at it", (OVER,), (trial(5),), ["b", "b", "b"]),
        ("one from before it failed", (OVER,), (trial(50),), ["ab", "b", "b"]),
        ("it is still closed", (replace(OVER, until=NOW + 10),), (), ["b", "b", "b"]),
        ("of the whole provider", (replace(OVER, key="sky/*/*/*/*"),), (), ["ab", "", ""]),
        ("of another one", (replace(OVER, key="sea/*/*/*/*"),), (), ["ab", "ab", "ab"]),
        ("of its pool", (replace(OVER, key="sky/r1/a/small/*/cpu"),), (), ["ab", "b", "b"]),
        ("of another pool", (replace(OVER, key="sky/r1/a/small/*/gpu"),), (), ["ab", "ab", "ab"]),
        ("of an image's version", (replace(OVER, key="sky/image/v2"),), (), ["ab", "ab", "ab"]),
    ],
)  # fmt: skip
def test_one_machine_tries_an_offer_that_failed(
    case: str, breaker: tuple[CircuitBreaker, ...], claims: tuple[Claim, ...], zones: list[str]
) -> None:
    found = target(
        *jobs(3 + len(claims)),
        pools=(TEN,),
        claims=claims,
        offers=(BAD, GOOD),
        breakers=breaker,
        policies=(throttle(),),
    )
    assert not found.failed_policies
    assert ["".join(o.zone for o in w.offers) for w in found.wants] == [z for z in zones if z], case


def test_those_who_wait_for_it_are_told() -> None:
    found = target(*jobs(2), offers=(BAD,), breakers=(OVER,), policies=(throttle(),))
    assert wants(found) == [("cpu", 1, ("1",))]
    assert last_verdict(found, "2")[1] == (
        "no offer left in pool cpu: sky/r1/a/small/on-demand failed 3 time(s) (capacity: no room);"
        " the node for job 1 tries it first"
    )


def test_a_job_of_many_nodes_tries_it_only_where_nothing_else_is_left() -> None:
    gang = job(nodes=2, cpus=2)
    both = target(gang, offers=(BAD, GOOD), breakers=(OVER,), policies=(throttle(),))
    assert [[o.zone for o in w.offers] for w in both.wants] == [["b"]]
    alone = target(gang, offers=(BAD,), breakers=(OVER,), policies=(throttle(),))
    assert [[o.zone for o in w.offers] for w in alone.wants] == [["a"]]


@pytest.mark.parametrize(
    ("case", "given", "errors", "last", "zones"),
    [
        ("any number", {}, ["boot"] * 9, 10, ["ab"]),
        ("too many for the pool", {"pool_failures": 3}, ["boot"] * 3, 10, []),
        ("too few for the pool", {"pool_failures": 3}, ["boot"] * 2, 10, ["ab"]),
        ("the last is long past", {"pool_failures": 3}, ["boot"] * 3, 700, ["ab"]),
        ("no failures of the pool's", {"pool_failures": 1}, ["interrupted", "pool", ""], 10, ["ab"]),
        ("lost, and it was no spot machine", {"pool_failures": 2}, ["lost", "ended"], 10, []),
        ("too many for the offer", {"offer_failures": 2}, ["boot", "validation"], 10, ["b"]),
    ],
)
def test_what_failed_too_often_rests(
    case: str, given: dict[str, Any], errors: list[str], last: float, zones: list[str]
) -> None:
    past = tuple(EndedClaim(NOW - last - n, claim("cpu8", S.GONE, offer=BAD, error=e)) for n, e in enumerate(errors))
    found = target(job(), offers=(BAD, GOOD), ended_claims=past, policies=(throttle(**given),))
    assert ["".join(o.zone for o in w.offers) for w in found.wants] == zones, case


@pytest.mark.parametrize("error", ["interrupted", "lost", "ended"])
def test_what_the_spot_market_took_back_is_no_failure(error: str) -> None:
    past = (EndedClaim(NOW - 10, claim("cpu8", S.GONE, offer=offer(spot=True), error=error)),)
    assert wants(target(job(), ended_claims=past, policies=(throttle(pool_failures=1, offer_failures=1),))) != []


def test_a_resting_pool_says_so() -> None:
    past = tuple(EndedClaim(NOW - 30, claim("cpu8", S.GONE, error="boot")) for _ in range(3))
    assert last_verdict(target(job(), ended_claims=past, policies=(throttle(pool_failures=3),)))[1] == (
        "pool cpu paused until 1970-01-12 13:56 UTC: 3 nodes failed within an hour"
    )


def test_idle_and_throttle_do_not_fight() -> None:
    keep = policies.idle.plugin.make(policies.idle.IdleSettings(keep_alive_s=0, min_nodes=1))
    claims, nodes = idle(3)
    found = make_target(make_snapshot(pools=(TEN,), claims=claims, nodes=nodes), (keep, throttle(release_per_minute=1)))
    assert len(found.releases) == 1
