"""A cloud that lists what is not so: around any provider, with a catalogue of lies.

Only lists lie. Launches, endings and the machines themselves are those of the provider inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState, Leftover
from burstd.domain.plugins.provider import Idempotency, LaunchOutcome, LaunchRequest, Provider

_Lie = Callable[[Sequence[Instance]], Sequence[Instance]]


def _all_as(state: InstanceState) -> _Lie:
    return lambda true: [replace(i, state=state, error="Server.InternalError") for i in true]


def _claims_of_others(true: Sequence[Instance]) -> list[Instance]:
    """Our machines under a claim that we never made, and a neighbour's beside them."""
    strange = [replace(i, claim_id=f"not-{i.claim_id}", tags=dict(i.tags) | {TAG_CLAIM: f"not-{i.claim_id}"})
               for i in true]  # fmt: skip
    return [*strange, *(replace(i, id=f"theirs-{i.id}", tags={TAG_CLUSTER: "other"}, claim_id="") for i in true)]


def _doubled(true: Sequence[Instance]) -> list[Instance]:
    """Each under its id as ended as well, and once more under an id that the cloud does not know."""
    ended = [replace(i, state=InstanceState.TERMINATED) for i in true]
    return [*true, *ended, *(replace(i, id=f"{i.id}-again") for i in true)]


def _without_addresses(true: Sequence[Instance]) -> list[Instance]:
    return [replace(i, address="") for i in true]


def _addresses_of_others(true: Sequence[Instance]) -> list[Instance]:
    return [replace(i, address=j.address) for i, j in zip(true, [*true[1:], *true[:1]], strict=True)]


def _untagged(true: Sequence[Instance]) -> list[Instance]:
    return [replace(i, claim_id="", tags={TAG_CLUSTER: i.tags.get(TAG_CLUSTER, "")}) for i in true]


LIES: dict[str, _Lie] = {
    "empty": lambda true: true[:0],
    "half": lambda true: true[::2],
    "the other half": lambda true: true[1::2],
    "terminated": _all_as(InstanceState.TERMINATED),
    "stopping": _all_as(InstanceState.STOPPING),
    "error": _all_as(InstanceState.ERROR),
    "unknown": _all_as(InstanceState.UNKNOWN),
    "pending": _all_as(InstanceState.PENDING),
    "someone else's": _claims_of_others,
    "doubled": _doubled,
    "untagged": _untagged,
    "without addresses": _without_addresses,
    "addresses of others": _addresses_of_others,
}
STALE = "stale"
"""The list is what it was when this lie began, for as long as it is told."""
ALL = (*LIES, STALE)


class LyingCloud:
    """See burstd.domain.plugins.provider.Provider. ``lie``: what lists say, one of ALL; empty: the truth.

    Where no token and no name keeps a launch from making two machines, a client without an answer has the list alone to
    go by. Such a cloud promises to list a machine ``settle_s`` after its launch was asked for. Where it breaks this
    promise it is asked again, by right: nothing tells the machine from one that was never made.
    """

    def __init__(
        self, provider: Provider, now: Callable[[], float], living: Callable[[], Set[tuple[str, str]]]
    ) -> None:
        """``living``: the id and the claim of each machine that truly lives."""
        self._provider = provider
        self._now = now
        self._living = living
        self._last: list[Instance] = []
        self._asked: dict[str, float] = {}
        """When each claim's launch was last asked for."""
        self._denied: defaultdict[str, set[str]] = defaultdict(set)
        """By claim, the living machines that a complete list lacked after their time to settle."""
        self.lie = ""
        self.doubled_by_lists: set[str] = set()
        """Machines whose launch was repeated after a list had denied them against the cloud's promise."""

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """See Provider."""
        for request in requests:
            self.doubled_by_lists |= self._denied[request.claim_id]
            self._asked[request.claim_id] = self._now()
        return self._provider.launch(requests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def instances(self) -> Iterator[Instance]:
        """See Provider."""
        true = list(self._provider.instances())
        if self.lie != STALE:
            self._last = true
        lie = LIES.get(self.lie)
        listed = lie(true) if lie is not None else self._last
        self._note_denied(listed)
        yield from listed

    def _note_denied(self, listed: Sequence[Instance]) -> None:
        if self._provider.idempotency is not Idempotency.SETTLE:
            return
        settled = self._now() - self._provider.settle_s
        for machine, claim in self._living() - {(i.id, i.claim_id) for i in listed if not i.state.ended}:
            if self._asked.get(claim, settled) < settled:
                self._denied[claim].add(machine)

    def leftovers(self) -> Iterator[Leftover]:
        """See Provider. A cloud that lies says of every volume that it hangs on nothing."""
        for left in self._provider.leftovers():
            yield replace(left, attached_to="") if self.lie else left
