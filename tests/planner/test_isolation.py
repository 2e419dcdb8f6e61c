"""Finding what a decision cannot be made with, and leaving it alone."""

from __future__ import annotations

from collections.abc import Collection

import hypothesis.strategies as st
from hypothesis import given

from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.plan import Plan, PowerDown, RemoveOrphans, SetGate, TerminateMachines
from burstd.domain.slurm.node import Reservation
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.isolation import (
    MAX_CULPRITS,
    find_culprits,
    node_subject,
    plan_without_subjects,
    with_affected_nodes,
    without_subjects,
)
from tests.planner.worlds import NOW, claim, make_snapshot, pool, slot_node


@given(st.integers(0, 300), st.sets(st.integers(0, 299), max_size=MAX_CULPRITS + 2))
def test_those_to_blame_are_found_with_few_tries(many: int, numbers: set[int]) -> None:
    known = [f"job:{n}" for n in range(many)]
    bad = {f"job:{n}" for n in numbers if n < many}
    tries = 0

    def works(out: Collection[str]) -> bool:
        nonlocal tries
        tries += 1
        return bad <= set(out)

    found = find_culprits(known, works)
    assert set(found) <= bad
    assert len(set(found)) == min(len(bad), MAX_CULPRITS)
    assert tries <= (MAX_CULPRITS + 1) * 12


def site() -> Snapshot:
    cpu = pool()
    ours = [claim("cpu1", S.IN_SERVICE, instance_id="i1"), claim("cpu2", S.IN_SERVICE, instance_id="i2")]
    seen = make_snapshot(pools=(cpu,), claims=tuple(ours))
    nodes = {slot: slot_node(cpu, slot, up=slot in ("cpu1", "cpu2")) for slot in cpu.slots}
    gate = Reservation("burstd", frozenset({"cpu3", "cpu4"}))
    return Snapshot(NOW, "x", seen.pools, SlurmView((), nodes, (gate,)), seen.clouds, seen.claims)


def test_a_node_that_is_left_alone_is_neither_moved_nor_ended_nor_taken_for_an_orphan() -> None:
    snapshot = site()
    held = with_affected_nodes(snapshot, {node_subject("cpu1")})
    rest = without_subjects(snapshot, held)
    assert ([c.slot for c in rest.claims], [c.slot for c in rest.quarantined_claims]) == (["cpu2"], ["cpu1"])
    lone = Instance("i1", "sky", InstanceState.RUNNING, "c-cpu1")
    plan = Plan(
        (
            SetGate(frozenset({"cpu1", "cpu3", "cpu4"}), "the reservation differs"),
            TerminateMachines(("c-cpu1", "c-cpu2"), "x"),
            PowerDown(("cpu1", "cpu2"), True, "x"),
            RemoveOrphans("sky", (lone,), (), "x"),
        )
    )
    assert plan_without_subjects(plan, snapshot, held).actions == (
        TerminateMachines(("c-cpu2",), "x"),
        PowerDown(("cpu2",), True, "x"),
    )
