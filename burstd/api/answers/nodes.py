"""Slots and claims as ``burstctl node`` shows them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from burstd.api.answers.money import money
from burstd.api.answers.types import EventView, HeldView, NodeView, SlurmNodeView, when, when_set
from burstd.api.auth import Caller
from burstd.db import Event, Held
from burstd.domain.claim import Claim
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot

JobsSeen = Callable[[Claim], tuple[str, ...]]


def nodes(
    snapshot: Snapshot, held: Iterable[Held], caller: Caller, jobs_seen: JobsSeen, now: float, *, every: bool
) -> list[NodeView]:
    """Every live claim, pool by pool in the order of the slots; with ``every`` also slots without one."""
    kept = {h.slot: h for h in held}
    by_slot: dict[str, list[Claim]] = {}
    for claim in snapshot.claims:
        by_slot.setdefault(claim.slot, []).append(claim)
    return list(_nodes(snapshot, by_slot, kept, caller, jobs_seen, now, every=every))


def _nodes(
    snapshot: Snapshot,
    by_slot: dict[str, list[Claim]],
    held: Mapping[str, Held],
    caller: Caller,
    jobs_seen: JobsSeen,
    now: float,
    *,
    every: bool,
) -> Iterator[NodeView]:
    for pool in snapshot.pools.values():
        free = set(snapshot.free_slots(pool))
        for slot in pool.slots:
            claims = by_slot.pop(slot, [])
            for claim in claims:
                yield node_of(claim, snapshot, held.get(slot), caller, jobs_seen, now)
            if not claims and (every or slot in held):
                node = node_in_slurm(snapshot, slot)
                yield NodeView(
                    slot=slot,
                    pool=pool.name,
                    state=_without_claim(snapshot, node, slot, free, held),
                    slurm=slurm_node(node),
                    held=_held(held.get(slot)),
                )
    # Pools that are no longer configured.
    for slot, claims in by_slot.items():
        for claim in claims:
            yield node_of(claim, snapshot, held.get(slot), caller, jobs_seen, now)
    for claim in snapshot.storage:
        yield node_of(claim, None, None, caller, jobs_seen, now)


def node_of(
    claim: Claim, snapshot: Snapshot | None, held: Held | None, caller: Caller, jobs_seen: JobsSeen, now: float
) -> NodeView:
    """A claim, live or gone. Its reasons name jobs, so not everyone sees them."""
    mine = caller.alone(claim.users)
    offer = claim.offer
    return NodeView(
        slot=claim.slot,
        pool=claim.pool,
        state=claim.state.value,
        since=when(claim.since),
        reason=claim.reason if mine else "",
        claim=claim.id,
        cause=claim.cause.value,
        error=claim.error,
        offer=offer.id,
        provider=offer.provider,
        instance=claim.instance_id,
        address=claim.address,
        image=claim.image,
        created=when(claim.created),
        opened=when_set(claim.opened),
        price_per_hour=money(offer.price, offer.currency),
        cost=money(claim.cost(now), offer.currency),
        reserved=money(claim.reserved, offer.currency) if claim.reserved and mine else None,
        jobs=list(jobs_seen(claim)),
        gang=claim.gang if mine else "",
        attempts=claim.attempts,
        slurm=slurm_node(node_in_slurm(snapshot, claim.slot)) if snapshot is not None else None,
        held=_held(held),
    )


def node_in_slurm(snapshot: Snapshot, slot: str) -> Node | None:
    """Slurm's node; None where Slurm could not be read or has none of the name."""
    return snapshot.slurm.nodes.get(slot) if isinstance(snapshot.slurm, SlurmView) else None


def slurm_node(node: Node | None) -> SlurmNodeView | None:
    """Slurm's node in an answer."""
    if node is None:
        return None
    return SlurmNodeView(
        state="+".join([node.state, *sorted(node.flags)]),
        reason=node.reason,
        reservation=node.reservation,
        cpus_allocated=node.cpus_allocated,
    )


def event(entry: Event, node: str = "") -> EventView:
    """An entry of the log. Its data stay inside: they name jobs and users of every kind."""
    return EventView(
        seq=entry.seq,
        time=when(entry.time),
        subject=entry.subject,
        node=node or (entry.subject.removeprefix("slot:") if entry.subject.startswith("slot:") else ""),
        old=entry.old,
        new=entry.new,
        reason=entry.reason,
        by=entry.cause.removeprefix("user:"),
    )


def _without_claim(
    snapshot: Snapshot, node: Node | None, slot: str, free: Collection[str], held: Mapping[str, Held]
) -> str:
    if slot in held:
        return "held"
    if not isinstance(snapshot.slurm, SlurmView) or node is None:
        return "unknown"
    if slot in free:
        return "free"
    return "drained" if node.drained else "unready"


def _held(held: Held | None) -> HeldView | None:
    if held is None:
        return None
    return HeldView(by=held.by.removeprefix("user:"), reason=held.reason, since=when(held.since))
