"""Which claim a machine belongs to.

A machine is its claim's by the id on record, else by the tag. One launch call may make several machines, which a cloud
cannot tag one by one: of those only the answer says whose they are, and while it is awaited they are nobody's strays.
"""

from __future__ import annotations

from collections.abc import Iterable

from burstd.model.claim import Claim
from burstd.model.claim import ClaimState as S
from burstd.model.instance import Instance


class Ownership:
    """The claims on record, as far as machines are concerned."""

    def __init__(self, claims: Iterable[Claim]) -> None:
        self._recorded: dict[tuple[str, str], str] = {}
        self._instance_of: dict[str, str] = {}
        self._awaited: set[str] = set()
        for claim in claims:
            self._instance_of[claim.id] = claim.instance_id
            if claim.instance_id:
                self._recorded[claim.offer.provider, claim.instance_id] = claim.id
            elif claim.batch and claim.state is S.LAUNCHING:
                self._awaited.add(claim.batch)

    def claim_of(self, instance: Instance) -> str:
        """The id of its claim, which need not be on record any more; empty: nobody knows."""
        return self._recorded.get((instance.provider, instance.id), instance.claim_id)

    def is_stray(self, instance: Instance) -> bool:
        """No live claim, or a second machine of a claim that has one."""
        if (instance.provider, instance.id) in self._recorded:
            return False
        if not instance.claim_id:
            return instance.batch not in self._awaited
        recorded = self._instance_of.get(instance.claim_id)
        return recorded is None or bool(recorded)
