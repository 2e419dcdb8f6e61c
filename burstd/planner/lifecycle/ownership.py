"""Which claim a machine belongs to.

A machine is its claim's by the id on record, else by the tag. One launch call may make several machines, which a cloud
cannot tag one by one: of those only the answer says whose they are, and while it is awaited they are nobody's strays.
Where an answer never came and the claims were given up, each takes one of the machines, whichever: they are alike, and
all of them are to be ended and paid for.
"""

from __future__ import annotations

from collections.abc import Iterable

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance

_Key = tuple[str, str]


class Ownership:
    """The claims on record and the machines that are listed, brought together."""

    def __init__(self, claims: Iterable[Claim], instances: Iterable[Instance]) -> None:
        self._recorded: dict[_Key, str] = {}
        self._instance_of: dict[str, str] = {}
        self._awaited: set[str] = set()
        given_up: dict[str, list[str]] = {}
        for claim in claims:
            self._instance_of[claim.id] = claim.instance_id
            if claim.instance_id:
                self._recorded[claim.offer.provider, claim.instance_id] = claim.id
            elif claim.batch and claim.state is S.LAUNCHING:
                self._awaited.add(claim.batch)
            elif claim.batch and claim.state in (S.FAILED, S.LOST, S.TERMINATING):
                given_up.setdefault(claim.batch, []).append(claim.id)
        self._adopted: dict[_Key, str] = {}
        for instance in sorted(instances, key=_key) if given_up else ():
            left = given_up.get(instance.batch, [])
            if left and not instance.claim_id and instance.batch not in self._awaited and not self._on_record(instance):
                self._adopted[_key(instance)] = left.pop()

    def claim_of(self, instance: Instance) -> str:
        """The id of its claim, which need not be on record any more; empty: nobody knows."""
        key = _key(instance)
        return self._recorded.get(key) or self._adopted.get(key) or instance.claim_id

    def is_orphan(self, instance: Instance) -> bool:
        """No live claim, or a second machine of a claim that has one."""
        if self._on_record(instance) or _key(instance) in self._adopted:
            return False
        if not instance.claim_id:
            return instance.batch not in self._awaited
        recorded = self._instance_of.get(instance.claim_id)
        # Its claim's machine, shown by a second provider that looks at the same account, is no second machine.
        return recorded is None or recorded not in ("", instance.id)

    def _on_record(self, instance: Instance) -> bool:
        return _key(instance) in self._recorded


def _key(instance: Instance) -> _Key:
    return instance.provider, instance.id
