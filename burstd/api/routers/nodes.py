"""Slots, claims and the reference node: ``burstctl node``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from burstd.api.answers.base import CommandResultView, money_view
from burstd.api.answers.nodes import (
    ON_PREMISES,
    DifferencesView,
    DifferenceView,
    EventView,
    FaultyNodesView,
    HeldView,
    NodeDetailView,
    NodeDifferencesView,
    NodeFaultsView,
    NodeLogsView,
    NodesView,
    NodeView,
    ReferenceView,
    SlurmNodeView,
)
from burstd.api.auth import Caller, visible_jobs_filter
from burstd.api.backend import Backend
from burstd.api.dependencies import (
    MAX_RECORDS,
    AdminDep,
    ApiError,
    BackendDep,
    CallerDep,
    ListLimit,
    ListOffset,
    RequestBody,
    ShortText,
    Timestamp,
    command_answer,
    require_latest_loop,
)
from burstd.db import DrainedSlot, LoggedEvent, StoreReader, UnknownClaim, claim_subject
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import ClearReference, SetReference
from burstd.domain.errors import BurstdError
from burstd.domain.plan import Plan
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.node.reference import MAX_ANSWER_CHARS
from burstd.node.validator import SlurmNodeValidator
from burstd.planner.explain.fabric_text import claim_binding
from burstd.planner.explain.gpu_map import GpuState, gpu_cells, idle_gpu_texts
from burstd.planner.mounts import line_text

_COMPARED = frozenset({S.READY, S.IN_SERVICE})
_COMPARED_AT_A_TIME = 8
_MAX_LOG_CHARS = 256 << 10
_COMPARE_TIMEOUT_S = 35.0
"""Seconds; burstctl waits a little longer."""

router = APIRouter(prefix="/v1")


@router.get("/nodes")
def get_nodes(
    caller: CallerDep,
    backend: BackendDep,
    *,
    every: Annotated[bool, Query(alias="all")] = False,
    search: Annotated[str, Query(max_length=1000)] = "",
    gpus: bool = False,
    own: bool = False,
    sort: Literal["", "state"] = "",
    limit: ListLimit = 0,
    offset: ListOffset = 0,
) -> NodesView:
    """Live claims and held slots; with ``all`` every slot, with ``own`` also the site's own nodes.

    ``gpus``: those with GPUs only; ``search``: a part of the name, the pool or the state.
    """
    (snapshot, plan), now = require_latest_loop(backend), backend.now()
    views = NodeViews(snapshot, plan, caller, now)
    found = [
        listed
        for listed in (
            *listed_nodes(snapshot, backend.reader.drained_slots()),
            *(own_nodes(snapshot) if own else ()),
        )
        if (every or listed.pool == ON_PREMISES or listed.claim is not None or listed.hold is not None)
        and (not gpus or any(gres.name == "gpu" for gres in listed_gres(snapshot, listed)))
        and (not search or search in f"{listed.slot} {listed.pool} {listed.state}")
    ]
    if sort:
        found.sort(key=lambda listed: listed.state)
    rows = found[offset : offset + limit if limit else None]
    return NodesView(now=now, nodes=[views.to_view(listed) for listed in rows], total=len(found))


@router.get("/nodes/{name}")
def get_node(name: str, caller: CallerDep, backend: BackendDep) -> NodeDetailView:
    """One node by its name, or one claim by its id, past ones included, with its history."""
    (snapshot, plan), now, reader = require_latest_loop(backend), backend.now(), backend.reader
    views = NodeViews(snapshot, plan, caller, now)
    every = (*listed_nodes(snapshot, reader.drained_slots()), *own_nodes(snapshot))
    listed = next((n for n in every if name in (n.slot, n.claim_id)), None)
    if listed is not None:
        found = views.to_view(listed)
    else:
        try:
            claim = reader.claim(name)
        except UnknownClaim:
            slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
            raise ApiError(404, f"There is no node and no claim {name!r}.", sorted(slots)) from None
        found = views.claim_view(claim, in_slurm=False)
    history: list[EventView] = []
    validated = fabric_test = ""
    if found.claim and caller.can_see_claim_for(reader.claim(found.claim).users):
        slot_events = reader.events(subject=f"slot:{found.slot}", newest=True, limit=100)
        findings = sorted((e for e in slot_events if e.data.get("claim") == found.claim), key=lambda e: e.seq)
        last = {e.new: e.reason for e in findings}
        validated, fabric_test = last.get("proven", ""), last.get("fabric_tested", "")
        history = [
            event_view(e, found.slot) for e in reader.events(subject=claim_subject(found.claim), limit=MAX_RECORDS)
        ]
    elif caller.admin:
        history = [event_view(e) for e in reversed(reader.events(subject=f"slot:{found.slot}", newest=True, limit=100))]
    return NodeDetailView(now=now, node=found, validated=validated, fabric_test=fabric_test, history=history)


@router.get("/nodes/{name}/logs")
def get_node_logs(name: str, caller: AdminDep, backend: BackendDep) -> NodeLogsView:
    """The console's and slurmd's last lines of the machine that a node or claim has now."""
    del caller
    claims = require_latest_loop(backend)[0].claims
    claim = next((claim for claim in claims if name in (claim.slot, claim.id)), None)
    if claim is None:
        raise ApiError(409, f"{name} has no machine now.")
    found: dict[str, str] = {}
    for kind, read in (("console", backend.validator.console), ("slurmd", backend.validator.slurmd_log)):
        try:
            found[kind] = read(claim)[-_MAX_LOG_CHARS:]
        except BurstdError as error:
            found[f"{kind}_error"] = str(error)
    return NodeLogsView(now=backend.now(), **found)


@router.get("/node-faults")
def get_node_faults(caller: AdminDep, backend: BackendDep, since: Timestamp | None = None) -> FaultyNodesView:
    """Nodes on premises that had faults since a time (seconds since 1970); default: all on record."""
    del caller
    found = backend.reader.node_faults(since or 0.0)
    return FaultyNodesView(now=backend.now(), nodes=[NodeFaultsView.from_fields(one) for one in found])


class ReferenceRequest(RequestBody):
    """What facts.sh printed on a node of the site; ``node`` empty: named as it calls itself."""

    node: ShortText = ""
    answer: Annotated[str, Field(max_length=MAX_ANSWER_CHARS)]


@router.get("/reference")
def get_reference(caller: AdminDep, backend: BackendDep, node: ShortText = "") -> ReferenceView:
    """The node that machines are compared with, and the script for ``node``; refused where that can be none."""
    del caller
    _refuse_slot(node, backend)
    validator = backend.validator
    reference, script = validator.reference, validator.reference_script()
    if reference is None:
        return ReferenceView(now=backend.now(), script=script)
    facts, config = reference.facts, validator.config
    modules = set(config.modules) - facts.module_names() if facts.module_command else set()
    missing = [*modules, *(set(config.all_sentinels) - facts.sentinels.keys())]
    missing += [
        f"revision of {path} (attr reads it)"
        for path in config.all_sentinels
        if path.startswith("/cvmfs/") and facts.sentinels.get(path) and path not in facts.revisions
    ]
    return ReferenceView.from_fields(
        reference,
        now=backend.now(),
        values=reference.summary(),
        missing=sorted(missing),
        script=script,
        warnings=validator.reference_warnings(),
    )


@router.put("/reference")
def put_reference(body: ReferenceRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Makes a node the reference."""
    _refuse_slot(body.node, backend)
    return command_answer(backend, SetReference(body.node, body.answer, caller.actor))


def _refuse_slot(node: str, backend: Backend) -> None:
    pools = require_latest_loop(backend)[0].pools.values() if node else ()
    pool = next((pool.name for pool in pools if node in pool.slots), None)
    if pool is not None:
        raise ApiError(409, f"{node} is a slot of pool {pool}: name a node of the site's own.")


@router.delete("/reference")
def delete_reference(caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Takes the reference back."""
    return command_answer(backend, ClearReference(caller.actor))


@router.post("/reference/check")
def post_reference_check(caller: AdminDep, backend: BackendDep) -> DifferencesView:
    """Enters the nodes in service and compares them; nothing follows from it."""
    del caller
    snapshot, validator = require_latest_loop(backend)[0], backend.validator
    claims = [c for c in snapshot.claims if c.state in _COMPARED and c.pool in snapshot.pools]
    executor = ThreadPoolExecutor(_COMPARED_AT_A_TIME, "compare")
    try:
        compared = {c.slot: executor.submit(_compare_node, validator, c, snapshot.pools[c.pool]) for c in claims}
        wait(compared.values(), _COMPARE_TIMEOUT_S)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    late = f"it did not answer within {_COMPARE_TIMEOUT_S:.0f} s"
    return DifferencesView(
        now=backend.now(),
        reference=validator.reference.node if validator.reference else "",
        warnings=validator.reference_warnings(),
        nodes=[
            found.result() if found.done() and not found.cancelled() else NodeDifferencesView(node=slot, error=late)
            for slot, found in compared.items()
        ],
    )


def _compare_node(validator: SlurmNodeValidator, claim: Claim, pool: Pool) -> NodeDifferencesView:
    try:
        found = validator.differences(claim, pool)
    except BurstdError as error:
        return NodeDifferencesView(node=claim.slot, error=str(error))
    return NodeDifferencesView(
        node=claim.slot, differences=[DifferenceView.from_fields(one, check=one.name) for one in found]
    )


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A slot and the claim on it, or (``claim`` None) the slot alone; ``NodeViews.to_view`` makes an answer of it."""

    slot: str
    pool: str
    state: str
    """As in NodeView."""
    claim: Claim | None = None
    hold: DrainedSlot | None = None
    in_slurm: bool = True
    """False of storage nodes."""

    @property
    def claim_id(self) -> str:
        """Empty: it has no claim."""
        return self.claim.id if self.claim is not None else ""


def listed_nodes(snapshot: Snapshot, slot_holds: Iterable[DrainedSlot]) -> Iterator[ListedNode]:
    """Every slot with its claim, pool by pool in the order of the slots; then claims of former pools, storage nodes."""
    holds = {h.slot: h for h in slot_holds}
    by_slot: dict[str, list[Claim]] = {}
    for claim in snapshot.claims:
        by_slot.setdefault(claim.slot, []).append(claim)
    for pool in snapshot.pools.values():
        free = set(snapshot.free_slots(pool))
        for slot in pool.slots:
            hold, claims = holds.get(slot), by_slot.pop(slot, ())
            for claim in claims:
                yield ListedNode(slot, claim.pool, claim.state, claim, hold)
            if not claims:
                state = _free_slot_state(snapshot, _node_in_slurm(snapshot, slot), slot, free, holds)
                yield ListedNode(slot, pool.name, state, hold=hold)
    for slot, claims in by_slot.items():
        for claim in claims:
            yield ListedNode(slot, claim.pool, claim.state, claim, holds.get(slot))
    for claim in snapshot.storage_claims:
        yield ListedNode(claim.slot, claim.pool, claim.state, claim, in_slurm=False)


def own_nodes(snapshot: Snapshot) -> Iterator[ListedNode]:
    """The site's own by name: Slurm's nodes that are no slot."""
    nodes = snapshot.slurm.nodes if isinstance(snapshot.slurm, SlurmView) else {}
    slots = {slot for pool in snapshot.pools.values() for slot in pool.slots} | {c.slot for c in snapshot.claims}
    for name in sorted(nodes.keys() - slots, key=_natural):
        yield ListedNode(name, ON_PREMISES, nodes[name].state.lower())


def _natural(name: str) -> tuple[str, int, str]:
    """Orders ``n2`` before ``n10``."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name


class NodeViews:
    """Slots and claims as one caller may see them."""

    def __init__(self, snapshot: Snapshot, plan: Plan, caller: Caller, now: float) -> None:
        self._snapshot = snapshot
        self._idle_gpus = idle_gpu_texts(plan.idle_gpus)
        self._caller = caller
        self._now = now
        self._visible_jobs = visible_jobs_filter(caller, snapshot)

    def to_view(self, listed: ListedNode) -> NodeView:
        """The slot or claim in an answer."""
        node = _node_in_slurm(self._snapshot, listed.slot) if listed.in_slurm else None
        own = listed.pool == ON_PREMISES
        gres = listed_gres(self._snapshot, listed)
        cells = gpu_cells(gres, node, listed.claim, self._idle_gpus.get(listed.slot, ()), slot=not own)
        gpus = [cell.mark if cell.state is GpuState.SHARED else cell.state.value for cell in cells]
        if listed.claim is not None:
            view = self.claim_view(listed.claim, listed.hold, in_slurm=listed.in_slurm)
            return view.model_copy(update={"gpus": gpus})
        return NodeView(
            slot=listed.slot,
            pool=listed.pool,
            state=listed.state,
            reason=node.reason if own and node is not None else "",
            slurm=_slurm_node_view(node),
            held=_held(listed.hold),
            gpus=gpus,
        )

    def claim_view(self, claim: Claim, hold: DrainedSlot | None = None, *, in_slurm: bool = True) -> NodeView:
        """A claim, live or gone. Its reasons name jobs, so not everyone sees them."""
        details_visible = self._caller.can_see_claim_for(claim.users)
        offer, silent = claim.offer, self._snapshot.mounts.silent.get(claim.id)
        return NodeView.from_fields(
            claim,
            reason=claim.reason if details_visible else "",
            claim=claim.id,
            offer=offer.id,
            fabric="+".join(filter(None, claim_binding(claim, self._snapshot.pools.get(claim.pool)))),
            provider=offer.provider,
            instance=claim.instance_id,
            opened=claim.in_service_from,
            price_per_hour=money_view(offer.price, offer.currency),
            cost=money_view(claim.cost(self._now), offer.currency),
            reserved=money_view(claim.reserved, offer.currency) if claim.reserved and details_visible else None,
            jobs=self._visible_jobs(claim),
            gang=claim.gang if details_visible else "",
            slurm=_slurm_node_view(_node_in_slurm(self._snapshot, claim.slot)) if in_slurm else None,
            held=_held(hold),
            line=line_text(silent, self._now) if silent is not None else "",
        )


def _node_in_slurm(snapshot: Snapshot, slot: str) -> Node | None:
    """Slurm's node; None where Slurm could not be read or has none of the name."""
    return snapshot.slurm.nodes.get(slot) if isinstance(snapshot.slurm, SlurmView) else None


def listed_gres(snapshot: Snapshot, listed: ListedNode) -> Sequence[Gres]:
    """Of its pool, else as Slurm has the node."""
    pool = snapshot.pools.get(listed.pool)
    node = _node_in_slurm(snapshot, listed.slot) if pool is None and listed.in_slurm else None
    return pool.shape.gres if pool is not None else node.gres if node is not None else ()


def _slurm_node_view(node: Node | None) -> SlurmNodeView | None:
    if node is None:
        return None
    return SlurmNodeView.from_fields(
        node,
        state="+".join([node.state, *sorted(node.flags)]),
        free_shards=[f"{gpu.free}/{gpu.shards}" for gpu in node.shared_gpus],
    )


def event_view(entry: LoggedEvent, node: str = "") -> EventView:
    """An entry of the log. Its data stay inside: they name jobs and users of every kind."""
    kind, _, name = entry.subject.partition(":")
    return EventView.from_fields(
        entry, node=node or (name if kind == "slot" else ""), by=entry.cause.removeprefix("user:")
    )


def named_stages(reader: StoreReader, views: Iterable[EventView]) -> list[EventView]:
    """With the data of a task of an array under the task's id: it is on record under Slurm's own number of the task."""
    shown = list(views)
    numbers = {view.subject.removeprefix("stage:") for view in shown if view.subject.startswith("stage:")}
    tasks = {f"stage:{number}": f"stage:{task}" for number, task in reader.array_tasks(numbers).items()}
    return [view.model_copy(update={"subject": tasks.get(view.subject, view.subject)}) for view in shown]


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
