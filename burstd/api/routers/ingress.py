"""The routes of HTTP that are about routes of jobs: web addresses of ports on their nodes. Users act upon their own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from burstd.api.answers.types import DoneView, View, when
from burstd.api.auth import Caller
from burstd.api.backend import HeldRoute, Office
from burstd.api.dependencies import Daemon, Denied, You, looked
from burstd.api.job_nodes import job_node, owned
from burstd.api.routers.mutations import Wish, Words
from burstd.domain.errors import BadRequest, NotAllowed, NotFound
from burstd.domain.snapshot import SlurmView

LOWEST_PORT = 1024
"""What is below is the system's, such as sshd."""
SLURMD_PORT = 6818
"""Where slurmd listens unless slurm.conf says otherwise."""

router = APIRouter(prefix="/v1")


class RouteWish(Wish):
    """``burstctl route open``; ``node`` empty: the job's first one."""

    port: int = Field(ge=LOWEST_PORT, le=65535)
    node: Words = ""


class RouteView(View):
    """A web address of a port on a job's node. ``url`` is empty where the cloud has not chosen it so far."""

    job: str
    port: int
    node: str
    provider: str
    url: str


class RoutesView(View):
    """``burstctl route list``."""

    now: datetime
    routes: list[RouteView]


@router.get("/routes")
def get_routes(you: You, office: Daemon) -> RoutesView:
    """Everyone's for administrators, else those of the caller's own jobs."""
    mine = _mine(you, office)
    found = [held for held in office.routes.held() if mine is None or held.route.job_id in mine]
    return RoutesView(now=when(office.now()), routes=_views(found, office))


@router.post("/jobs/{job_id}/routes")
def post_route(job_id: str, wish: RouteWish, you: You, office: Daemon) -> RouteView:
    """Opens one; that which is there already is answered."""
    found = job_node(job_id, wish.node, you, office)
    name = found.claim.offer.provider
    if not office.routes.able(name):
        raise Denied(
            409,
            f"Provider {name} has no routes. burstctl port-forward {job_id} {wish.port} brings the port to this host.",
        )
    if wish.port == SLURMD_PORT:
        raise Denied(422, f"Port {SLURMD_PORT} is slurmd's, which nobody opens to the world: choose another.")
    try:
        held = office.routes.open(found.claim, found.job.id, wish.port)
    except NotFound:
        raise Denied(409, f"The machine of {found.claim.slot} is gone.") from None
    except (BadRequest, NotAllowed) as error:
        raise Denied(409, str(error)) from error
    return _views([held], office)[0]


@router.delete("/jobs/{job_id}/routes")
def delete_routes(job_id: str, you: You, office: Daemon, port: Annotated[int, Query(ge=0, le=65535)] = 0) -> DoneView:
    """Closes that of one port, or all of the job's."""
    rows = owned(job_id, you, office)
    ids = {row.id for row in rows}
    found = [h for h in office.routes.held() if h.route.job_id in ids and port in (0, h.route.port)]
    if not found:
        what = f"route for port {port}" if port else "route"
        raise Denied(
            404, f"Job {job_id} has no {what}.", (h.route.url for h in office.routes.held() if h.route.job_id in ids)
        )
    office.routes.end(found)
    return DoneView(text=f"Closed {', '.join(h.route.url or str(h.route.port) for h in found)}.", changed=True)


def _mine(you: Caller, office: Office) -> set[str] | None:
    """Ids of the caller's jobs in the queue; None: he sees everyone's."""
    if you.admin:
        return None
    slurm = looked(office)[0].slurm
    return {job.id for job in slurm.jobs if job.user == you.user} if isinstance(slurm, SlurmView) else set()


def _views(held: Iterable[HeldRoute], office: Office) -> list[RouteView]:
    claims = looked(office)[0].claims
    slots = {(claim.offer.provider, claim.instance_id): claim.slot for claim in claims}
    return [
        RouteView(
            job=one.route.job_id, port=one.route.port, provider=one.provider, url=one.route.url,
            node=slots.get((one.provider, one.route.instance_id), ""),
        )
        for one in held
    ]  # fmt: skip
