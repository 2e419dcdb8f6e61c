"""Slots and claims: ``burstctl node``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.base import money_view
from burstd.api.answers.nodes import EventView, HeldView, NodeDetailView, NodesView, NodeView, SlurmNodeView
from burstd.api.auth import Caller, visible_jobs_filter
from burstd.api.dependencies import MAX_RECORDS, ApiError, BackendDep, CallerDep, require_latest_loop
from burstd.db import DrainedSlot, LoggedEvent, UnknownClaim, claim_subject
from burstd.domain.claim import Claim
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot

VisibleJobs = Callable[[Claim], tuple[str, ...]]

router = APIRouter(prefix="/v1")


@router.get("/nodes")
def get_nodes(
    caller: CallerDep, backend: BackendDep, *, every: Annotated[bool, Query(alias="all")] = False
) -> NodesView:
    """Live claims and held slots; with ``all`` every slot."""
    snapshot, _ = require_latest_loop(backend)
    now = backend.now()
    seen = visible_jobs_filter(caller, snapshot)
    return NodesView(
        now=now,
        nodes=node_views(snapshot, backend.reader.drained_slots(), caller, seen, now, include_free=every),
    )


@router.get("/nodes/{name}")
def get_node(name: str, caller: CallerDep, backend: BackendDep) -> NodeDetailView:
    """One node by its name, or one claim by its id, past ones included, with its history."""
    snapshot, _ = require_latest_loop(backend)
    now, reader = backend.now(), backend.reader
    seen, held = visible_jobs_filter(caller, snapshot), reader.drained_slots()
    slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    found = next(
        (n for n in node_views(snapshot, held, caller, seen, now, include_free=True) if name in (n.slot, n.claim)), None
    )
    if found is None:
        try:
            claim = reader.claim(name)
        except UnknownClaim:
            raise ApiError(404, f"There is no node and no claim {name!r}.", sorted(slots)) from None
        found = claim_node_view(claim, None, None, caller, seen, now)
    history: list[EventView] = []
    if found.claim and caller.can_see_claim_for(reader.claim(found.claim).users):
        history = [
            event_view(e, found.slot) for e in reader.events(subject=claim_subject(found.claim), limit=MAX_RECORDS)
        ]
    elif caller.admin:
        history = [event_view(e) for e in reversed(reader.events(subject=f"slot:{found.slot}", newest=True, limit=100))]
    return NodeDetailView(now=now, node=found, history=history)


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
                node = _node_in_slurm(snapshot, slot)
                yield NodeView(
                    slot=slot,
                    pool=pool.name,
                    state=_free_slot_state(snapshot, node, slot, free, hold_by_slot),
                    slurm=_slurm_node_view(node),
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
    return NodeView.from_fields(
        claim,
        reason=claim.reason if details_visible else "",
        claim=claim.id,
        offer=offer.id,
        provider=offer.provider,
        instance=claim.instance_id,
        price_per_hour=money_view(offer.price, offer.currency),
        cost=money_view(claim.cost(now), offer.currency),
        reserved=money_view(claim.reserved, offer.currency) if claim.reserved and details_visible else None,
        jobs=visible_jobs(claim),
        gang=claim.gang if details_visible else "",
        slurm=_slurm_node_view(_node_in_slurm(snapshot, claim.slot)) if snapshot is not None else None,
        held=_held(slot_hold),
    )


def _node_in_slurm(snapshot: Snapshot, slot: str) -> Node | None:
    """Slurm's node; None where Slurm could not be read or has none of the name."""
    return snapshot.slurm.nodes.get(slot) if isinstance(snapshot.slurm, SlurmView) else None


def _slurm_node_view(node: Node | None) -> SlurmNodeView | None:
    return None if node is None else SlurmNodeView.from_fields(node, state="+".join([node.state, *sorted(node.flags)]))


def event_view(entry: LoggedEvent, node: str = "") -> EventView:
    """An entry of the log. Its data stay inside: they name jobs and users of every kind."""
    kind, _, name = entry.subject.partition(":")
    return EventView.from_fields(
        entry, node=node or (name if kind == "slot" else ""), by=entry.cause.removeprefix("user:")
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
    return None if held is None else HeldView.from_fields(held, by=held.by.removeprefix("user:"))
