"""Machines that the record never knew: finds them, and writes a claim down for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import structlog

from burstd.model.claim import Claim
from burstd.model.claim import ClaimState as S
from burstd.model.plan import Adopt
from burstd.model.snapshot import CloudView, Unavailable
from burstd.store import Store

log = structlog.get_logger(__name__)

_TO_GONE = {S.FAILED: S.TERMINATING, S.PLANNED: S.GONE, S.LOST: S.GONE, S.TERMINATING: S.GONE}
"""The next step to GONE; of all other states it is LOST."""


class Adopter:
    """Tells unknown machines from those whose claim is GONE, and carries Adopt out."""

    def __init__(self, store: Store, new_id: Callable[[], str]) -> None:
        self._store = store
        self._new_id = new_id
        self._on_record: set[tuple[str, str]] = set()
        """Claim and batch of machines without a live claim whose claim was on record once."""

    def unknown(self, clouds: Mapping[str, CloudView], claims: Collection[Claim]) -> frozenset[tuple[str, str]]:
        """Provider and id of the instances whose claim was never on record. ``claims``: those on record now."""
        live = {claim.id for claim in claims} | {claim.instance_id for claim in claims}
        batches = {claim.batch for claim in claims}
        found = set()
        for cloud in clouds.values():
            for instance in () if isinstance(cloud.instances, Unavailable) else cloud.instances:
                if instance.state.ended or not live.isdisjoint((instance.claim_id or instance.id, instance.id)):
                    continue
                key = (instance.claim_id, instance.batch)
                if key in self._on_record or (not instance.claim_id and instance.batch in batches):
                    continue
                if self._store.knows(*key):
                    self._on_record.add(key)
                else:
                    found.add((instance.provider, instance.id))
        return frozenset(found)

    def adopt(self, action: Adopt) -> int:
        """Writes the claim down, and the end of the one that it replaces. Returns how many were written."""
        claim = action.claim if action.claim.id else replace(action.claim, id=self._new_id())
        with self._store.batch():
            if action.replaces:
                self._end(self._store.claim(action.replaces))
            if self._store.knows(claim.id) or any(claim.slot == other.slot for other in self._store.claims()):
                return 0
            self._store.adopt(claim)
        log.warning("machine is adopted", provider=claim.offer.provider, instance=claim.instance_id, slot=claim.slot,
                    state=claim.state.value, jobs=list(claim.jobs))  # fmt: skip
        return 1

    def _end(self, claim: Claim) -> None:
        why = f"the record is older than the world: another machine is {claim.slot}"
        while claim.state is not S.GONE:
            claim = self._store.move(claim.id, claim.state, _TO_GONE.get(claim.state, S.LOST), why)
