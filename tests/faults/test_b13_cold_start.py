"""B13: ``slurmctld -c`` while machines run: it has their nodes as powered down, and knows none of the addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.plan import ChangeClaimState, PowerDown, RegisterNodes, SetGate, StartSlurmd
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.staging.movement.moves import reachable_machines
from tests.planner.worlds import NOW, claim, make_snapshot, pool, slot_node

HELD = {"7": StagingView(StageState.COLLECTING, 0.0, ("cpu1",), since=NOW - 50, ended=NOW - 50, error="no answer")}

THERE = Instance("i-1", "sky", InstanceState.RUNNING, "c-cpu1", address="10.0.0.1")


def cold(
    *flags: str, state: str = "IDLE", claim_state: ClaimState = ClaimState.IN_SERVICE, output: bool = True
) -> Snapshot:
    slots = pool()
    one = claim("cpu1", claim_state, instance_id="i-1", address="10.0.0.1", in_service_from=NOW - 90)
    node = replace(slot_node(slots, "cpu1", up=False), state=state, flags=frozenset({"CLOUD", *flags}), address="cpu1")
    seen = make_snapshot(pools=(slots,), claims=(one,), nodes=(node,), data=HELD if output else {})
    return replace(seen, clouds={"sky": replace(seen.clouds["sky"], instances=(THERE,))})


def moves(seen: Snapshot) -> list[tuple[ClaimState, ClaimState]]:
    return [(a.old, a.new) for a in decide(seen, (), Tuning()).actions if isinstance(a, ChangeClaimState)]


@pytest.mark.parametrize("claim_state", [ClaimState.IN_SERVICE, ClaimState.READY])
@pytest.mark.parametrize(
    ("state", "flags"),
    [("IDLE", {"POWERED_DOWN"}), ("ALLOCATED", {"POWERED_DOWN", "POWER_UP"}), ("MIXED", {"POWERING_UP"})],
)
def test_its_machine_goes_behind_the_gate_and_is_proven_again(
    claim_state: ClaimState, state: str, flags: set[str]
) -> None:
    seen = cold(*flags, state=state, claim_state=claim_state)
    assert moves(seen) == [(claim_state, ClaimState.VALIDATING)]
    # What the next decision makes of it: Slurm is told the address, then slurmd is started anew.
    again = replace(
        seen, claims=tuple(replace(c, state=ClaimState.VALIDATING) for c in seen.claims),
        runtime_state=replace(seen.runtime_state, validated=frozenset({"c-cpu1"})),
    )  # fmt: skip
    actions = decide(again, (), Tuning()).actions
    assert [a.nodes for a in actions if isinstance(a, SetGate)] == [frozenset(again.pools["cpu"].slots)]
    if "POWER_UP" not in flags:
        assert [a for a in actions if isinstance(a, RegisterNodes)] == [RegisterNodes((("cpu1", "10.0.0.1"),))]
        assert isinstance(again.slurm, SlurmView)
        nodes = {name: replace(node, address="10.0.0.1") for name, node in again.slurm.nodes.items()}
        told = replace(again, slurm=replace(again.slurm, nodes=nodes))
        assert StartSlurmd("c-cpu1") in decide(told, (), Tuning()).actions


def test_its_output_is_still_fetched_meanwhile() -> None:
    (one,) = cold("POWERED_DOWN", claim_state=ClaimState.VALIDATING).claims
    assert reachable_machines([one]) == {"cpu1": one}
    assert reachable_machines([replace(one, in_service_from=None)]) == {}


@pytest.mark.parametrize("ended", [InstanceState.ERROR, InstanceState.RUNNING])
def test_output_keeps_it_while_it_is_proven_again(ended: InstanceState) -> None:
    seen = cold("POWERED_DOWN", claim_state=ClaimState.VALIDATING)
    late = replace(
        seen, claims=tuple(replace(c, since=NOW - 3600) for c in seen.claims),
        clouds={"sky": replace(seen.clouds["sky"], instances=(replace(THERE, state=ended),))},
    )  # fmt: skip
    assert moves(late) == []


@pytest.mark.parametrize("flags", [{"POWERING_DOWN"}, {"POWERED_DOWN", "POWER_DOWN"}, {"POWER_DOWN"}])
def test_a_node_on_its_way_down_is_left_to_slurm(flags: set[str]) -> None:
    assert moves(cold(*flags)) == []


def test_an_idle_machine_without_output_is_closed() -> None:
    actions = decide(cold("POWERED_DOWN", output=False), (), Tuning()).actions
    assert [a.into_drain for a in actions if isinstance(a, SetGate)] == [("c-cpu1",)]
    assert not [a for a in actions if isinstance(a, ChangeClaimState | PowerDown)]
