"""Which nodes are opened, bound to a job, or closed; which slots and machines are tidied up."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import FabricTest, Offer, Pool
from burstd.domain.plan import BindJob, ChangeClaimState, PowerDown, RemoveOrphans, SetGate, TestFabric, UnbindJob
from burstd.domain.plugins.policy import NodeRelease, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import CloudView, RuntimeState, Sighting, SlurmView, Snapshot
from burstd.planner.lifecycle.gate import drain_unwanted_ready, gate_steps
from burstd.planner.lifecycle.orphans import remove_orphans, reset_slots, wants_of_slurm
from burstd.planner.snapshot_view import build_view
from burstd.planner.timeouts import Tuning

NOW = 10_000.0
SHAPE = Shape(4, 8000)
OFFER = Offer("sky", "r", "z", "t", spot=False, shape=SHAPE, price=Decimal(1))
SLOTS = ("cl1", "cl2", "cl3", "cl4")
POOL = Pool("gpu", SLOTS, ("burst",), SHAPE)
TUNING = Tuning(bind_depth=3, bind_timeout_s=60, gang_timeout_s=900, orphan_grace_s=120)


def claim(slot: str, state: S, **fields: Any) -> Claim:
    base = Claim(f"c-{slot}", "x", "gpu", slot, OFFER, Cause.DEMAND, state, NOW - 100, NOW - 10, jobs=("7",))
    return replace(base, **fields)


def job(job_id: str = "7", **fields: Any) -> Job:
    return replace(Job(job_id, "ada", JobState.PENDING, ("burst",), NOW - 200, priority=100), **fields)


def up(slot: str, **fields: Any) -> Node:
    return replace(Node(slot, "IDLE", frozenset({"CLOUD"}), ("burst",), cpus=4, address=f"a-{slot}"), **fields)


def off(slot: str) -> Node:
    return Node(slot, "IDLE", frozenset({"CLOUD", "POWERED_DOWN"}), ("burst",), cpus=4, address=slot)


def snap(*claims: Claim, jobs: tuple[Job, ...] = (job(),), gated: tuple[str, ...] = SLOTS, **fields: Any) -> Snapshot:
    nodes = {s: off(s) for s in SLOTS} | {
        c.slot: up(c.slot) for c in claims if c.state in (S.READY, S.IN_SERVICE, S.DRAINING)
    }
    nodes |= fields.pop("nodes", {})
    gate = (Reservation("burstd", frozenset(gated)),)
    base = Snapshot(NOW, "x", {"gpu": POOL}, SlurmView(jobs, nodes, gate, NOW - 0.1), {}, claims)
    return replace(base, **fields)


def moved(snapshot: Snapshot, target: Target | None = None) -> list[object]:
    return list(gate_steps(build_view(snapshot, "burstd"), target or Target(), TUNING))


def test_the_gate_is_made_where_it_is_missing() -> None:
    [step] = moved(snap(gated=()))
    assert isinstance(step, SetGate)
    assert step.nodes == set(SLOTS)


def test_the_gate_is_renewed_before_slurm_ends_it() -> None:
    snapshot = snap()
    slurm = snapshot.slurm
    assert isinstance(slurm, SlurmView)
    soon = Reservation("burstd", frozenset(SLOTS), end=NOW + 86400)
    [step] = moved(replace(snapshot, slurm=replace(slurm, reservations=(soon,))))
    assert isinstance(step, SetGate)
    assert step.nodes == set(SLOTS)


def test_nothing_to_do_costs_no_call() -> None:
    assert moved(snap(claim("cl1", S.IN_SERVICE), gated=SLOTS[1:])) == []


def test_slots_that_slurm_does_not_know_are_not_named() -> None:
    snapshot = snap()
    slurm = snapshot.slurm
    assert isinstance(slurm, SlurmView)
    fewer = replace(slurm, nodes={s: n for s, n in slurm.nodes.items() if s != "cl4"}, reservations=())
    [step] = moved(replace(snapshot, slurm=fewer))
    assert isinstance(step, SetGate)
    assert step.nodes == {"cl1", "cl2", "cl3"}


def test_all_that_is_ready_opens_in_one_update() -> None:
    [step] = moved(snap(claim("cl1", S.READY), claim("cl2", S.READY), claim("cl3", S.BOOTING)))
    assert isinstance(step, SetGate)
    assert step.nodes == {"cl3", "cl4"}
    assert step.into_service == ("c-cl1", "c-cl2")


def test_a_job_deep_in_the_queue_gets_its_node_bound() -> None:
    ahead = tuple(job(str(n), priority=200) for n in range(100, 105))
    [step] = moved(snap(claim("cl1", S.READY), jobs=(*ahead, job())))
    assert isinstance(step, BindJob)
    assert (step.job_id, step.user, step.nodes) == ("7", "ada", ("cl1",))


def test_a_gang_waits_for_its_last_node_and_is_then_bound() -> None:
    big = job(nodes=2)
    first, second = claim("cl1", S.READY, gang="7"), claim("cl2", S.VALIDATING, gang="7")
    assert moved(snap(first, second, jobs=(big,))) == []
    [step] = moved(snap(first, replace(second, state=S.READY), jobs=(big,)))
    assert isinstance(step, BindJob)
    assert step.nodes == ("cl1", "cl2")


TESTED = replace(POOL, fabric_test=FabricTest("ib_write_bw"))
TRIO = tuple(claim(slot, S.READY, gang="7") for slot in ("cl1", "cl2", "cl3"))
LATE = tuple(replace(one, since=NOW - 901) for one in TRIO)


@pytest.mark.parametrize(
    ("case", "members", "tested", "busy", "steps"),
    [
        ("the first two", TRIO, "", "", ["cl1-cl2"]),
        ("nothing but the test while it is under way", TRIO, "", "12", []),
        ("the third with one that has passed", TRIO, "12", "", ["cl3-cl1"]),
        ("a pair under way, and no partner for the third so far", TRIO, "1", "12", []),
        ("all have passed", TRIO, "123", "", ["bound"]),
        ("a replacement with one that has passed", (*TRIO[:2], replace(TRIO[2], state=S.VALIDATING)), "1", "",
         ["cl2-cl1"]),
        ("those that are ready do not wait for the others", (*TRIO[:2], replace(TRIO[2], state=S.BOOTING)), "", "",
         ["cl1-cl2"]),
        ("one that is alone so far", (TRIO[0], replace(TRIO[1], state=S.BOOTING)), "", "", []),
        ("one that stays alone opens when its gang does not come", (LATE[0], replace(LATE[1], state=S.BOOTING)), "", "",
         ["opened cl1"]),
        ("not tested in time", LATE[:2], "", "", ["failed cl1", "failed cl2"]),
        ("not tested in time, as the test is under way", LATE[:2], "", "12", []),
        ("the last one has come lately", (LATE[0], TRIO[1]), "", "", ["cl1-cl2"]),
        ("jobs have run on it", tuple(replace(c, in_service_from=NOW - 50) for c in TRIO), "", "", ["bound"]),
        ("no gang", tuple(replace(c, gang="") for c in TRIO[:1]), "", "", ["opened cl1"]),
    ],
)  # fmt: skip
def test_a_gang_whose_fabric_is_tested(
    case: str, members: tuple[Claim, ...], tested: str, busy: str, steps: list[str]
) -> None:
    state = RuntimeState(fabric_tested=frozenset(f"c-cl{n}" for n in tested), busy=frozenset(f"c-cl{n}" for n in busy))
    found = moved(snap(*members, jobs=(job(nodes=len(members)),), pools={"gpu": TESTED}, runtime_state=state))
    words = []
    for step in found:
        match step:
            case TestFabric(first, second):
                words.append(f"{first[2:]}-{second[2:]}")
            case BindJob():
                words.append("bound")
            case SetGate():
                words.append(f"opened {', '.join(c[2:] for c in step.into_service)}")
            case ChangeClaimState(claim_id, S.READY, S.FAILED):
                words.append(f"failed {claim_id[2:]}")
            case _:
                words.append(str(step))
    assert words == steps, case


def test_a_gang_waits_for_a_node_that_becomes_ready_in_the_same_plan() -> None:
    members = (claim("cl1", S.READY, gang="7"), claim("cl2", S.VALIDATING, gang="7"))
    view = build_view(snap(*members, jobs=(job(nodes=2),)), "burstd")
    assert gate_steps(view, Target(), TUNING, frozenset({"c-cl2"})) == []


def test_a_gang_waits_for_the_replacement_of_a_failed_node() -> None:
    first, failed = claim("cl1", S.READY, gang="7"), claim("cl2", S.TERMINATING, gang="7")
    assert moved(snap(first, failed, jobs=(job(nodes=2),))) == []
    patient = replace(first, since=NOW - 901)
    [step] = moved(snap(patient, failed, jobs=(job(nodes=2),)))
    assert isinstance(step, SetGate)
    assert step.into_service == ("c-cl1",)


def test_the_nodes_of_an_array_task_open_together() -> None:
    tasks = job(nodes=2, array_job_id="7", array_tasks="1-9", tasks=9)
    first, second = claim("cl1", S.READY, gang="7_4"), claim("cl2", S.VALIDATING, gang="7_4")
    assert moved(snap(first, second, jobs=(tasks,))) == []
    [step] = moved(snap(first, replace(second, state=S.READY), jobs=(tasks,)))
    assert isinstance(step, SetGate)
    assert step.into_service == ("c-cl1", "c-cl2")


def test_a_gang_whose_job_is_gone_opens_for_all() -> None:
    members = [claim(s, S.READY, gang="7") for s in ("cl1", "cl2")]
    [step] = moved(snap(*members, jobs=()))
    assert isinstance(step, SetGate)
    assert step.into_service == ("c-cl1", "c-cl2")


def test_bound_nodes_stay_behind_the_gate_until_their_job_runs() -> None:
    bound = {"7": frozenset({"cl1"})}
    since = RuntimeState(bound_since={"7": NOW - 1})
    assert moved(snap(claim("cl1", S.IN_SERVICE), bound=bound, runtime_state=since)) == []
    gate, unbind = moved(
        snap(claim("cl1", S.IN_SERVICE), bound=bound, jobs=(job(state=JobState.RUNNING),), runtime_state=since)
    )
    assert isinstance(gate, SetGate)
    assert gate.nodes == {"cl2", "cl3", "cl4"}
    assert isinstance(unbind, UnbindJob)


def test_a_binding_that_does_not_take_ends() -> None:
    late = RuntimeState(bound_since={"7": NOW - 61})
    steps = moved(snap(claim("cl1", S.IN_SERVICE), bound={"7": frozenset({"cl1"})}, runtime_state=late))
    assert [type(s) for s in steps] == [SetGate, UnbindJob]


def test_a_job_that_slurm_will_not_bind_has_its_nodes_opened_to_all() -> None:
    members = [claim(s, S.READY, gang="7") for s in ("cl1", "cl2")]
    [step] = moved(snap(*members, jobs=(job(nodes=2),), runtime_state=RuntimeState(unbindable=frozenset({"7"}))))
    assert isinstance(step, SetGate)
    assert step.into_service == ("c-cl1", "c-cl2")


def test_a_binding_that_was_broken_off_half_way_is_made_again() -> None:
    members = [claim(s, S.READY, gang="7") for s in ("cl1", "cl2")]
    bound = {"7": frozenset({"cl1", "cl2"})}
    [step] = moved(snap(*members, jobs=(job(nodes=2),), bound=bound))
    assert isinstance(step, BindJob), "the reservation is there, and the job is not in it"


def test_a_binding_ends_before_its_node_goes() -> None:
    claims = (claim("cl1", S.DRAINING), claim("cl2", S.IN_SERVICE))
    gate, unbind = moved(snap(*claims, bound={"7": frozenset({"cl1", "cl2"})}))
    assert isinstance(gate, SetGate)
    assert gate.nodes == {"cl1", "cl3", "cl4"}
    assert unbind == UnbindJob("7", "its node cl1 is draining")


@pytest.mark.parametrize("state", [S.READY, S.IN_SERVICE])
@pytest.mark.parametrize("busy", [False, True])
def test_nodes_of_a_pool_that_was_taken_away_close_when_idle(state: S, busy: bool) -> None:
    nodes = {"cl1": up("cl1", cpus_allocated=2 if busy else 0)}
    snapshot = snap(claim("cl1", state), gated=("cl1",) if state is S.READY else (), nodes=nodes, pools={})
    view = build_view(snapshot, "burstd")
    held = drain_unwanted_ready(view, Target())
    moving = frozenset(step.claim_id for step in held if isinstance(step, ChangeClaimState))
    steps = [*held, *gate_steps(view, Target(), TUNING, moving)]
    closed = [
        s
        for s in steps
        if isinstance(s, ChangeClaimState) or (isinstance(s, SetGate) and s.into_drain and s.nodes == {"cl1"})
    ]
    assert len(closed) == (0 if busy else 1)


def test_released_nodes_close_but_not_on_hold() -> None:
    release = Target(releases=(NodeRelease("c-cl1", "gpu", "idle for 300 s"),))
    [step] = moved(snap(claim("cl1", S.IN_SERVICE), gated=SLOTS[1:]), release)
    assert isinstance(step, SetGate)
    assert step.into_drain == ("c-cl1",)
    assert step.nodes == set(SLOTS)
    assert moved(snap(claim("cl1", S.IN_SERVICE), gated=SLOTS[1:], paused="maintenance"), release) == []


def test_a_held_or_dead_node_closes() -> None:
    held = snap(claim("cl1", S.IN_SERVICE), gated=SLOTS[1:], drained_slots=frozenset({"cl1"}))
    dead = snap(claim("cl1", S.IN_SERVICE), gated=SLOTS[1:], nodes={"cl1": up("cl1", state="DOWN")})
    for snapshot in (held, dead):
        [step] = moved(snapshot)
        assert isinstance(step, SetGate)
        assert step.into_drain == ("c-cl1",)


def test_a_ready_node_that_is_held_never_opens() -> None:
    snapshot = snap(claim("cl1", S.READY), drained_slots=frozenset({"cl1"}))
    assert moved(snapshot) == []
    [step] = drain_unwanted_ready(build_view(snapshot, "burstd"), Target())
    assert isinstance(step, ChangeClaimState)
    assert step.new is S.DRAINING


def test_slurm_waking_a_slot_by_itself_is_served() -> None:
    waking = replace(off("cl2"), flags=frozenset({"CLOUD", "POWERING_UP"}))
    view = build_view(snap(nodes={"cl2": waking}), "burstd")
    assert view.slurm is not None
    [want] = wants_of_slurm(view.snapshot, view.slurm, Target(offers={"gpu": (OFFER,)}))
    assert (want.slots, want.cause) == (("cl2",), Cause.SLURM)
    assert reset_slots(view, TUNING) == []


def test_a_slot_that_is_up_or_down_without_a_machine_is_reset_unless_a_job_is_on_it() -> None:
    nodes = {"cl1": up("cl1"), "cl2": up("cl2", state="DOWN"), "cl3": up("cl3", cpus_allocated=2)}
    [step] = reset_slots(build_view(snap(nodes=nodes), "burstd"), TUNING)
    assert isinstance(step, PowerDown)
    assert step.nodes == ("cl1", "cl2")
    assert step.force


@pytest.mark.parametrize(
    ("reason", "reset"), [("ResumeTimeout reached", True), ("burstd: machine lost", True), ("broken fan", False)]
)
def test_a_slot_that_is_down_while_off_is_reset_unless_a_person_set_it_down(reason: str, reset: bool) -> None:
    down = replace(off("cl1"), state="DOWN", reason=reason)
    snapshot = snap(nodes={"cl1": down})
    steps = reset_slots(build_view(snapshot, "burstd"), TUNING)
    assert [step.nodes for step in steps if isinstance(step, PowerDown)] == ([("cl1",)] if reset else [])
    assert "cl1" not in snapshot.free_slots(POOL)


def stray(instances: tuple[Instance, ...], seen: Sighting, **fields: Any) -> list[object]:
    keys = {f"sky/{i.id}": seen for i in instances} | {"sky/v1": seen}
    cloud = CloudView((), instances, (Leftover("volume", "v1", "sky", "old"),), NOW - 1)
    snapshot = snap(clouds={"sky": cloud}, runtime_state=RuntimeState(orphan_sightings=keys), **fields)
    return list(remove_orphans(snapshot, build_view(snapshot, "burstd"), TUNING))


def test_orphans_go_after_two_sightings_and_the_grace_period() -> None:
    lone = Instance("i9", "sky", InstanceState.RUNNING, "old", address="a-cl3")
    assert stray((lone,), Sighting(1, NOW - 500)) == []
    assert stray((lone,), Sighting(9, NOW - 60)) == []
    [step] = stray((lone,), Sighting(2, NOW - 121))
    assert isinstance(step, RemoveOrphans)
    assert (step.instances, [left.id for left in step.leftovers]) == ((lone,), ["v1"])


def test_an_orphan_on_which_a_job_runs_is_left_alone() -> None:
    lone = Instance("i9", "sky", InstanceState.RUNNING, "old", address="a-cl3")
    working = {"cl3": up("cl3", state="ALLOCATED", cpus_allocated=4)}
    assert stray((lone,), Sighting(2, NOW - 121), nodes=working) == [], "what hangs on it stays as well"
    other = Instance("i8", "sky", InstanceState.RUNNING, "older", address="a-cl2")
    [step] = stray((lone, other), Sighting(2, NOW - 121), nodes=working)
    assert isinstance(step, RemoveOrphans)
    assert (step.instances, step.leftovers) == ((other,), ())
