"""What the shipped policies do, in tables: through the whole chain, on worlds as placement finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

import policies.backlog
import policies.idle
import policies.limits
from burstd.domain.claim import Cause
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import OfferRule
from burstd.domain.plugins.policy import Policy
from burstd.domain.snapshot import CloudView, RecentLaunch
from burstd.planner.policy_chain import make_target

from .worlds import NOW, claim, job, last_verdict, make_snapshot, offer, pool, slot_node, target, wants


def backlog(**given: Any) -> Policy:
    return policies.backlog.plugin.make(policies.backlog.BacklogSettings(**given))


def idle(**given: Any) -> Policy:
    return policies.idle.plugin.make(policies.idle.IdleSettings(**given))


def limits(**given: Any) -> Policy:
    return policies.limits.plugin.make(policies.limits.LimitsSettings(**given))


def jobs(count: int, age: float = 60, **fields: Any) -> list[Any]:
    return [job(str(n), submitted=NOW - age, eligible=NOW - age, exclusive=True, **fields) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("case", "given", "waiting", "nodes"),
    [
        ("nothing is held back", {}, jobs(1), 1),
        ("too few", {"min_jobs": 3}, jobs(2), 0),
        ("enough", {"min_jobs": 3}, jobs(3), 3),
        ("too young", {"min_age_s": 90}, jobs(3), 0),
        ("old enough", {"min_age_s": 50}, jobs(3), 3),
        ("young ones do not count", {"min_jobs": 2, "min_age_s": 90}, [*jobs(1, 100), *jobs(3)[1:]], 0),
        ("tasks count", {"min_jobs": 3}, [job(tasks=3, array_job_id="1", array_tasks="1-3")], 1),
        ("one that has waited very long goes alone", {"min_jobs": 9, "max_age_s": 600}, jobs(1, 601), 1),
        ("a pool of its own mind", {"min_jobs": 9, "pools": {"cpu": {"min_jobs": 1}}}, jobs(1), 1),
        ("more cannot be wanted than there are slots", {"min_jobs": 9}, jobs(20), 4),
    ],
)
def test_backlog(case: str, given: dict[str, Any], waiting: list[Any], nodes: int) -> None:
    assert sum(w.nodes for w in target(*waiting, policies=(backlog(**given),)).wants) == nodes, case


def test_backlog_tells_the_job_how_long() -> None:
    found = target(*jobs(1), policies=(backlog(min_age_s=90),))
    assert last_verdict(found) == (
        "wait",
        "pool cpu starts nodes for jobs that have waited 90 s: until 1970-01-12 13:47 UTC",
    )


@pytest.mark.parametrize(
    "given", [{"min_age_s": 60, "max_age_s": 30}, {"max_age_s": 30, "pools": {"cpu": {"min_age_s": 60}}}]
)
def test_backlog_wants_its_ages_in_order(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"\(30\) is less than 'min_age_s' \(60\)"):
        backlog(**given)


def at(slot: str, idle_s: float, state: S = S.IN_SERVICE) -> tuple[Any, Any]:
    """A claim and its node, idle for so many seconds."""
    node = replace(slot_node(pool(), slot, up=True), last_busy=NOW - idle_s)
    return claim(slot, state, in_service_from=NOW - 5000 if state is S.IN_SERVICE else None, since=NOW - idle_s), node


@pytest.mark.parametrize(
    ("case", "given", "idle_for", "released", "new"),
    [
        ("still young", {"keep_alive_s": 300}, (200, 290), 0, 0),
        ("too old", {"keep_alive_s": 300}, (200, 310), 1, 0),
        ("a minimum stays", {"keep_alive_s": 0, "min_nodes": 1}, (100, 200), 1, 0),
        ("a minimum is started", {"keep_alive_s": 0, "min_nodes": 3}, (100,), 0, 2),
        ("spare ones stay", {"keep_alive_s": 0, "spare_nodes": 1}, (100, 200), 1, 0),
        ("a pool of its own mind", {"keep_alive_s": 0, "pools": {"cpu": {"keep_alive_s": 900}}}, (100, 200), 0, 0),
        ("another pool's mind", {"keep_alive_s": 0, "pools": {"gpu": {"keep_alive_s": 900}}}, (100, 200), 2, 0),
    ],
)
def test_idle(case: str, given: dict[str, Any], idle_for: tuple[float, ...], released: int, new: int) -> None:
    there = [at(f"cpu{n}", s) for n, s in enumerate(idle_for, 1)]
    found = target(claims=tuple(c for c, _ in there), nodes=tuple(n for _, n in there), policies=(idle(**given),))
    assert (len(found.releases), sum(w.nodes for w in found.wants)) == (released, new), case
    assert all(w.cause is Cause.FLOOR for w in found.wants)


def test_the_longest_idle_goes_first() -> None:
    there = [at("cpu1", 900), at("cpu2", 400)]
    nodes = tuple(n for _, n in there)
    found = target(claims=tuple(c for c, _ in there), nodes=nodes, policies=(idle(min_nodes=1),))
    assert [r.claim_id for r in found.releases] == ["c-cpu1"]


def test_spare_nodes_are_beyond_those_that_jobs_use() -> None:
    there, node = at("cpu1", 400)
    found = target(job(exclusive=True), claims=(there,), nodes=(node,), policies=(idle(spare_nodes=1),))
    assert [(w.cause, w.nodes) for w in found.wants] == [(Cause.FLOOR, 1)]
    ready, up = at("cpu2", 400, S.READY)
    assert (
        target(job(exclusive=True), claims=(there, ready), nodes=(node, up), policies=(idle(spare_nodes=1),)).wants
        == ()
    )


def test_drained_and_held_nodes_are_not_kept() -> None:
    there, node = at("cpu1", 10)
    drained = replace(node, flags=frozenset({"CLOUD", "DRAIN"}))
    other, up = at("cpu2", 10)
    found = target(
        claims=(there, other),
        nodes=(drained, up),
        drained_slots=frozenset({"cpu2"}),
        policies=(idle(keep_alive_s=900),),
    )
    assert [r.claim_id for r in found.releases] == ["c-cpu1", "c-cpu2"]


def test_a_floor_without_an_offer_says_so() -> None:
    found = target(offers=(), policies=(idle(min_nodes=2),))
    assert [(r.verdict, r.reason) for r in found.remarks] == [
        ("wait", "2 node(s) missing (at least 2 node(s)): no offer available")
    ]


@pytest.mark.parametrize(
    ("case", "given", "there", "nodes"),
    [
        ("none", {}, 0, 4),
        ("nodes in all", {"nodes": 3}, 1, 2),
        ("nodes of the pool", {"pools": {"cpu": {"nodes": 2}}}, 1, 1),
        ("nodes of another pool", {"pools": {"gpu": {"nodes": 0}}}, 0, 4),
        ("nodes of every pool", {"pools": {"*": {"nodes": 2}}}, 0, 2),
        ("nodes of the user", {"users": {"ada": {"nodes": 1}}}, 0, 1),
        ("nodes of each user without a limit of his own", {"users": {"*": {"nodes": 1}, "ada": {}}}, 0, 4),
        ("nodes of the provider", {"providers": {"sky": {"nodes": 2}}}, 1, 1),
        ("launches a minute", {"launches_per_minute": 2}, 0, 2),
        ("launches a minute of the user", {"users": {"*": {"launches_per_minute": 3}}}, 0, 3),
    ],
)
def test_limits(case: str, given: dict[str, Any], there: int, nodes: int) -> None:
    going = tuple(claim(f"cpu{n}", S.TERMINATING, users=("eve",)) for n in range(1, there + 1))
    found = target(*jobs(4), claims=going, policies=(limits(**given),))
    assert sum(w.nodes for w in found.wants) == nodes, case


def test_a_user_at_his_limit_does_not_keep_others_from_the_node_that_he_would_share() -> None:
    found = target(job("1"), job("2", user="eve"), policies=(limits(users={"eve": {"nodes": 0}}),))
    assert [(w.jobs, w.users) for w in found.wants] == [(("1",), ("ada",))]
    assert last_verdict(found, "2") == ("wait", "node limit of user eve is 0; 0 running or starting")


def test_launches_of_the_last_minute_count() -> None:
    past = tuple(RecentLaunch(NOW - s, "cpu", "sky", ("eve",)) for s in (10, 50, 70))
    found = target(*jobs(4), recent_launches=past, policies=(limits(launches_per_minute=3),))
    assert len(found.wants) == 1
    planned = claim("cpu4", S.PLANNED, jobs=("9",), launch_called=None)
    both = target(*jobs(5), recent_launches=past, claims=(planned,), policies=(limits(launches_per_minute=3),))
    assert both.wants == ()


def test_the_next_provider_where_one_is_full() -> None:
    two = pool(rules=(OfferRule("sky"), OfferRule("sea")))
    snapshot = make_snapshot(*jobs(3), pools=(two,))
    sea = replace(offer(price="5"), provider="sea")
    snapshot = replace(snapshot, clouds={**snapshot.clouds, "sea": CloudView((sea,), ())})
    found = make_target(snapshot, (limits(providers={"sky": {"nodes": 1}, "sea": {"nodes": 1}}),))
    assert [[o.provider for o in w.offers] for w in found.wants] == [["sky", "sea"], ["sea"]]
    full = "node limit of provider {} is 1; 1 running or starting"
    assert last_verdict(found, "3") == ("wait", f"{full.format('sky')}; {full.format('sea')}")


def test_a_gang_is_never_split() -> None:
    small, gang, last = job("1", priority=3, exclusive=True), job("2", priority=2, nodes=3, cpus=3), job("3", cpus=4)
    found = target(small, gang, last, policies=(limits(nodes=3),), pools=(pool(slots=6),))
    assert wants(found) == [("cpu", 1, ("1",)), ("cpu", 1, ("3",))]
    assert last_verdict(found, "2") == ("wait", "node limit is 3; 1 running or starting")


def test_a_gang_larger_than_the_rate_goes_alone() -> None:
    gang = job("2", nodes=3, cpus=3)
    assert wants(target(gang, policies=(limits(launches_per_minute=2),))) == [("cpu", 3, ("2",))]
    just = (RecentLaunch(NOW - 30, "cpu", "sky", ()),)
    assert wants(target(gang, recent_launches=just, policies=(limits(launches_per_minute=2),))) == []
    assert wants(target(gang, policies=(limits(launches_per_minute=0),))) == [], "none is none"
