"""All nodes as a table, and their GPUs as a map; one node with its story."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.answers.base import utc_time
from burstd.api.answers.nodes import ON_PREMISES
from burstd.api.dependencies import require_latest_loop
from burstd.api.routers.jobs import AnnotatedQueue, annotated_queue
from burstd.api.routers.nodes import NodeViews, get_node
from burstd.domain.slurm.job import PENDING_STATES, Job
from burstd.planner.explain.gpu_map import GpuState, count_gpus
from burstd.planner.explain.job_lookup import request_text
from burstd.web.listing import Filter, PageNumber, list_page
from burstd.web.node_list import NodeEntry
from burstd.web.rendering import Page, PageDep

MAP_NODES = 256
"""Of one page of the map."""
_ROWS_AT_A_TIME = 25

router = APIRouter()


@router.get("/nodes")
def nodes_page(
    page: PageDep,
    *,
    pool: Filter = "",
    state: Filter = "",
    name: Filter = "",
    number: PageNumber = 1,
) -> HTMLResponse:
    """Nodes with a machine, or of the site's own; with ``state=all`` also slots without one."""
    snapshot, plan = require_latest_loop(page.backend)
    entries = page.nodes
    found = _filtered(entries, pool, state, name)
    listing = list_page(found, number, "/nodes", {"pool": pool, "state": state, "name": name})
    views = NodeViews(snapshot, plan, page.caller, page.backend.now())
    return page.render(
        "nodes.html",
        "Nodes",
        listing=listing,
        rows=[(entry, views.to_view(entry.listed) if entry.listed.pool != ON_PREMISES else None)
              for entry in page.precedence.slices(listing.rows, _ROWS_AT_A_TIME)],
        pools=_pools(entries),
        states=sorted({entry.listed.state for entry in entries}),
        asked={"pool": pool, "state": state, "name": name},
    )  # fmt: skip


@router.get("/gpus")
def gpus_page(page: PageDep, *, pool: Filter = "", state: Filter = "", number: PageNumber = 1) -> HTMLResponse:
    """The GPU map: nodes that have GPUs, those with a machine unless ``state=all``."""
    entries = [entry for entry in page.nodes if entry.gpus]
    chosen = [entry for entry in entries if pool in ("", entry.listed.pool)]
    if state in {known.value for known in GpuState}:
        shown = [entry for entry in chosen if any(cell.state == state for cell in entry.gpus)]
    elif state == "all":
        shown = chosen
    else:
        shown = [entry for entry in chosen if any(cell.state is not GpuState.ASLEEP for cell in entry.gpus)]
    listing = list_page(shown, number, "/gpus", {"pool": pool, "state": state}, MAP_NODES)
    groups: dict[str, list[NodeEntry]] = {}
    for entry in listing.rows:
        groups.setdefault(entry.listed.pool, []).append(entry)
    return page.render(
        "gpus.html",
        "GPUs",
        listing=listing,
        groups=groups,
        pools=_pools(entries),
        counts=count_gpus(cell for entry in chosen for cell in entry.gpus),
        states=list(GpuState),
        asked={"pool": pool, "state": state},
    )


@router.get("/nodes/{name}")
def node_page(page: PageDep, name: str) -> HTMLResponse:
    """One node, or one claim by its id, past ones included."""
    queue = annotated_queue(page.backend)
    entry = next((e for e in page.nodes if name in (e.listed.slot, e.listed.claim_id)), None)
    on_premises = entry is not None and entry.listed.pool == ON_PREMISES
    detail = None if on_premises else get_node(name, page.caller, page.backend)
    slot = entry.listed.slot if entry is not None else ""
    return page.render(
        "node.html",
        f"Node {detail.node.slot if detail is not None else slot}",
        entry=entry,
        node=entry.node if entry is not None else None,
        detail=detail,
        booted=utc_time(entry.node.boot_time) if entry is not None and entry.node and entry.node.boot_time else None,
        jobs=[(job, request_text(job)) for job in _jobs_on(slot, queue, page)] if slot else [],
        counts=count_gpus(entry.gpus) if entry is not None else {},
    )


def _jobs_on(slot: str, queue: AnnotatedQueue, page: Page) -> Iterable[Job]:
    """Running jobs on a node, those that the caller may see."""
    return (
        job
        for job in queue.all_jobs()
        if job.state not in PENDING_STATES and slot in job.node_list and page.caller.can_see_user(job.user)
    )


def _pools(entries: Iterable[NodeEntry]) -> list[str]:
    return list(dict.fromkeys(entry.listed.pool for entry in entries))


def _filtered(entries: Sequence[NodeEntry], pool: str, state: str, name: str) -> list[NodeEntry]:
    found = [entry for entry in entries if pool in ("", entry.listed.pool)]
    if name:
        found = [entry for entry in found if name in entry.listed.slot]
    if state == "all":
        return found
    if state:
        return [entry for entry in found if entry.listed.state == state]
    if name:
        return found
    return [entry for entry in found if entry.listed.claim is not None or entry.listed.state != "free"]
