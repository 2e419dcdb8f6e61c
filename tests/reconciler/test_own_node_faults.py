"""Faults of nodes on premises: each is written down once, whoever ended in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from burstd.db import Store
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.reconciler.pollers.own_node_faults import OwnNodeFaults
from tests.db.samples import ManualClock
from tests.planner.worlds import make_snapshot, node

SICK = "unhealthy, Xid 79 on GPU 0000:2b:00.0 at 2026-11-24T05:53:00Z, jobs are requeued"


def seen(**reasons: str) -> Snapshot:
    """Nodes with these reasons: drained, but where Slurm lost them; ``cpu1`` is a slot."""
    nodes = {}
    for name, reason in reasons.items():
        lost = reason.startswith("Not responding")
        flags = frozenset() if lost or not reason else frozenset({"DRAIN"})
        nodes[name] = node(name, state="DOWN" if lost else "IDLE", flags=flags, reason=reason)
    snapshot = make_snapshot()
    assert isinstance(snapshot.slurm, SlurmView)
    return replace(snapshot, slurm=replace(snapshot.slurm, nodes={**snapshot.slurm.nodes, **nodes}))


def test_each_fault_is_written_down_once(tmp_path: Path) -> None:
    clock = ManualClock()
    with Store.open(tmp_path / "burstd.db", clock) as store:
        watch = OwnNodeFaults(store)

        def faults(snapshot: Snapshot) -> dict[str, int]:
            clock.time += 60
            watch.record(snapshot)
            return {one.node: one.faults for one in store.node_faults(0)}

        assert faults(seen(op1="", op2="looks bad", cpu1=f"burstd: {SICK}")) == {}
        sick = seen(op1=f"looks bad; burstd: {SICK}", op2="Not responding [slurm@2026-11-24T05:53:00]")
        assert faults(sick) == faults(sick) == {"op1": 1, "op2": 1}
        watch = OwnNodeFaults(store)
        assert faults(sick) == {"op1": 1, "op2": 1}
        assert faults(replace(sick, slurm=Unavailable("down", 0.0))) == {"op1": 1, "op2": 1}
        assert faults(seen(op1="", op2="")) == {"op1": 1, "op2": 1}
        again = SICK.replace("05:53", "09:11")
        assert faults(seen(op1=f"burstd: {again}", op2="Not responding")) == {"op1": 2, "op2": 2}
        [first, second] = store.node_faults(clock.time)
        assert (first.node, first.faults, first.reason) == ("op1", 1, again)
        assert (second.node, second.reason) == ("op2", "Not responding")
