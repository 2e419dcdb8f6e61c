"""What comes of a notice: for nodes, for jobs on them, for slots afterwards, for the next offers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import (
    Action,
    BindJob,
    ChangeClaimState,
    DrainNodes,
    RecordInterruptions,
    RequeueJobs,
    SetGate,
    StartJobsNow,
    UnbindJob,
    UndrainNodes,
)
from burstd.domain.plugins.provider import Notice, NoticeKind
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.snapshot import RuntimeState, SlurmView, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.lifecycle.spot_notices import (
    NodeNotice,
    missing_reason,
    notice_is_settled,
    notice_reason,
    parse_reason,
)
from burstd.planner.timeouts import Tuning

from .worlds import NOW, claim, job, last_verdict, make_snapshot, offer, pool, slot_node, target

R, I = NoticeKind.REBALANCE, NoticeKind.INTERRUPTION  # noqa: E741
END = 1_795_262_520.0
ENDS = "interruption, ends 2026-11-21T12:02:00Z"
CPU = pool()
SPOT = offer(spot=True)


def notice(kind: NoticeKind = I, end: float | None = END) -> Notice:
    return Notice("i-1", kind, end if kind is I else None)


def drained(reason: str, **fields: Any) -> Node:
    node = slot_node(CPU, "cpu1", up=True)
    return replace(node, **{"flags": node.flags | {"DRAIN"}, "reason": reason, "address": "10.0.0.1", **fields})


def up(**fields: Any) -> Node:
    return replace(slot_node(CPU, "cpu1", up=True), **{"address": "10.0.0.1", **fields})


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (notice(), f"burstd: {ENDS}"),
        (notice(end=None), "burstd: interruption"),
        (notice(R), "burstd: rebalance hint"),
    ],
)
def test_words_are_read_as_they_were_written(said: Notice, reason: str) -> None:
    assert notice_reason(said) == reason
    assert parse_reason(reason) == NodeNotice(said.kind, reason.removeprefix("burstd: "))
    assert parse_reason(f"bad disk; {reason}") == NodeNotice(said.kind, reason.removeprefix("burstd: "), "bad disk")
    assert parse_reason(f"{reason}?") is None
    found = parse_reason(reason)
    assert found is not None
    assert found.deadline == said.deadline


@pytest.mark.parametrize(
    ("node", "kind", "written"),
    [
        (up(), I, f"burstd: {ENDS}"),
        (up(reason=f"burstd: {ENDS}"), I, f"burstd: {ENDS}"),  # Of a machine before: Slurm took the drain off.
        (drained(""), R, "burstd: rebalance hint"),
        (drained("bad disk"), I, f"bad disk; burstd: {ENDS}"),
        (drained("burstd: rebalance hint"), I, f"burstd: {ENDS}"),
        (drained("bad disk; burstd: rebalance hint"), I, f"bad disk; burstd: {ENDS}"),
        (drained("burstd: rebalance hint"), R, ""),
        (drained(f"burstd: {ENDS}"), R, ""),
        (drained("burstd: interruption"), I, ""),
    ],
)
def test_what_is_written_on_a_node(node: Node, kind: NoticeKind, written: str) -> None:
    assert missing_reason(node, notice(kind)) == written


@pytest.mark.parametrize(
    ("state", "node", "over"),
    [
        (S.IN_SERVICE, up(), False),
        (S.IN_SERVICE, drained(f"burstd: {ENDS}"), True),
        (S.BOOTING, slot_node(CPU, "cpu1", up=False), False),
        (S.IN_SERVICE, None, True),  # A storage node.
        (S.TERMINATING, up(), True),
        (S.LOST, up(), True),
    ],
)
def test_when_a_notice_is_settled(state: S, node: Node | None, *, over: bool) -> None:
    assert notice_is_settled(notice(), claim("cpu1", state), node) is over


def test_a_notice_of_a_strange_machine_is_settled() -> None:
    assert notice_is_settled(notice(), None, None)


def plan(state: S, node: Node, *jobs: Job, told: Notice | None = None, **fields: Any) -> list[Action]:
    """What is to be done for one spot claim on cpu1."""
    mine = claim("cpu1", state, offer=SPOT, address="10.0.0.1", instance_id="i-1", jobs=("1",))
    notices = {mine.id: told} if told is not None else {}
    found = make_snapshot(*jobs, pools=(CPU,), claims=(mine,), nodes=(node,), offers=(SPOT,))
    assert isinstance(found.slurm, SlurmView)
    found = replace(found, slurm=replace(found.slurm, read_at=NOW), **fields)
    progress = replace(fields.get("runtime_state", RuntimeState()), notices=notices)
    return list(decide(replace(found, runtime_state=progress), (), Tuning()).actions)


def at_work(job_id: str = "7", **fields: Any) -> Job:
    return job(job_id, **{"state": JobState.RUNNING, "node_list": ("cpu1",), **fields})


BUSY = {"state": "MIXED", "cpus_allocated": 1}


@pytest.mark.parametrize("kind", [I, R])
def test_what_a_queue_announced_is_told_to_slurm(kind: NoticeKind) -> None:
    steps = plan(S.IN_SERVICE, up(**BUSY), at_work(), told=notice(kind))
    assert [a for a in steps if isinstance(a, DrainNodes)] == [
        DrainNodes(("c-cpu1",), ("cpu1",), notice_reason(notice(kind)))
    ]
    assert not [a for a in steps if isinstance(a, RequeueJobs)]


@pytest.mark.parametrize(("until", "requeued"), [(0.0, True), (NOW - 1, True), (NOW + 1, False)])
def test_a_job_is_left_alone_for_its_last_checkpoint(until: float, *, requeued: bool) -> None:
    data = {"7": StagingView(StageState.FETCHED, 0.0, ("cpu1",), last_checkpoint_until=until)}
    steps = plan(S.IN_SERVICE, drained(f"burstd: {ENDS}", **BUSY), at_work(), data=data)
    assert any(isinstance(a, RequeueJobs) for a in steps) is requeued


@pytest.mark.parametrize("state", [S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY])
def test_a_machine_that_is_no_node_is_given_up(state: S) -> None:
    node = up() if state is S.READY else slot_node(CPU, "cpu1", up=False)
    [move] = [a for a in plan(state, node, job(), told=notice()) if isinstance(a, ChangeClaimState)]
    assert (move.old, move.new, move.error) == (state, S.FAILED, "interrupted")


@pytest.mark.parametrize("state", [S.VALIDATING, S.READY])
def test_a_machine_with_a_job_is_not_given_up(state: S) -> None:
    steps = plan(state, up(**BUSY), at_work(), told=notice())
    assert [a for a in steps if isinstance(a, DrainNodes)]
    assert not [a for a in steps if isinstance(a, ChangeClaimState) and a.new is S.FAILED]


def test_a_node_that_ends_loses_its_jobs_and_is_closed() -> None:
    jobs = (at_work(), at_work("8+0", het_job_id="8"), job("8+1", state=JobState.RUNNING, het_job_id="8"),
            at_work("9_3", restarts=2), at_work("10", state=JobState.COMPLETING))  # fmt: skip
    steps = plan(S.IN_SERVICE, drained(f"burstd: {ENDS}", **BUSY), *jobs)
    [requeue] = [a for a in steps if isinstance(a, RequeueJobs)]
    assert [(r.job_id, r.queue_ids, r.restarts) for r in requeue.runs] == [
        ("7", ("7",), 0), ("8", ("8+0", "8+1"), 0), ("9_3", ("9_3",), 2)
    ]  # fmt: skip
    [gate] = [a for a in steps if isinstance(a, SetGate)]
    assert (gate.into_drain, gate.claim_reasons[-1]) == (("c-cpu1",), f"its machine is taken back: {ENDS}")


def test_a_run_is_requeued_once() -> None:
    progress = RuntimeState(requeued=frozenset({("7", 1)}))
    steps = plan(
        S.DRAINING, drained(f"burstd: {ENDS}", **BUSY), at_work(restarts=1), at_work("8"), runtime_state=progress
    )
    [requeue] = [a for a in steps if isinstance(a, RequeueJobs)]
    assert [r.job_id for r in requeue.runs] == ["8"]


def test_a_hint_leaves_jobs_alone_and_closes_the_node() -> None:
    steps = plan(S.IN_SERVICE, drained("burstd: rebalance hint", **BUSY), at_work())
    assert not [a for a in steps if isinstance(a, RequeueJobs)]
    assert [a.into_drain for a in steps if isinstance(a, SetGate)] == [("c-cpu1",)]


@pytest.mark.parametrize(("end", "closed"), [("rebalance hint", False), (ENDS, True)])
def test_a_node_that_a_person_holds_is_closed_only_for_an_end(end: str, *, closed: bool) -> None:
    steps = plan(S.IN_SERVICE, drained(f"bad disk; burstd: {end}", **BUSY), at_work())
    assert bool([a for a in steps if isinstance(a, SetGate) and a.into_drain]) is closed


@pytest.mark.parametrize(
    ("reason", "unmoved", "verdict", "words"),
    [
        (ENDS, (), "ends", f"the machine of cpu1 is taken back: {ENDS}"),
        (ENDS, (("7", 0),), "ends", "Slurm did not requeue it, so it runs until then"),
        ("interruption", (("7", 0),), "ends", "Slurm did not requeue it, so it runs until its machine ends"),
        ("rebalance hint", (), "runs", "may be taken back: rebalance hint; the job runs on"),
    ],
)
def test_what_is_said_of_a_job_there(reason: str, unmoved: tuple[Any, ...], verdict: str, words: str) -> None:
    mine = claim("cpu1", S.IN_SERVICE, offer=SPOT)
    found = make_snapshot(at_work(), pools=(CPU,), claims=(mine,), nodes=(drained(f"burstd: {reason}", **BUSY),))
    plan = decide(replace(found, runtime_state=RuntimeState(requeue_refused=frozenset(unmoved))), (), Tuning())
    [remark] = [r for r in plan.remarks if r.by == "spot"]
    assert remark.verdict == verdict
    assert words in remark.reason


def test_many_nodes_are_one_drain_and_one_requeue() -> None:
    """What runs on nodes that are drained already comes first."""
    slots = ("cpu1", "cpu2", "cpu3", "cpu4")
    claims = tuple(claim(s, S.IN_SERVICE, offer=SPOT, address="10.0.0.1") for s in slots)
    nodes = tuple((drained(f"burstd: {ENDS}") if s < "cpu3" else up()) for s in slots)
    nodes = tuple(replace(n, name=s, state="MIXED", cpus_allocated=1) for n, s in zip(nodes, slots, strict=True))
    jobs = tuple(job(s[-1], state=JobState.RUNNING, node_list=(s,)) for s in slots)
    notices = {c.id: notice() for c in claims}
    found = replace(
        make_snapshot(*jobs, pools=(CPU,), claims=claims, nodes=nodes), runtime_state=RuntimeState(notices=notices)
    )
    first, second = [a for a in decide(found, (), Tuning()).actions if isinstance(a, DrainNodes | RequeueJobs)]
    assert isinstance(first, RequeueJobs)
    assert [(r.job_id, r.reason) for r in first.runs] == [("1", f"cpu1: {ENDS}"), ("2", f"cpu2: {ENDS}")]
    assert second == DrainNodes(("c-cpu3", "c-cpu4"), ("cpu3", "cpu4"), f"burstd: {ENDS}")


@pytest.mark.parametrize(
    ("jobs", "spot", "bound"), [(("1",), False, True), (("1",), True, False), (("1", "2"), False, False)]
)
def test_a_machine_on_demand_is_kept_for_the_job_that_lost_others(
    jobs: tuple[str, ...], *, spot: bool, bound: bool
) -> None:
    mine = claim("cpu1", S.READY, offer=offer(spot=spot), jobs=jobs)
    waiting = job("1", restarts=2, reason="BeginTime", eligible=NOW + 60)
    found = make_snapshot(waiting, job("2"), pools=(CPU,), claims=(mine,))
    steps = decide(replace(found, interruptions={"1": frozenset({0, 1})}), (), Tuning()).actions
    assert bool([a for a in steps if isinstance(a, BindJob)]) is bound


@pytest.mark.parametrize(("eligible", "kept"), [(NOW + 60, True), (NOW - 10, True), (NOW - 70, False)])
def test_a_binding_waits_while_slurm_keeps_the_job(eligible: float, *, kept: bool) -> None:
    waiting = job("1", restarts=2, reason="BeginTime" if eligible > NOW else "Resources", eligible=eligible)
    found = make_snapshot(waiting, pools=(CPU,), claims=(claim("cpu1", S.IN_SERVICE, jobs=("1",)),))
    slurm = found.slurm
    assert isinstance(slurm, SlurmView)
    until = NOW + 300 * 86400.0
    held = Reservation("burstd-1", frozenset({"cpu1"}), ("ada",), frozenset(), "1", start=NOW, end=until)
    found = replace(
        found,
        slurm=replace(slurm, reservations=(held,)),
        bound={"1": frozenset({"cpu1"})},
        runtime_state=RuntimeState(bound_since={"1": NOW - 100}),
        interruptions={"1": frozenset({0, 1})},
    )
    unbound = [a for a in decide(found, (), Tuning(bind_timeout_s=60)).actions if isinstance(a, UnbindJob)]
    assert (unbound == []) is kept


def test_a_person_s_drain_is_a_person_s() -> None:
    steps = plan(S.IN_SERVICE, drained("bad disk", **BUSY), at_work())
    assert not [a for a in steps if isinstance(a, RequeueJobs | UndrainNodes)]
    assert not [a for a in steps if isinstance(a, SetGate) and a.into_drain]


@pytest.mark.parametrize(("spot", "known", "noted"), [(True, (), True), (True, (0,), False), (False, (), False)])
def test_a_loss_under_a_job_is_noted_for_spot_machines(*, spot: bool, known: tuple[int, ...], noted: bool) -> None:
    mine = claim("cpu1", S.LOST, offer=offer(spot=spot), error="lost")
    found = make_snapshot(at_work(), pools=(CPU,), claims=(mine,), nodes=(up(**BUSY),))
    found = replace(found, interruptions={"7": frozenset(known)} if known else {})
    steps = decide(found, (), Tuning()).actions
    assert [a.runs[0].job_id for a in steps if isinstance(a, RecordInterruptions)] == (["7"] if noted else [])


@pytest.mark.parametrize(
    ("fields", "then"),
    [
        ({}, "start"),
        # Too soon after its requeue for one that may meet nodes of its last run: but its machine is on its way by then.
        ({"eligible": NOW + 81, "cpus": 4}, "boot"),
        ({"eligible": NOW + 81, "nodes": 2, "nodes_max": 2, "cpus": 2}, "boot"),
        ({"eligible": NOW + 81, "cpus": 4, "cpus_per_node": 4}, "start"),
        ({"eligible": NOW + 118, "cpus_per_node": 1}, "start"),
        ({"eligible": NOW + 119, "cpus_per_node": 1}, "boot"),
        ({"eligible": NOW - 1}, "boot"),
        ({"eligible": NOW + 3600}, ""),
        ({"reason": "JobHeldUser"}, ""),
        ({"restarts": 2}, ""),
    ],
)
def test_a_requeued_job_need_not_wait(fields: dict[str, Any], then: str) -> None:
    waiting = job("7", **{"reason": "BeginTime", "eligible": NOW + 79, "restarts": 1, **fields})
    found = decide(replace(make_snapshot(waiting), interruptions={"7": frozenset({0})}), (), Tuning())
    assert [a for a in found.actions if isinstance(a, StartJobsNow)] == (
        [StartJobsNow(("7",))] if then == "start" else []
    )
    assert [want.jobs for want in found.target.wants] == ([("7",)] if then else [])


@pytest.mark.parametrize(
    ("reason", "off", "lifted"),
    [
        (f"burstd: {ENDS}", True, True),
        ("burstd: rebalance hint", True, True),
        ("bad disk; burstd: rebalance hint", True, False),
        ("bad disk", True, False),
        (f"burstd: {ENDS}", False, False),
    ],
)
def test_a_slot_without_a_machine_bears_no_notice(reason: str, *, off: bool, lifted: bool) -> None:
    flags = frozenset({"CLOUD", "DRAIN"} | ({"POWERED_DOWN"} if off else set()))
    steps = decide(make_snapshot(nodes=(drained(reason, flags=flags),), pools=(CPU,)), (), Tuning()).actions
    assert [a for a in steps if isinstance(a, UndrainNodes)] == ([UndrainNodes(("cpu1",))] if lifted else [])


def interrupted(*runs: int, **fields: Any) -> Snapshot:
    offers = (offer("a", "1", spot=True), offer("b", "2", spot=True), offer("a", "3"), offer("b", "4"))
    return replace(make_snapshot(job("1"), offers=offers, **fields), interruptions={"1": frozenset(runs)})


@pytest.mark.parametrize(("runs", "limit", "first"), [(2, 2, "a"), (1, 2, "spot"), (3, 0, "spot"), (0, 2, "spot")])
def test_after_some_interruptions_on_demand_comes_first(runs: int, limit: int, first: str) -> None:
    [want] = decide(interrupted(*range(runs)), (), Tuning(spot_interruptions=limit)).target.wants
    steady = first != "spot"
    assert [o.spot for o in want.offers] == ([False, False, True, True] if steady else [True, True, False, False])
    assert ("on demand" in want.reason) is steady


def test_explain_says_why_it_is_on_demand() -> None:
    found = decide(interrupted(0, 1), (), Tuning()).target
    verdict, reason = last_verdict(found)
    assert verdict == "boot"
    assert reason.endswith("cpu1, sky/r1/a/a/on-demand (on demand: its nodes were interrupted 2 times)")


def test_explain_says_it_of_a_job_that_shares_the_machine_too() -> None:
    offers = (offer("a", "1", spot=True), offer("a", "3"))
    found = make_snapshot(job("2"), job("1", submitted=NOW - 10), offers=offers)
    _, reason = last_verdict(decide(replace(found, interruptions={"1": frozenset({0, 1})}), (), Tuning()).target, "2")
    assert reason.endswith("on-demand (on demand: nodes of a job that shares it were interrupted 2 times)")


def test_without_an_on_demand_offer_spot_it_stays() -> None:
    found = replace(make_snapshot(job("1"), offers=(SPOT,)), interruptions={"1": frozenset({0, 1})})
    [want] = decide(found, (), Tuning()).target.wants
    assert want.offers == (SPOT,)
    assert "spot, no on-demand offer available" in want.reason
    assert target(job("1"), offers=(SPOT,)).wants[0].reason == "job 1"
