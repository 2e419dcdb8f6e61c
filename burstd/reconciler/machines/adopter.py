"""Machines that the record never knew: finds them, and writes a claim down for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import AdoptMachine
from burstd.domain.snapshot import CloudView, Unavailable
from burstd.reconciler.context import LoopContext

log = structlog.get_logger(__name__)

_TO_GONE = {S.FAILED: S.TERMINATING, S.PLANNED: S.GONE, S.LOST: S.GONE, S.TERMINATING: S.GONE}
"""The next step to GONE; of all other states it is LOST."""


@dataclass(frozen=True, slots=True)
class UnknownMachines:
    """What clouds list with our tag and the record does not know; see Snapshot."""

    unknown: frozenset[tuple[str, str]]
    foreign: frozenset[str]


class Adopter:
    """Tells unknown machines from those whose claim is GONE, and from those of others; carries Adopt out."""

    def __init__(self, context: LoopContext) -> None:
        self._context, self._store = context, context.store
        self._on_record: set[tuple[str, str]] = set()
        """Claim and batch of machines without a live claim whose claim was on record once."""

    def find_unknown(self, clouds: Mapping[str, CloudView], claims: Collection[Claim]) -> UnknownMachines:
        """``claims``: those on record now."""
        live = {claim.id for claim in claims} | {claim.instance_id for claim in claims}
        batches = {claim.batch for claim in claims if claim.batch}
        unknown: set[tuple[str, str]] = set()
        foreign: set[str] = set()
        for cloud in clouds.values():
            for instance in () if isinstance(cloud.instances, Unavailable) else cloud.instances:
                if instance.state.ended or not live.isdisjoint((instance.claim_id or instance.id, instance.id)):
                    continue
                awaited = not instance.claim_id and instance.batch in batches
                if awaited or self._was_on_record(instance.claim_id, instance.batch):
                    continue
                if self._context.is_authentic(instance.claim_id or instance.batch):
                    unknown.add((instance.provider, instance.id))
                else:
                    foreign.add(instance.claim_id or instance.batch)
            for left in () if isinstance(cloud.leftovers, Unavailable) else cloud.leftovers:
                is_ours = not left.claim_id or left.claim_id in live or self._context.is_authentic(left.claim_id)
                if not is_ours and not self._was_on_record(left.claim_id, ""):
                    foreign.add(left.claim_id)
        return UnknownMachines(frozenset(unknown), frozenset(foreign))

    def _was_on_record(self, claim_id: str, batch: str) -> bool:
        key = (claim_id, batch)
        if any(key) and key not in self._on_record and self._store.has_claim(*key):
            self._on_record.add(key)
        return key in self._on_record

    def adopt(self, action: AdoptMachine) -> int:
        """Writes the claim down, and the end of the one that it replaces. Returns how many were written."""
        claim = action.claim if action.claim.id else replace(action.claim, id=self._context.new_id())
        with self._store.batch():
            if action.replaces:
                self._end_claim(self._store.claim(action.replaces))
            if self._store.has_claim(claim.id) or any(claim.slot == other.slot for other in self._store.claims()):
                return 0
            self._store.adopt_claim(claim)
        log.warning("machine is adopted", provider=claim.offer.provider, instance=claim.instance_id, slot=claim.slot,
                    state=claim.state.value, jobs=list(claim.jobs))  # fmt: skip
        return 1

    def _end_claim(self, claim: Claim) -> None:
        why = f"the record is older than the world: another machine is {claim.slot}"
        while claim.state is not S.GONE:
            claim = self._store.transition_claim(claim.id, claim.state, _TO_GONE.get(claim.state, S.LOST), why)
