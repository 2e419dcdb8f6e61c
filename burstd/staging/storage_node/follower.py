"""Follows the storage node that burstd launches for its store: tells the store where it is, forgets what went with it.

Which machine has the objects that the index and the records tell of stands in the record (meta ``storage:STORE``), so
that a burstd that starts anew does not take an empty machine for the one that had them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from burstd.db import Store
from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.stager import StoreBusy
from burstd.domain.slurm.shape import Shape
from burstd.domain.staging import DataView
from burstd.domain.staging import StageState as T
from burstd.domain.storage_node import NodeWish, OnNode, StoreNode, pool_name
from burstd.node.ssh.key_pair import KeyUnusable
from burstd.node.storage_node import place_of
from burstd.planner.staging.transfer_schedule import BOOT_S
from burstd.staging.movement.moves import machines_of
from burstd.staging.storage_node.controller import NodeDesk
from burstd.transfer.content_store.index import Index

log = structlog.get_logger(__name__)

_HAS_OBJECTS = frozenset({S.READY, S.OPEN, S.CLOSING})
_WORDS = {
    S.PLANNED: "it is about to be launched",
    S.LAUNCHING: "it is being launched",
    S.BOOTING: "it boots",
    S.PROVING: "it is being made ready",
    S.READY: "it is being made ready",
    S.OPEN: "transfers with the one before it come to their end",
    S.CLOSING: "it is about to be ended",
    S.TERMINATING: "the one before it is being ended",
}


class StorageNode:
    """One store's. In the deciding thread."""

    def __init__(self, store: Store, index: Index, stager: OnNode, wish: NodeWish, name: str, folder: Path) -> None:
        """``folder``: where the keys of storage nodes are."""
        pool = pool_name(name)
        self.node = StoreNode(name, Pool(pool, (pool,), (), Shape(1, 1), tuple(wish.offers)), wish.idle_s)
        self.wish = wish
        self._store = store
        self._index = index
        self._stager = stager
        self._folder = folder
        self._meta = f"storage:{name}"
        self._up_at = 0.0

    def follow(self, claims: Sequence[Claim], desk: NodeDesk, now: float) -> None:
        """Before each step of the desk. Raises StoreError, StoreBusy (the index): the next loop does it again."""
        claim = next((c for c in claims if c.cause is Cause.STORAGE and c.slot == self.node.pool.name), None)
        machines = machines_of([c for c in claims if c.cause is not Cause.STORAGE])
        holder = self._store.meta(self._meta)
        holds = claim is not None and claim.id == holder and claim.state in _HAS_OBJECTS
        if not holds:
            self._stager.away(_why(claim), empty=True)
            desk.waits = _why(claim)
            self._forget(machines, desk, _loss(claim, holder))
            if holder:
                self._store.set_meta(self._meta, "")
        # A transfer that was begun with the machine before must not end with this one.
        if claim is not None and claim.state is S.OPEN and (holds or not desk.busy()):
            if not holds:
                self._store.set_meta(self._meta, claim.id)
            try:
                self._stager.here(place_of(self._folder, claim))
            except KeyUnusable as error:
                raise StoreBusy(str(error)) from None
            desk.waits = ""
            self._up_at = 0.0
            return
        if holds:
            self._stager.away(_why(claim), empty=False)
        desk.waits = _why(claim)
        self._up_at = (claim.created if claim is not None else now) + BOOT_S

    def delayed(self, views: Mapping[str, DataView], now: float) -> dict[str, DataView]:
        """With the time that the node still takes, so that no paid node is started long before its input is there."""
        if not self._up_at:
            return dict(views)
        up = max(self._up_at, now)
        return {
            job_id: replace(view, ready_at=up + max(0.0, view.ready_at - now)) if view.state is T.WAITING else view
            for job_id, view in views.items()
        }

    def _forget(self, machines: Mapping[str, Claim], desk: NodeDesk, why: str) -> None:
        """What is known of objects; there are none."""
        self._index.forget_store(self.node.store)
        desk.store_is_empty(machines, why)


def _why(claim: Claim | None) -> str:
    if claim is None:
        return "there is none"
    return f"{_WORDS.get(claim.state, claim.reason)} ({claim.offer.id})"


def _loss(claim: Claim | None, holder: str) -> str:
    if claim is not None and claim.id == holder:
        return f"the storage node is gone ({claim.reason})"
    return "the storage node is gone"
