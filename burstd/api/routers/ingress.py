"""The routes of HTTP that are about routes of jobs: web addresses of ports on their nodes. Users act upon their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from burstd.api.answers.base import CommandResultView
from burstd.api.answers.jobs import RoutesView, RouteView
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, RequestBody, ShortText, require_latest_loop
from burstd.api.job_connections.job_nodes import find_job_machine, owned_jobs
from burstd.domain.errors import BadRequest, NotAllowed, NotFound
from burstd.domain.snapshot import SlurmView
from burstd.reconciler.pollers.ingress import ProviderRoute

LOWEST_PORT = 1024
"""What is below is the system's, such as sshd."""
SLURMD_PORT = 6818
"""Where slurmd listens unless slurm.conf says otherwise."""

router = APIRouter(prefix="/v1")


class OpenRouteRequest(RequestBody):
    """``burstctl route open``; ``node`` empty: the job's first one."""

    port: int = Field(ge=LOWEST_PORT, le=65535)
    node: ShortText = ""


@router.get("/routes")
def get_routes(caller: CallerDep, backend: BackendDep) -> RoutesView:
    """Everyone's for administrators, else those of the caller's own jobs."""
    mine = _visible_job_ids(caller, backend)
    found = [route for route in backend.routes.list_routes() if mine is None or route.route.job_id in mine]
    return RoutesView(now=backend.now(), routes=_route_views(found, backend))


@router.post("/jobs/{job_id}/routes")
def post_route(job_id: str, body: OpenRouteRequest, caller: CallerDep, backend: BackendDep) -> RouteView:
    """Opens one; that which is there already is answered."""
    found = find_job_machine(job_id, body.node, caller, backend)
    name = found.claim.offer.provider
    if not backend.routes.supports_routes(name):
        raise ApiError(
            409,
            f"Provider {name} has no routes. burstctl port-forward {job_id} {body.port} brings the port to this host.",
        )
    if body.port == SLURMD_PORT:
        raise ApiError(422, f"Port {SLURMD_PORT} is slurmd's, which nobody opens to the world: choose another.")
    try:
        route = backend.routes.open_route(found.claim, found.job.id, body.port)
    except NotFound:
        raise ApiError(409, f"The machine of {found.claim.slot} is gone.") from None
    except (BadRequest, NotAllowed) as error:
        raise ApiError(409, str(error)) from error
    return _route_views([route], backend)[0]


@router.delete("/jobs/{job_id}/routes")
def delete_routes(
    job_id: str, caller: CallerDep, backend: BackendDep, port: Annotated[int, Query(ge=0, le=65535)] = 0
) -> CommandResultView:
    """Closes that of one port, or all of the job's."""
    rows = owned_jobs(job_id, caller, backend)
    ids = {row.id for row in rows}
    found = [h for h in backend.routes.list_routes() if h.route.job_id in ids and port in (0, h.route.port)]
    if not found:
        what = f"route for port {port}" if port else "route"
        raise ApiError(
            404,
            f"Job {job_id} has no {what}.",
            (h.route.url for h in backend.routes.list_routes() if h.route.job_id in ids),
        )
    backend.routes.close_routes(found)
    return CommandResultView(text=f"Closed {', '.join(h.route.url or str(h.route.port) for h in found)}.", changed=True)


def _visible_job_ids(caller: Caller, backend: Backend) -> set[str] | None:
    """Ids of the caller's jobs in the queue; None: he sees everyone's."""
    if caller.admin:
        return None
    slurm = require_latest_loop(backend)[0].slurm
    return {job.id for job in slurm.jobs if job.user == caller.user} if isinstance(slurm, SlurmView) else set()


def _route_views(routes: Iterable[ProviderRoute], backend: Backend) -> list[RouteView]:
    claims = require_latest_loop(backend)[0].claims
    slots = {(claim.offer.provider, claim.instance_id): claim.slot for claim in claims}
    return [
        RouteView(
            job=one.route.job_id, port=one.route.port, provider=one.provider, url=one.route.url,
            node=slots.get((one.provider, one.route.instance_id), ""),
        )
        for one in routes
    ]  # fmt: skip
