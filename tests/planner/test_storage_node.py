"""The storage node of a store: when it is started, kept and ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.plan import Action, ChangeClaimState, LaunchMachine, MakeClaim, ValidateNode
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import CircuitBreaker, RuntimeState, Sighting, SlurmView, Snapshot, Unavailable
from burstd.domain.staging import Directives, StageIn, StageOut, StageState, Staging, StagingView, Tree
from burstd.domain.storage_node import StorageNodeView
from burstd.planner.decide import decide
from burstd.planner.staging.affordable_inputs import jobs_with_affordable_input
from burstd.planner.staging.storage_node import storage_node_alarms, storage_node_need, storage_node_steps
from burstd.planner.timeouts import Tuning
from policies.budget import plugin
from tests.planner.worlds import NOW, claim, job, make_snapshot, offer

S, C = StageState, ClaimState
IN = StageIn("data", "data")
OUT = StageOut(".", "home")
TREE = Tree("in", "d" * 64, (), 1, 10)
SLOTS = frozenset({"gpu1", "gpu2"})
POOL = Pool("storage-near", ("storage-near",), (), Shape(1, 1), (OfferRule("sky"),))
IDLE_S = 600.0


def row(state: StageState, **fields: Any) -> Staging:
    base = Staging("7", "ada", 1, 1, Directives((IN,), (OUT,)), state, NOW, NOW, store="near", trees={"data": TREE})
    return replace(base, **fields)


NO_INPUT = Directives((), (OUT,))


@pytest.mark.parametrize(
    ("staging", "start", "keep"),
    [
        (row(S.WAITING, trees={}), True, True),
        (row(S.WAITING, trees={}, directives=NO_INPUT), False, False),
        (row(S.UPLOADING, trees={}), True, True),
        (row(S.STAGED), True, True),
        (row(S.STAGED, trees={}), False, False),  # on premises, or without input
        (row(S.FETCHING, nodes=("gpu1",)), True, True),
        (row(S.FETCHED, nodes=("gpu1",)), False, True),
        (row(S.FETCHED, nodes=("gpu1",), trees={}, directives=NO_INPUT), False, False),
        (row(S.COLLECTING, nodes=("gpu1",)), True, True),
        (row(S.COLLECTING, nodes=("onprem1",), trees={}), False, False),
        (row(S.DELIVERING, nodes=("gpu1",), outputs={"gpu1/0": TREE}), False, True),
        (row(S.DELIVERING, nodes=("onprem1",), trees={}), False, False),
        (row(S.HELD, resume="delivering", outputs={"gpu1/0": TREE}), False, True),
        (row(S.HELD, resume="collecting", outputs={}), False, False),
        (row(S.HELD, resume="waiting"), False, False),
        (row(S.DELIVERED, nodes=("gpu1",), outputs={"gpu1/0": TREE}), False, False),
    ],
)
def test_what_a_jobs_data_wants_of_the_node(staging: Staging, start: bool, keep: bool) -> None:
    found = storage_node_need([staging], SLOTS, {"7"})
    assert (bool(found.start), bool(found.keep)) == (start, keep)
    assert "job 7" in found.keep or not keep


@pytest.mark.parametrize("state", [S.WAITING, S.UPLOADING, S.STAGED])
@pytest.mark.parametrize(
    ("limit_s", "budget", "kept"),
    [(0.0, {"limit": 50}, False), (60.0, {"users": {"*": {"limit": 0}}}, False), (60.0, {"limit": 50}, True),
     (0.0, {"unlimited_s": 60}, True)],
    ids=["no time limit", "no money", "money", "no limit on money"],
)  # fmt: skip
def test_a_job_that_nobody_pays_for_keeps_no_node(
    state: StageState, limit_s: float, budget: dict[str, Any], kept: bool
) -> None:
    waits = job("7", time_limit_s=limit_s, reason="BurstBufferStageIn")
    data = {"7": StagingView(state, NOW + 9000 if state is S.WAITING else 0.0, store="near")}
    at = replace(make_snapshot(waits, data=data), storage_nodes=(node(),))
    chain = (plugin.make(plugin.settings(**budget)),)
    found = jobs_with_affordable_input(frozenset(), at, chain)
    wanted = storage_node_need([row(state)], SLOTS, found)
    assert (bool(wanted.start), bool(wanted.keep)) == (kept, kept)
    # Slots that others have now are no reason, nor that Slurm does not answer.
    full = replace(at, drained_slots=frozenset({"cpu1", "cpu2", "cpu3", "cpu4"}))
    assert jobs_with_affordable_input(found, replace(at, slurm=Unavailable("down", NOW)), chain) == found
    assert jobs_with_affordable_input(found, full, ()) == {"7"}


def test_output_keeps_the_node_whoever_pays() -> None:
    assert storage_node_need([row(S.COLLECTING, nodes=("gpu1",))], SLOTS, frozenset()).start
    assert storage_node_need([row(S.DELIVERING, outputs={"gpu1/0": TREE})], SLOTS, frozenset()).keep


def node(**fields: Any) -> StorageNodeView:
    return replace(StorageNodeView("near", POOL, IDLE_S), **fields)


def storage(state: ClaimState, **fields: Any) -> Claim:
    base = claim("storage-near", state, pool="storage-near", cause=Cause.STORAGE, offer=offer(), address="10.0.0.9")
    return replace(base, **fields)


def seen(*claims: Claim, wants: StorageNodeView, **fields: Any) -> Snapshot:
    return replace(make_snapshot(), storage_claims=claims, storage_nodes=(wants,), **fields)


def steps(snapshot: Snapshot) -> list[Action]:
    return storage_node_steps(snapshot, Tuning())


def moves(snapshot: Snapshot) -> list[tuple[ClaimState, ClaimState]]:
    return [(a.old, a.new) for a in steps(snapshot) if isinstance(a, ChangeClaimState)]


def test_it_is_launched_as_the_cheapest_offer_when_input_waits() -> None:
    small, large = offer("small", "1"), offer("large", "2")
    at = replace(
        make_snapshot(offers=(large, small)), storage_nodes=(node(start_reason="input of job 7 waits for it"),)
    )
    [made] = storage_node_steps(at, Tuning())
    assert isinstance(made, MakeClaim)
    assert (made.claim.pool, made.claim.slot, made.claim.offer) == ("storage-near", "storage-near", small)
    assert (made.claim.cause, made.claim.reason) == (Cause.STORAGE, "input of job 7 waits for it")
    stockout = CircuitBreaker("sky/r1/a/small/on-demand", "capacity", 1, NOW + 60)
    [other] = storage_node_steps(replace(at, breakers=(stockout,)), Tuning())
    assert isinstance(other, MakeClaim)
    assert other.claim.offer == large
    none = replace(at, breakers=(stockout, replace(stockout, key="sky/r1/a/large/on-demand")))
    assert storage_node_steps(none, Tuning()) == []
    assert "cannot be launched: sky/r1/a" in storage_node_alarms(none)[0]


@pytest.mark.parametrize("state", [*ClaimState])
def test_no_second_one_is_launched_beside_a_claim_that_lives(state: ClaimState) -> None:
    wants = node(start_reason="input of job 7 waits for it")
    assert not [a for a in steps(seen(storage(state), wants=wants)) if isinstance(a, MakeClaim)]


def test_on_hold_nothing_is_launched_and_nothing_ended() -> None:
    assert steps(seen(wants=node(start_reason="x"), paused="looking")) == []
    assert steps(seen(storage(C.PLANNED), wants=node(start_reason="x"), paused="looking")) == []
    assert moves(seen(storage(C.IN_SERVICE), wants=node(), paused="looking")) == []


def gone(times: int, since_s: float, *, silent: bool = True) -> RuntimeState:
    """Lists lack the storage node; ``silent``: so does its shell."""
    heard = {"c-storage-near": NOW} if silent else {}
    return RuntimeState(missing_sightings={"c-storage-near": Sighting(times, NOW - since_s)}, unreachable_at=heard)


@pytest.mark.parametrize(
    ("state", "wants", "progress", "expected"),
    [
        (
            C.VALIDATING,
            node(start_reason="x"),
            RuntimeState(validated=frozenset({"c-storage-near"})),
            [(C.VALIDATING, C.READY)],
        ),
        (C.READY, node(), RuntimeState(), [(C.READY, C.IN_SERVICE)]),
        (C.IN_SERVICE, node(keep_reason="x"), RuntimeState(), []),
        (C.IN_SERVICE, node(idle_since=NOW - IDLE_S + 1), RuntimeState(), []),
        (C.IN_SERVICE, node(idle_since=NOW - IDLE_S), RuntimeState(), [(C.IN_SERVICE, C.DRAINING)]),
        (C.DRAINING, node(), RuntimeState(), [(C.DRAINING, C.TERMINATING)]),
        (C.DRAINING, node(start_reason="x"), RuntimeState(), [(C.DRAINING, C.READY)]),
        (C.FAILED, node(start_reason="x"), RuntimeState(), [(C.FAILED, C.TERMINATING)]),
        (C.LOST, node(start_reason="x"), RuntimeState(), [(C.LOST, C.TERMINATING)]),
        (C.IN_SERVICE, node(start_reason="x"), gone(2, 20), [(C.IN_SERVICE, C.LOST)]),
        (C.IN_SERVICE, node(start_reason="x"), gone(2, 20, silent=False), []),
        (C.IN_SERVICE, node(keep_reason="output of job 7 is on it"), gone(2, 20, silent=False), []),
        (C.IN_SERVICE, node(keep_reason="output of job 7 is on it"), gone(2, 20), [(C.IN_SERVICE, C.LOST)]),
        (C.IN_SERVICE, node(start_reason="x"), gone(1, 20), []),
        (C.VALIDATING, node(), gone(2, 20), [(C.VALIDATING, C.LOST)]),
    ],
)
def test_the_steps_of_its_life(
    state: ClaimState, wants: StorageNodeView, progress: RuntimeState, expected: list[tuple[ClaimState, ClaimState]]
) -> None:
    one = storage(state, in_service_from=NOW - 3600)
    assert moves(seen(one, wants=wants, runtime_state=progress)) == expected


def test_it_is_not_ended_before_it_has_been_open_for_its_idle_time() -> None:
    young = storage(C.IN_SERVICE, in_service_from=NOW - 10)
    assert moves(seen(young, wants=node(idle_since=NOW - 2 * IDLE_S))) == []


def test_it_is_launched_and_proved_as_others_are_and_given_up_in_time() -> None:
    assert [type(a) for a in steps(seen(storage(C.PLANNED), wants=node(start_reason="x")))] == [LaunchMachine]
    assert [type(a) for a in steps(seen(storage(C.LAUNCHING), wants=node(start_reason="x")))] == [LaunchMachine]
    assert [type(a) for a in steps(seen(storage(C.VALIDATING), wants=node(start_reason="x")))] == [ValidateNode]
    late = storage(C.VALIDATING, since=NOW - Tuning().validation_timeout_s - 1)
    assert moves(seen(late, wants=node(start_reason="x"))) == [(C.VALIDATING, C.FAILED)]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (C.PLANNED, [(C.PLANNED, C.GONE)]),
        (C.BOOTING, [(C.BOOTING, C.FAILED)]),
        (C.VALIDATING, [(C.VALIDATING, C.FAILED)]),
        (C.IN_SERVICE, [(C.IN_SERVICE, C.DRAINING)]),
    ],
)
def test_a_store_that_is_not_configured_any_more_loses_its_node_unless_output_is_on_it(
    state: ClaimState, expected: list[tuple[ClaimState, ClaimState]]
) -> None:
    left = replace(POOL, rules=())
    one = storage(state, in_service_from=NOW - 10)
    assert moves(seen(one, wants=StorageNodeView("near", left, 0.0, idle_since=NOW))) == expected
    owed = seen(storage(C.IN_SERVICE), wants=StorageNodeView("near", left, 0.0, keep_reason="output of job 7 is on it"))
    assert moves(owed) == []
    assert "restore [staging.stores.near]" in storage_node_alarms(owed)[0]


def test_slurms_part_of_a_decision_never_sees_it_and_it_needs_no_slurm() -> None:
    at = seen(storage(C.IN_SERVICE), wants=node(keep_reason="x"))
    alone = decide(make_snapshot(), (), Tuning())
    assert decide(at, (), Tuning()).actions == alone.actions
    deaf = replace(at, slurm=Unavailable("gone", NOW), storage_claims=(storage(C.READY),))
    assert [(a.old, a.new) for a in decide(deaf, (), Tuning()).actions if isinstance(a, ChangeClaimState)] == [
        (C.READY, C.IN_SERVICE)
    ]
    assert isinstance(at.slurm, SlurmView)
