"""The policy idle where it reckons with money: what nodes cost, how they are billed, how long others take to boot."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

import policies.idle
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import RuntimeState

from .worlds import NOW, claim, offer, pool, slot_node, target, wants


def idle(**given: Any) -> Policy:
    return policies.idle.plugin.make(policies.idle.IdleSettings(**given))


def node(slot: str, idle_s: float, price: str = "1", paid_s: float = 5000) -> tuple[Claim, Node]:
    """A node idle for so long, of a machine that was first paid so long ago."""
    one = claim(slot, S.IN_SERVICE, in_service_from=NOW - 4000, billed_from=NOW - paid_s, offer=offer(price=price))
    return one, replace(slot_node(pool(), slot, up=True), last_busy=NOW - idle_s)


def decided(policy: Policy, *some: tuple[Claim, Node], **fields: Any) -> Target:
    return target(claims=tuple(c for c, _ in some), nodes=tuple(n for _, n in some), policies=(policy,), **fields)


@pytest.mark.parametrize(
    ("case", "given", "price", "idle_s", "stays"),
    [
        ("time alone", {}, "50", 290, True),
        ("it has cost less than that", {"keep_cost": "0.10"}, "1", 290, True),
        ("it has cost more", {"keep_cost": "0.10"}, "2", 190, False),
        ("just not", {"keep_cost": "0.10"}, "2", 170, True),
        ("cheap ones stay for their time", {"keep_cost": "0.10"}, "0.01", 310, False),
        ("what costs nothing", {"keep_cost": "0"}, "0", 290, True),
        ("nothing may be spent", {"keep_cost": "0"}, "0.01", 1, False),
        ("a pool of its own mind", {"keep_cost": "9", "pools": {"cpu": {"keep_cost": "0.10"}}}, "2", 190, False),
    ],
)
def test_dear_nodes_go_sooner(case: str, given: dict[str, Any], price: str, idle_s: float, stays: bool) -> None:
    found = decided(idle(**given), node("cpu1", idle_s, price))
    assert (found.releases == ()) == stays, case


@pytest.mark.parametrize(
    ("case", "given", "boots", "stays"),
    [
        ("nothing is known", {"boots": 2}, (), False),
        ("it boots slowly", {"boots": 2}, (100, 300, 900), True),
        ("it boots fast", {"boots": 2}, (40, 60), False),
        ("it is dear besides", {"boots": 2, "keep_cost": "0.01"}, (300,), False),
        ("another pool boots slowly", {"boots": 2, "pools": {"cpu": {"boots": 0}}}, (300,), False),
    ],
)
def test_nodes_that_boot_slowly_stay_longer(
    case: str, given: dict[str, Any], boots: tuple[float, ...], stays: bool
) -> None:
    progress = RuntimeState(boot_durations={"cpu": boots})
    found = decided(idle(**given), node("cpu1", 400), runtime_state=progress)
    assert (found.releases == ()) == stays, case


@pytest.mark.parametrize(
    ("case", "given", "paid_s", "idle_s", "stays"),
    [
        ("half an hour is paid", {"billing_s": {"sky": 3600}}, 1800, 1700, True),
        ("of a later hour", {"billing_s": {"sky": 3600}}, 3 * 3600 + 1800, 1700, True),
        ("the hour is nearly over", {"billing_s": {"sky": 3600}}, 3600 - 170, 1700, False),
        ("not yet", {"billing_s": {"sky": 3600}}, 3600 - 190, 1700, True),
        ("another hour is not worth a few minutes", {"billing_s": {"sky": 3600}}, 3600 - 170, 10, False),
        ("it has just begun", {"billing_s": {"sky": 3600}}, 3600, 1700, True),
        ("a margin of one's own", {"billing_s": {"sky": 3600}, "billing_margin_s": 60}, 3600 - 170, 1700, True),
        ("another provider's", {"billing_s": {"sea": 3600}}, 1800, 1700, False),
        ("every provider's", {"billing_s": {"sea": 600, "*": 3600}}, 1800, 1700, True),
        ("by the second: time counts", {"billing_s": {"sky": 0, "*": 3600}}, 1810, 310, False),
    ],
)
def test_what_is_paid_is_used(case: str, given: dict[str, Any], paid_s: float, idle_s: float, stays: bool) -> None:
    found = decided(idle(**given), node("cpu1", idle_s, paid_s=paid_s))
    assert (found.releases == ()) == stays, case


def test_it_says_why_a_node_stays() -> None:
    def reason(policy: Policy, **fields: Any) -> str:
        (remark,) = [r for r in decided(policy, node("cpu1", 100, paid_s=1800), **fields).remarks if r.by == "idle"]
        return remark.reason

    assert reason(idle()) == "cpu1 stays idle until 1970-01-12 13:50 UTC, for 300 s"
    assert (
        reason(idle(keep_cost=Decimal("0.05")))
        == "cpu1 stays idle until 1970-01-12 13:48 UTC, for 180 s (its idle time then costs 0.05 EUR)"
    )
    assert reason(idle(billing_s={"sky": 3600})) == "cpu1 is paid until 1970-01-12 14:16 UTC"
    assert reason(idle(boots=2), runtime_state=RuntimeState(boot_durations={"cpu": (300.0,)})) == (
        "cpu1 stays idle until 1970-01-12 13:55 UTC, for 600 s (2 times its boot time)"
    )


def test_the_dearest_go_first() -> None:
    some = node("cpu1", 400, "1"), node("cpu2", 900, "0.5"), node("cpu3", 500, "1")
    found = decided(idle(keep_alive_s=0, min_nodes=2), *some)
    assert [r.claim_id for r in found.releases] == ["c-cpu3"]


@pytest.mark.parametrize("billing_s", [-5, 100, 180])
def test_times_that_are_shorter_than_the_margin_are_refused(billing_s: float) -> None:
    with pytest.raises(ValidationError, match=r"billing_s"):
        idle(billing_s={"sky": billing_s})


def test_nodes_stay_for_ever_where_that_is_set() -> None:
    (remark,) = [r for r in decided(idle(keep_alive_s=float("inf")), node("cpu1", 100)).remarks if r.by == "idle"]
    assert remark.reason == "cpu1 stays idle for ever"


@pytest.mark.parametrize("given", [{"min_nodes": 1}, {"spare_nodes": 1}])
@pytest.mark.parametrize("private", [False, True])
def test_a_node_for_its_own_jobs_is_neither_minimum_nor_spare(given: dict[str, int], private: bool) -> None:
    own, up = node("cpu1", 400)
    found = decided(idle(keep_alive_s=0, **given), (replace(own, jobs=("7",), dedicated_by_policy=private), up))
    assert sum(want.nodes for want in found.wants) == int(private)


def test_nodes_of_a_pool_that_is_no_more_are_nobodys_minimum() -> None:
    old = claim("old1", S.IN_SERVICE, in_service_from=NOW - 4000)
    assert wants(target(claims=(old,), policies=(idle(min_nodes=1),))) == [("cpu", 1, ())]
