"""Slots and claims as ``burstctl node`` shows them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from burstd.api.answers.money import money_view
from burstd.api.answers.types import EventView, HeldView, NodeView, SlurmNodeView, utc_datetime, utc_datetime_or_none
from burstd.api.auth import Caller
from burstd.db import DrainedSlot, LoggedEvent
from burstd.domain.claim import Claim
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot

VisibleJobs = Callable[[Claim], tuple[str, ...]]


def node_views(
    snapshot: Snapshot,
    slot_holds: Iterable[DrainedSlot],
    caller: Caller,
    visible_jobs: VisibleJobs,
    now: float,
    *,
    include_free: bool,
) -> list[NodeView]:
    """Every live claim, pool by pool in the order of the slots; with ``every`` also slots without one."""
    hold_by_slot = {h.slot: h for h in slot_holds}
    by_slot: dict[str, list[Claim]] = {}
    for claim in snapshot.claims:
        by_slot.setdefault(claim.slot, []).append(claim)
    return list(_iter_node_views(snapshot, by_slot, hold_by_slot, caller, visible_jobs, now, include_free=include_free))


def _iter_node_views(
    snapshot: Snapshot,
    by_slot: dict[str, list[Claim]],
    hold_by_slot: Mapping[str, DrainedSlot],
    caller: Caller,
    visible_jobs: VisibleJobs,
    now: float,
    *,
    include_free: bool,
) -> Iterator[NodeView]:
    for pool in snapshot.pools.values():
        free = set(snapshot.free_slots(pool))
        for slot in pool.slots:
            claims = by_slot.pop(slot, [])
            for claim in claims:
                yield claim_node_view(claim, snapshot, hold_by_slot.get(slot), caller, visible_jobs, now)
            if not claims and (include_free or slot in hold_by_slot):
                node = node_in_slurm(snapshot, slot)
                yield NodeView(
                    slot=slot,
                    pool=pool.name,
                    state=_free_slot_state(snapshot, node, slot, free, hold_by_slot),
                    slurm=slurm_node_view(node),
                    held=_held(hold_by_slot.get(slot)),
                )
    # Pools that are no longer configured.
    for slot, claims in by_slot.items():
        for claim in claims:
            yield claim_node_view(claim, snapshot, hold_by_slot.get(slot), caller, visible_jobs, now)
    for claim in snapshot.storage_claims:
        yield claim_node_view(claim, None, None, caller, visible_jobs, now)


def claim_node_view(
    claim: Claim,
    snapshot: Snapshot | None,
    slot_hold: DrainedSlot | None,
    caller: Caller,
    visible_jobs: VisibleJobs,
    now: float,
) -> NodeView:
    """A claim, live or gone. Its reasons name jobs, so not everyone sees them."""
    details_visible = caller.can_see_claim_for(claim.users)
    offer = claim.offer
    return NodeView(
        slot=claim.slot,
        pool=claim.pool,
        state=claim.state.value,
        since=utc_datetime(claim.since),
        reason=claim.reason if details_visible else "",
        claim=claim.id,
        cause=claim.cause.value,
        error=claim.error,
        offer=offer.id,
        provider=offer.provider,
        instance=claim.instance_id,
        address=claim.address,
        image=claim.image,
        created=utc_datetime(claim.created),
        opened=utc_datetime_or_none(claim.opened),
        price_per_hour=money_view(offer.price, offer.currency),
        cost=money_view(claim.cost(now), offer.currency),
        reserved=money_view(claim.reserved, offer.currency) if claim.reserved and details_visible else None,
        jobs=list(visible_jobs(claim)),
        gang=claim.gang if details_visible else "",
        attempts=claim.attempts,
        slurm=slurm_node_view(node_in_slurm(snapshot, claim.slot)) if snapshot is not None else None,
        held=_held(slot_hold),
    )


def node_in_slurm(snapshot: Snapshot, slot: str) -> Node | None:
    """Slurm's node; None where Slurm could not be read or has none of the name."""
    return snapshot.slurm.nodes.get(slot) if isinstance(snapshot.slurm, SlurmView) else None


def slurm_node_view(node: Node | None) -> SlurmNodeView | None:
    """Slurm's node in an answer."""
    if node is None:
        return None
    return SlurmNodeView(
        state="+".join([node.state, *sorted(node.flags)]),
        reason=node.reason,
        reservation=node.reservation,
        cpus_allocated=node.cpus_allocated,
    )


def event_view(entry: LoggedEvent, node: str = "") -> EventView:
    """An entry of the log. Its data stay inside: they name jobs and users of every kind."""
    return EventView(
        seq=entry.seq,
        time=utc_datetime(entry.time),
        subject=entry.subject,
        node=node or (entry.subject.removeprefix("slot:") if entry.subject.startswith("slot:") else ""),
        old=entry.old,
        new=entry.new,
        reason=entry.reason,
        by=entry.cause.removeprefix("user:"),
    )


def _free_slot_state(
    snapshot: Snapshot, node: Node | None, slot: str, free: Collection[str], hold_by_slot: Mapping[str, DrainedSlot]
) -> str:
    if slot in hold_by_slot:
        return "held"
    if not isinstance(snapshot.slurm, SlurmView) or node is None:
        return "unknown"
    if slot in free:
        return "free"
    return "drained" if node.drained else "unready"


def _held(held: DrainedSlot | None) -> HeldView | None:
    if held is None:
        return None
    return HeldView(by=held.by.removeprefix("user:"), reason=held.reason, since=utc_datetime(held.since))
