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
from burstd.domain.staging import StageState as T
from burstd.domain.staging import StagingView
from burstd.domain.storage_node import NodeBackedStore, StorageNodeSpec, StorageNodeView, storage_pool_name
from burstd.node.ssh.key_pair import KeyUnusable
from burstd.node.storage_node import storage_node_access
from burstd.planner.staging.transfer_schedule import BOOT_S
from burstd.staging.movement.moves import reachable_machines
from burstd.staging.storage_node.controller import StorageNodeController
from burstd.transfer.content_store.index import ContentIndex

log = structlog.get_logger(__name__)

_STATES_WITH_OBJECTS = frozenset({S.READY, S.IN_SERVICE, S.DRAINING})
_STATE_TEXTS = {
    S.PLANNED: "it is about to be launched",
    S.LAUNCHING: "it is being launched",
    S.BOOTING: "it boots",
    S.VALIDATING: "it is being made ready",
    S.READY: "it is being made ready",
    S.IN_SERVICE: "transfers with the one before it come to their end",
    S.DRAINING: "it is about to be ended",
    S.TERMINATING: "the one before it is being ended",
}


class StorageNodeFollower:
    """One store's. In the deciding thread."""

    def __init__(
        self, store: Store, index: ContentIndex, stager: NodeBackedStore, spec: StorageNodeSpec, name: str, folder: Path
    ) -> None:
        """``folder``: where the keys of storage nodes are."""
        pool = storage_pool_name(name)
        self.store_node = StorageNodeView(name, Pool(pool, (pool,), (), Shape(1, 1), tuple(spec.offers)), spec.idle_s)
        self.spec = spec
        self._store = store
        self._index = index
        self._stager = stager
        self._folder = folder
        self._meta = f"storage:{name}"
        self._up_at = 0.0

    def follow_claims(self, claims: Sequence[Claim], controller: StorageNodeController, now: float) -> None:
        """Runs before each step. Raises StoreError, StoreBusy (the index): the next loop does it again."""
        claim = next((c for c in claims if c.cause is Cause.STORAGE and c.slot == self.store_node.pool.name), None)
        machines = reachable_machines([c for c in claims if c.cause is not Cause.STORAGE])
        holder_id = self._store.metadata(self._meta)
        has_objects = claim is not None and claim.id == holder_id and claim.state in _STATES_WITH_OBJECTS
        if not has_objects:
            self._stager.node_gone(_unavailable_reason(claim), empty=True)
            controller.unavailable_reason = _unavailable_reason(claim)
            self._forget_objects(machines, controller, _loss_reason(claim, holder_id))
            if holder_id:
                self._store.set_metadata(self._meta, "")
        # A transfer that was begun with the machine before must not end with this one.
        if (
            claim is not None
            and claim.state is S.IN_SERVICE
            and (has_objects or not controller.is_stopping_transfers())
        ):
            if not has_objects:
                self._store.set_metadata(self._meta, claim.id)
            try:
                self._stager.node_ready(storage_node_access(self._folder, claim))
            except KeyUnusable as error:
                raise StoreBusy(str(error)) from None
            controller.unavailable_reason = ""
            self._up_at = 0.0
            return
        if has_objects:
            self._stager.node_gone(_unavailable_reason(claim), empty=False)
        controller.unavailable_reason = _unavailable_reason(claim)
        self._up_at = (claim.created if claim is not None else now) + BOOT_S

    def delayed_views(self, views: Mapping[str, StagingView], now: float) -> dict[str, StagingView]:
        """With the time that the node still takes, so that no paid node is started long before its input is there."""
        if not self._up_at:
            return dict(views)
        node_up_at = max(self._up_at, now)
        return {
            job_id: replace(view, ready_at=node_up_at + max(0.0, view.ready_at - now))
            if view.state is T.WAITING
            else view
            for job_id, view in views.items()
        }

    def _forget_objects(self, machines: Mapping[str, Claim], controller: StorageNodeController, why: str) -> None:
        """What is known of objects; there are none."""
        self._index.forget_store(self.store_node.store)
        controller.handle_empty_store(machines, why)


def _unavailable_reason(claim: Claim | None) -> str:
    if claim is None:
        return "there is none"
    return f"{_STATE_TEXTS.get(claim.state, claim.reason)} ({claim.offer.id})"


def _loss_reason(claim: Claim | None, holder: str) -> str:
    if claim is not None and claim.id == holder:
        return f"the storage node is gone ({claim.reason})"
    return "the storage node is gone"
