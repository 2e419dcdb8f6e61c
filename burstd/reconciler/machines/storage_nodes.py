"""What the storage nodes of stores are wanted for, found out from the record in every loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from burstd.db import Store
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Shape
from burstd.domain.staging import Staging
from burstd.domain.storage_node import StorageNodeView, storage_pool_name
from burstd.planner.staging.storage_node import storage_node_need


class StorageNodeNeeds:
    """Remembers since when each has not been needed. After a restart that counts anew: a node never ends too early."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._idle_since: dict[str, float] = {}

    def with_needs(
        self,
        configured: Sequence[StorageNodeView],
        storage: Sequence[Claim],
        slots: Collection[str],
        affordable: AbstractSet[str],
        now: float,
    ) -> tuple[StorageNodeView, ...]:
        """Those of the settings, and those of claims whose store is not in the settings any more, with their needs."""
        known = {node.pool.name for node in configured}
        left = [
            StorageNodeView(
                claim.pool.removeprefix(storage_pool_name("")), Pool(claim.pool, (claim.slot,), (), Shape(0, 0)), 0.0
            )
            for claim in storage
            if claim.pool not in known
        ]
        nodes = [*configured, *left]
        if not nodes:
            return ()
        rows = sorted(self._store.stagings(), key=lambda row: (row.created, row.job_id))
        return tuple(
            self._with_need(node, [r for r in rows if r.store == node.store], slots, affordable, now) for node in nodes
        )

    def _with_need(
        self,
        node: StorageNodeView,
        rows: Sequence[Staging],
        slots: Collection[str],
        affordable: AbstractSet[str],
        now: float,
    ) -> StorageNodeView:
        wanted = storage_node_need(rows, slots, affordable)
        if wanted.start or wanted.keep:
            self._idle_since.pop(node.store, None)
            return replace(node, start_reason=wanted.start, keep_reason=wanted.keep)
        return replace(node, idle_since=self._idle_since.setdefault(node.store, now))

    def next_idle_end(self, storage: Sequence[Claim], nodes: Sequence[StorageNodeView], now: float) -> float:
        """When the next one is to be ended for want of need, in burstd's time."""
        by_pool = {node.pool.name: node for node in nodes if not node.start_reason and not node.keep_reason}
        ends = [
            max(node.idle_since, claim.in_service_from or claim.since) + node.idle_s
            for claim in storage
            if claim.state is ClaimState.IN_SERVICE and (node := by_pool.get(claim.pool)) is not None
        ]
        return min((end for end in ends if end > now), default=float("inf"))
