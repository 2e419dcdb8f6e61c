"""The chain: what policies may do, what is done with those that break the contract, and the administrator's pins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from burstd.domain.claim import Cause
from burstd.domain.claim import ClaimState as S
from burstd.domain.plugins.policy import (
    ExcludedOffer,
    NodeRelease,
    Remark,
    Target,
    Want,
    remarks_on_dropped_want,
    without_refused_offers,
)
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Pin, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.demand.stuck_jobs import stuck_since

from .worlds import NOW, claim, job, last_verdict, make_snapshot, node, offer, pool, slot_node, target, wants


@dataclass(frozen=True)
class Doing:
    """A policy that does what a test says."""

    do: Callable[[Target], Any]
    name: str = "doing"

    def evaluate(self, _: Snapshot, target: Target) -> Target:
        return self.do(target)  # type: ignore[no-any-return]


def raising(_: Target) -> Target:
    raise ZeroDivisionError("no nodes")


def want(**fields: Any) -> Want:
    return replace(Want("cpu", 1, Cause.FLOOR, "a floor", (offer(),)), **fields)


def adding(*some: Any) -> Callable[[Target], Target]:
    return lambda t: replace(t, wants=(*t.wants, *some))


def changing(**fields: Any) -> Callable[[Target], Target]:
    return lambda t: replace(t, wants=tuple(replace(w, **fields) for w in t.wants))


@pytest.mark.parametrize(
    ("do", "error"),
    [
        (raising, "ZeroDivisionError: no nodes"),
        (lambda _: None, "it returned NoneType, not a Target"),
        (lambda t: replace(t, remarks=()), "it removed or changed remarks of others"),
        (
            lambda t: replace(t, placements={"1": ("x",)}),
            "it changed what is not a policy's to change (placements, failed_policies)",
        ),
        (
            lambda t: replace(t, offers={"cpu": (offer("free", "0"),)}),
            "it allows offers for pool 'cpu' that are not to be had",
        ),
        (adding("node"), "it wants str, not a Want"),
        (adding(want(pool="gpu")), "it wants nodes of pool 'gpu', which does not exist"),
        (adding(want(nodes=0)), "it wants 0 nodes of pool cpu"),
        (
            adding(want(offers=(offer("free", "0"),))),
            "it wants nodes of pool cpu by offers that are not to be had",
        ),
        (adding(want(slots=("x1",))), "it wants 1 node(s) of pool cpu on slots that do not match"),
        (
            adding(want(nodes=2, slots=("cpu1", "cpu1"))),
            "it wants 2 node(s) of pool cpu on slots that do not match",
        ),
        (
            adding(want(jobs=("77",))),
            "it wants nodes of pool cpu for job 77, which can not, or need not, start there",
        ),
        (adding(want(cause="mine")), "it wants nodes of pool cpu for the cause 'mine', which is no Cause"),
        (adding(want(nodes=2.0)), "it wants 2.0 nodes of pool cpu"),
        (adding(want(users=None)), "it wants nodes of pool cpu with None for users, which is no tuple of texts"),
        (adding(want(accounts=(1,))), "it wants nodes of pool cpu with (1,) for accounts, which is no tuple of texts"),
        (adding(want(jobs="12")), "it wants nodes of pool cpu with '12' for jobs, which is no tuple of texts"),
        (
            adding(want(reason=None)),
            "it wants nodes of pool cpu with (None, '', False) for reason, gang and dedicated: a text, one, and a bool",
        ),
        (
            adding(want(gang=None, dedicated=1)),
            (
                "it wants nodes of pool cpu with ('a floor', None, 1) for reason, gang and dedicated: "
                "a text, one, and a bool"
            ),
        ),
        (
            changing(excluded_offers=("x",), offers=()),
            "it wants nodes of pool cpu with ('x',) for excluded_offers, which is no tuple of ExcludedOffer",
        ),
        (changing(offers=[]), "it wants nodes of pool cpu by offers that are not to be had"),
        (
            changing(nodes=3, slots=()),
            "it wants 3 nodes of pool cpu for job 2, which is to get 1 there",
        ),
        (
            lambda t: replace(t, wants=tuple(replace(w, slots=()) for w in t.wants * 2)),
            "it wants 2 nodes of pool cpu for job 2, which is to get 1 there",
        ),
        (
            lambda t: t.with_remark("doing", "job:1", "wait", None),
            "it remarks with None for reason of 'job:1', which is no text",
        ),
        (
            lambda t: t.with_remark("doing", None, "wait", "x"),
            "it remarks with None for subject of None, which is no text",
        ),
        (
            lambda t: t.with_remark("doing", "job:1", 3, "x"),
            "it remarks with 3 for verdict of 'job:1', which is no text",
        ),
        (lambda t: replace(t, releases=("c-cpu2",)), "it releases str, not a Release"),
        (
            lambda t: replace(t, releases=(NodeRelease("c-cpu2", "cpu", None),)),  # type: ignore[arg-type]
            "it releases c-cpu2 with None for a reason, which is no text",
        ),
        (lambda t: replace(t, wants=None), "TypeError: 'NoneType' object is not iterable"),
        (lambda t: replace(t, remarks=(*t.remarks, "done")), "it remarks str, not a Remark"),
        (
            lambda t: replace(t, releases=(NodeRelease("c-cpu3", "cpu", "go"),)),
            "it releases 'c-cpu3', which is no idle node",
        ),
    ],
)
def test_a_policy_that_fails_holds_everything(do: Callable[[Target], Any], error: str) -> None:
    busy = replace(slot_node(pool(), "cpu3", up=True), state="MIXED", cpus_allocated=1)
    claims = (claim("cpu2", S.IN_SERVICE, in_service_from=NOW - 10), claim("cpu3", S.IN_SERVICE))
    found = target(job(exclusive=True), job("2", exclusive=True), policies=(Doing(do),), claims=claims, nodes=(busy,))
    assert (found.wants, found.releases) == ((), ())
    [failed] = found.failed_policies
    assert (failed.name, failed.error) == ("doing", error)
    assert last_verdict(found, "2") == ("wait", f"the policy failed: {error}")


@dataclass(frozen=True)
class Hard(Doing):
    hard: bool = True


def test_what_is_added_after_a_hard_policy_does_not_get_past_it() -> None:
    def nothing(t: Target) -> Target:
        out = [r for w in t.wants for r in remarks_on_dropped_want(w, "hard", "no money")]
        return replace(t, wants=(), remarks=(*t.remarks, *out))

    more = (Doing(adding(want())), Doing(lambda t: replace(t, remarks=t.remarks)))
    found = target(job(), policies=(Hard(nothing, "hard"), *more), pins=(pin(3, "floor"),))
    assert found.wants == ()
    assert last_verdict(found) == ("wait", "no money")
    assert [(r.want.jobs, r.by) for r in found.dropped_wants] == [(("1",), "hard")]


def test_a_hard_policy_that_adds_holds_everything() -> None:
    found = target(job(), policies=(Hard(adding(want()), "hard"),))
    assert found.wants == ()
    assert [f.error for f in found.failed_policies] == [
        "it is hard and must only take away, and wants more nodes of pool cpu than there were"
    ]


def test_no_hard_policy_lets_a_node_with_output_go() -> None:
    def money_is_out(t: Target) -> Target:
        known = {r.claim_id for r in t.releases}
        more = tuple(NodeRelease(c, "cpu", "no money") for c in ("c-cpu1", "c-cpu2") if c not in known)
        said = tuple(Remark("hard", f"claim:{r.claim_id}", "release", r.reason) for r in more)
        return replace(t, releases=(*t.releases, *more), remarks=(*t.remarks, *said))

    holding = StagingView(StageState.COLLECTING, NOW, since=NOW - 60, nodes=("cpu1",))
    found = target(
        policies=(Hard(money_is_out, "hard"),),
        claims=(claim("cpu1", S.IN_SERVICE), claim("cpu2", S.IN_SERVICE)),
        data={"9": holding},
    )
    assert [r.claim_id for r in found.releases] == ["c-cpu2"]
    assert [(r.by, r.verdict) for r in found.remarks if r.subject == "claim:c-cpu1"][-1] == ("staging", "keep")


def test_users_and_projects_of_a_want_are_those_of_its_jobs() -> None:
    rows = job(account="atlas", exclusive=True), job("2", user="bob", exclusive=True)
    seen: list[Any] = []

    def note(t: Target) -> Target:
        seen.extend((w.users, w.accounts) for w in t.wants)
        return t

    target(*rows, policies=(Doing(changing(users=(), accounts=("belle",))), Doing(note)))
    assert sorted(seen) == [(("ada",), ("atlas",)), (("bob",), ())]


@dataclass(frozen=True)
class Late(Doing):
    last: int = 1


def test_what_counts_is_asked_after_what_takes_away() -> None:
    asked: list[str] = []

    def noting(name: str) -> Callable[[Target], Target]:
        def note(t: Target) -> Target:
            asked.append(name)
            return t

        return note

    @dataclass(frozen=True)
    class LateAndHard(Late):
        hard: bool = True

    chain = LateAndHard(noting("c"), "c", 2), Late(noting("b"), "b"), Hard(noting("a"), "a"), Doing(noting("x"), "x")
    target(policies=chain)
    assert asked == ["a", "x", "b", "c", "a", "c"]


def test_what_slurm_powers_up_by_itself_is_served_where_a_hard_policy_lets_it() -> None:
    waking = replace(slot_node(pool(), "cpu1", up=False), flags=frozenset({"CLOUD", "POWERING_UP"}))
    there = job("7", state=JobState.CONFIGURING, node_list=("cpu1",), account="atlas")
    [found] = target(there, nodes=(waking,)).wants
    assert (found.cause, found.slots, found.jobs, found.users) == (Cause.SLURM, ("cpu1",), ("7",), ("ada",))
    assert found.accounts == ("atlas",)
    touching = Hard(lambda t: replace(t, wants=tuple(replace(w, reason="seen") for w in t.wants)), "hard")
    assert [w.reason for w in target(there, nodes=(waking,), policies=(touching,)).wants] == ["seen"]
    refusing = Hard(lambda t: replace(t, wants=()), "hard")
    assert target(there, nodes=(waking,), policies=(refusing,)).wants == ()
    assert target(there, nodes=(waking,), paused="hold").wants == ()


def test_a_hard_policy_that_fails_at_last_holds_everything() -> None:
    def no_pins(t: Target) -> Target:
        if any(w.cause is Cause.PIN for w in t.wants):
            raise ZeroDivisionError("no nodes")
        return t

    found = target(job(), policies=(Hard(no_pins, "hard"),), pins=(pin(3, "floor"),))
    assert (found.wants, [f.name for f in found.failed_policies]) == ((), ["hard"])


def test_offers_that_a_policy_takes_out_are_put_down_to_it() -> None:
    dear, cheap = offer("dear", "2"), offer("cheap", "1")

    def explained(t: Target) -> Target:
        wants = tuple(
            without_refused_offers(w, "explained", lambda o: "too dear" if o.id == dear.id else "") for w in t.wants
        )
        return replace(t, wants=wants).with_remark("explained", "pool:cpu", "drop", "not dear")

    def silent(t: Target) -> Target:
        wants = tuple(replace(w, offers=w.offers[1:]) for w in t.wants)
        return replace(t, wants=wants).with_remark("silent", "pool:cpu", "drop", "not cheap")

    found = target(job(), policies=(Doing(explained, "explained"),), offers=(dear, cheap))
    assert [(w.offers, w.excluded_offers) for w in found.wants] == [
        ((cheap,), (ExcludedOffer(dear.id, "explained", "too dear"),)),
    ]
    found = target(job(), policies=(Doing(silent, "silent"),), offers=(dear, cheap))
    assert [w.excluded_offers for w in found.wants] == [(ExcludedOffer(cheap.id, "silent", ""),)]


def test_policies_narrow_and_widen_in_order() -> None:
    def first(t: Target) -> Target:
        return replace(t, wants=()).with_remark("doing", "pool:cpu", "drop", "no")

    found = target(job(), policies=(Doing(first), Doing(adding(want()))))
    assert [(w.cause, w.slots) for w in found.wants] == [(Cause.FLOOR, ("cpu1",))]


def test_a_policy_may_release_an_idle_node_that_a_job_was_placed_on() -> None:
    give_up = Doing(lambda t: replace(t, releases=(NodeRelease("c-cpu1", "cpu", "too dear"),)))
    found = target(job(), policies=(give_up,), claims=(claim("cpu1", S.IN_SERVICE),))
    assert [r.reason for r in found.releases] == ["too dear"]


def test_never_beyond_the_free_slots() -> None:
    found = target(job(), policies=(Doing(adding(*[want()] * 9)),))
    assert [w.slots for w in found.wants] == [("cpu1",), ("cpu2",), ("cpu3",), ("cpu4",)]
    [drop] = [r.reason for r in found.remarks if r.verdict == "drop"]
    assert drop == "6 node(s) (a floor): pool cpu has no free slot left"
    greedy = target(policies=(Doing(adding(want(nodes=5), want(nodes=2))),))
    assert [w.nodes for w in greedy.wants] == [2], "all of a want or none"


def test_a_want_without_offers_is_dropped() -> None:
    found = target(job(), policies=(Doing(lambda t: replace(t, wants=(replace(t.wants[0], offers=()),))),))
    assert found.wants == ()
    assert last_verdict(found) == ("wait", "no offer available for pool cpu")


def test_a_torn_gang_is_dropped_whole() -> None:
    first = job("5", het_job_id="5", cpus=4)
    second = job("5+1", het_job_id="5", het_offset=1, nodes=2, cpus=2)
    found = target(first, second, policies=(Doing(lambda t: replace(t, wants=t.wants[:1])),))
    assert found.wants == ()
    assert last_verdict(found, "5") == ("wait", "another part of the job was refused")


@pytest.mark.parametrize(("gang", "left"), [("other", 1), ("", 2)])
def test_a_gang_keeps_its_name(gang: str, left: int) -> None:
    """Else what is left of it would pass for a whole one."""
    first = job("5", het_job_id="5", cpus=4)
    second = job("5+1", het_job_id="5", het_offset=1, nodes=2, cpus=2)
    names = Doing(lambda t: replace(t, wants=tuple(replace(w, gang=gang) for w in t.wants[:left])))
    (failed,) = target(first, second, policies=(names,)).failed_policies
    assert failed.error == f"it wants nodes of pool cpu for jobs 5 as the gang {gang!r}, which they are not"


@pytest.mark.parametrize(("gang", "failed"), [("pair", 0), ("5", 1)])
def test_what_is_for_no_job_may_be_a_gang_of_its_own(gang: str, failed: int) -> None:
    more = Doing(lambda t: replace(t, wants=(*t.wants, want(gang=gang), want(gang=gang))))
    found = target(job("5", nodes=2, cpus=8), policies=(more,))
    assert len(found.failed_policies) == failed
    assert sum(w.nodes for w in found.wants if not w.jobs) == (0 if failed else 2)


def test_a_hold_keeps_everything_as_it_is() -> None:
    found = target(
        job(exclusive=True), claims=(claim("cpu1", S.IN_SERVICE), claim("cpu2")), paused="maintenance (by root)"
    )
    assert (found.wants, found.releases) == ((), ())
    assert last_verdict(found) == ("covered", "the job fits on cpu1 (in service)")
    assert [(r.subject, r.verdict) for r in found.remarks if r.by == "hold"] == [
        ("claim:c-cpu2", "keep"),
        ("plan", "hold"),
    ]


@pytest.mark.parametrize(
    ("fields", "free", "verdict"),
    [
        ({}, True, ("wait", "on hold: maintenance")),
        ({}, False, ("wait", "on hold: maintenance")),
        ({"reason": "JobHeldUser"}, False, ("wait", "held by its user (Slurm: JobHeldUser)")),
        ({"constraint": "ib"}, True, ("impossible", "no node in pool cpu has ")),
        ({"constraint": "ib", "partitions": ("burst", "onprem")}, True, ("wait", "waiting for the site's own nodes")),
    ],
)
def test_on_hold_a_job_that_a_machine_would_help_waits_for_the_hold(
    fields: dict[str, Any], free: bool, verdict: tuple[str, str]
) -> None:
    busy = node("site1", state="ALLOCATED", cpus_allocated=4, features=("ib",))
    slots = [replace(slot_node(pool(), name, up=False), state="DRAINED") for name in pool().slots if not free]
    found = last_verdict(target(job(**fields), nodes=(busy, *slots), paused="maintenance"))
    assert (found[0], found[1][: len(verdict[1])]) == verdict


def pin(nodes: int, kind: str = "exact", **fields: Any) -> Pin:
    return replace(Pin("cpu", nodes, kind, None, "root", NOW - 10), **fields)


IDLE = (claim("cpu1", S.IN_SERVICE), claim("cpu2", S.IN_SERVICE), claim("cpu3"))


@pytest.mark.parametrize(
    ("case", "pins", "jobs", "there", "new", "released"),
    [
        ("a floor boots", (pin(2, "floor"),), 0, (), 2, 0),
        ("a floor counts what jobs want", (pin(2, "floor"),), 3, (), 3, 0),
        ("a floor keeps idle nodes", (pin(2, "floor"),), 0, IDLE, 0, 1),
        ("no more than there are slots", (pin(9, "floor"),), 0, IDLE[:1], 3, 0),
        ("a ceiling turns jobs away", (pin(1, "ceiling"),), 3, (), 1, 0),
        ("a ceiling of none", (pin(0, "ceiling"),), 3, (), 0, 0),
        ("a ceiling lets idle nodes go although jobs fit them", (pin(1, "ceiling"),), 3, IDLE, 0, 2),
        ("exact is both", (pin(2),), 3, (), 2, 0),
        ("exact boots without jobs", (pin(3),), 0, (), 3, 0),
        ("one that has ended", (pin(3, until=NOW),), 0, (), 0, 0),
        (
            "of two that disagree the newer holds",
            (pin(3, "floor", created=1.0), pin(1, "ceiling", created=2.0)),
            0,
            (),
            0,
            0,
        ),
        ("and the other way round", (pin(3, "floor", created=2.0), pin(1, "ceiling", created=1.0)), 0, (), 3, 0),
    ],
)
def test_pins(case: str, pins: tuple[Pin, ...], jobs: int, there: tuple[Any, ...], new: int, released: int) -> None:
    found = target(*(job(str(n), exclusive=True) for n in range(jobs)), claims=there, pins=pins)
    assert sum(w.nodes for w in found.wants) == new, case
    assert len(found.releases) == released, case


def test_a_ceiling_never_splits_a_gang() -> None:
    found = target(job("1", exclusive=True, priority=2), job("2", nodes=2, cpus=2), pins=(pin(2, "ceiling"),))
    assert wants(found) == [("cpu", 1, ("1",))]
    assert last_verdict(found, "2") == ("wait", "an administrator keeps pool cpu at no more than 2 nodes")


def test_a_drained_node_does_not_count_as_kept() -> None:
    drained = replace(slot_node(pool(), "cpu1", up=True), flags=frozenset({"CLOUD", "DRAIN"}))
    found = target(claims=(claim("cpu1", S.IN_SERVICE),), nodes=(drained,), pins=(pin(1, "floor"),))
    assert [r.claim_id for r in found.releases] == ["c-cpu1"]
    assert [w.cause for w in found.wants] == [Cause.PIN]


def test_since_when_a_job_has_had_room() -> None:
    both = job(partitions=("onprem", "burst"))
    snapshot = make_snapshot(both, nodes=(node("op1"),))
    found = target(both, nodes=(node("op1"),))
    first = stuck_since({}, snapshot, found)
    assert first == {"1": NOW}
    later = replace(snapshot, now=NOW + 60)
    assert stuck_since(first, later, found) == {"1": NOW}
    assert stuck_since(first, later, Target()) == {}, "the node was taken: it starts anew"
    assert stuck_since({"1": NOW - 130}, snapshot, Target()) == {"1": NOW - 130}, "given up: it stays so"
    assert stuck_since({"1": NOW - 3601}, snapshot, Target()) == {}, "for an hour"
    assert stuck_since({"9": NOW - 130}, snapshot, Target()) == {}, "or until it is gone"
    booting = target(job(), claims=(claim("cpu1", S.BOOTING),))
    assert stuck_since({}, make_snapshot(job(), claims=(claim("cpu1", S.BOOTING),)), booting) == {}
