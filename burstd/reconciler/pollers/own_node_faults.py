"""Writes down each fault of a node on premises: that it drained itself for one, or that Slurm lost it. Nothing else."""

from __future__ import annotations

from burstd.db import NODE, NODE_FAULT, Store
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.planner.lifecycle.spot_notices import notice_of_node

_LOST = "Not responding"
"""Slurm's reason for a node that it does not hear any more."""


class OwnNodeFaults:
    """An event for each, once, also over burstd's own end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, str] | None = None
        """By node, at the last look; None: this process has not looked yet, and the record says what is known."""

    def record(self, snapshot: Snapshot) -> None:
        """Writes down the faults that were not there before. Raises the store's errors."""
        if isinstance(snapshot.slurm, Unavailable):
            return
        # Most nodes have no reason, and are not looked up among the slots of the cloud.
        faults = {name: fault for name, node in snapshot.slurm.nodes.items() if node.reason and (fault := _fault(node))}
        slots = {slot for pool in snapshot.pools.values() for slot in pool.slots} if faults else set()
        before, self._known = self._known, {name: fault for name, fault in faults.items() if name not in slots}
        for name, fault in self._known.items():
            if fault != (self._last_on_record(name) if before is None else before.get(name)):
                self._store.log_event(NODE + name, new=NODE_FAULT, reason=fault, cause="health")

    def _last_on_record(self, name: str) -> str:
        return next((event.reason for event in self._store.events(subject=NODE + name, newest=True, limit=1)), "")


def _fault(node: Node) -> str:
    notice = notice_of_node(node)
    if notice is not None:
        return notice.text if notice.unhealthy else ""
    return _LOST if node.state == "DOWN" and node.reason.startswith(_LOST) else ""
