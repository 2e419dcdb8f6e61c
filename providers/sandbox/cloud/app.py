"""The cloud's HTTP interface. Faults, calls and interruptions are for the lab's unix socket only."""

from __future__ import annotations

import asyncio
import hmac
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from providers.sandbox.cloud import wire
from providers.sandbox.cloud.cloud import PAGE, SandboxCloud
from providers.sandbox.cloud.refusals import HTTP_STATUS, AnswerLost, RefusalCode, SandboxRefused

Tags = Annotated[list[str], Query(alias="tag", description="name=value, may be repeated")]
Limit = Annotated[int, Query(ge=1, le=1000)]


class CutConnection(Response):
    """No answer: after some seconds, or as soon as the client gives up, the line is cut."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self._after_s = after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Begins an answer that never ends, which makes the server close the connection."""
        try:
            async with asyncio.timeout(self._after_s):
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})


def _by_socket(request: Request) -> bool:
    server = request.scope.get("server")
    return server is not None and server[1] is None


def make_app(cloud: SandboxCloud, token: str) -> FastAPI:
    """The application; clients by TCP must show the token."""

    def known(request: Request) -> None:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not _by_socket(request) and not hmac.compare_digest(shown.encode(), token.encode()):
            raise SandboxRefused(RefusalCode.AUTH, "the token is not accepted")

    def lab_only(request: Request) -> None:
        if not _by_socket(request):
            raise SandboxRefused(RefusalCode.NOT_FOUND, "there is no such thing here")

    app = FastAPI(title="burstd sandbox cloud", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(_client_router(cloud), prefix="/v1", dependencies=[Depends(known)])
    app.include_router(_lab_router(cloud), prefix="/v1", dependencies=[Depends(lab_only)])

    @app.get("/self/notice")
    def notice(request: Request) -> PlainTextResponse:
        """For instances, without a token: what was announced of the one that asks, as NodeWatch has it."""
        said = cloud.notice_at(request.client.host) if request.client else None
        if said is None:
            return PlainTextResponse("")
        return PlainTextResponse(said.kind if said.deadline is None else f"{said.kind} {said.deadline:.0f}")

    @app.exception_handler(SandboxRefused)
    async def refused(_request: Request, no: SandboxRefused) -> JSONResponse:
        headers = {"Retry-After": f"{no.retry_after_s:g}"} if no.retry_after_s else None
        body = {"error": {"code": no.code.value, "message": str(no)}}
        return JSONResponse(body, HTTP_STATUS[no.code], headers)

    @app.exception_handler(RequestValidationError)
    async def misread(_request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"error": {"code": RefusalCode.BAD_REQUEST.value, "message": str(error)}}, 400)

    @app.exception_handler(AnswerLost)
    async def lost(_request: Request, how: AnswerLost) -> Response:
        return CutConnection(how.after_s)

    return app


def _tags(words: list[str]) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in words)


def _client_router(cloud: SandboxCloud) -> APIRouter:
    """What a provider calls. The functions are synchronous: the framework runs them in threads."""
    router = APIRouter()

    @router.get("/offers")
    def offers() -> list[wire.OfferView]:
        return wire.offer_views(cloud.catalog, cloud.offers())

    @router.post("/instances", status_code=201)
    def launch(body: wire.LaunchBody) -> wire.InstanceView:
        return wire.InstanceView.from_machine(cloud.launch(body.request()))

    @router.get("/instances")
    def instances(tags: Tags = [], limit: Limit = PAGE, marker: str = "") -> wire.PageView[wire.InstanceView]:  # noqa: B006
        return wire.instances_page_view(cloud.instances(_tags(tags), limit, marker))

    @router.get("/instances/{instance_id}")
    def instance(instance_id: str) -> wire.InstanceView:
        return wire.InstanceView.from_machine(cloud.instance(instance_id))

    @router.delete("/instances/{instance_id}", status_code=204)
    def terminate(instance_id: str) -> None:
        cloud.terminate(instance_id)

    @router.get("/instances/{instance_id}/console")
    def console(instance_id: str) -> PlainTextResponse:
        return PlainTextResponse(cloud.console(instance_id))

    for kind in ("volume", "port"):
        _add_resource_routes(router, cloud, kind)

    _add_disk_routes(router, cloud)

    @router.get("/quota")
    def quota() -> wire.QuotaView:
        limit, used = cloud.quota()
        return wire.QuotaView(limit=limit, used=used)

    @router.get("/supplies")
    def supplies() -> wire.SuppliesView:
        images, free = cloud.supplies()
        return wire.SuppliesView(images=images, free_addresses=free)

    @router.get("/notices")
    def notices(tags: Tags = []) -> list[wire.NoticeView]:  # noqa: B006
        return [wire.NoticeView.model_validate(n, from_attributes=True) for n in cloud.notices(_tags(tags))]

    @router.post("/notices/acknowledge", status_code=204)
    def acknowledge(body: wire.ReceiptsBody) -> None:
        cloud.acknowledge(body.receipts)

    @router.get("/bill")
    def bill(tags: Tags = []) -> wire.BillView:  # noqa: B006
        rows = [wire.BillRowView.from_row(row) for row in cloud.bill(_tags(tags))]
        total = sum((row.cost for row in rows), Decimal(0))
        return wire.BillView(currency=cloud.catalog.currency, total=total, rows=rows)

    return router


def _add_resource_routes(router: APIRouter, cloud: SandboxCloud, kind: str) -> None:
    @router.get(f"/{kind}s")
    def parts(tags: Tags = [], limit: Limit = PAGE, marker: str = "") -> wire.PageView[wire.ResourceView]:  # noqa: B006
        return wire.resources_page_view(cloud.list_resources(kind, _tags(tags), limit, marker))

    @router.delete(f"/{kind}s/{{part_id}}", status_code=204)
    def remove(part_id: str) -> None:
        cloud.remove(kind, part_id)


def _add_disk_routes(router: APIRouter, cloud: SandboxCloud) -> None:
    @router.post("/disks", status_code=201)
    def create(body: wire.DiskBody) -> wire.DiskView:
        return wire.DiskView.from_disk(cloud.disks.create(body.zone, body.size_bytes, body.tags), ready=True)

    @router.get("/disks")
    def disks(tags: Tags = [], limit: Limit = PAGE, marker: str = "") -> wire.PageView[wire.DiskView]:  # noqa: B006
        return wire.disks_page_view(cloud.disks.page(_tags(tags), limit, marker))

    @router.post("/disks/{disk_id}/attach", status_code=204)
    def attach(disk_id: str, body: wire.AttachBody) -> None:
        cloud.disks.attach(disk_id, body.instance)

    @router.post("/disks/{disk_id}/detach", status_code=204)
    def detach(disk_id: str, body: wire.AttachBody) -> None:
        cloud.disks.detach(disk_id, body.instance)

    @router.delete("/disks/{disk_id}", status_code=204)
    def remove(disk_id: str) -> None:
        cloud.disks.remove(disk_id)


def _lab_router(cloud: SandboxCloud) -> APIRouter:
    """What orders trouble, and what counts."""
    router = APIRouter()

    @router.get("/ready", status_code=204)
    def ready() -> None:
        """Answers as soon as the server does."""

    @router.put("/faults")
    def inject_fault(body: wire.FaultBody) -> wire.FaultBody:
        return wire.FaultBody.model_validate(cloud.inject_fault(body.fault()), from_attributes=True)

    @router.get("/faults")
    def pending_faults() -> list[wire.FaultBody]:
        return [wire.FaultBody.model_validate(fault, from_attributes=True) for fault in cloud.pending_faults()]

    @router.delete("/faults", status_code=204)
    def cancel_fault(fault: str | None = None) -> None:
        cloud.cancel_fault(fault)

    @router.post("/instances/{instance_id}/interrupt", status_code=204)
    def interrupt(instance_id: str, notice_seconds: float = 0.0) -> None:
        cloud.interrupt(instance_id, notice_seconds)

    @router.post("/instances/{instance_id}/hint", status_code=204)
    def recommend_rebalance(instance_id: str) -> None:
        cloud.recommend_rebalance(instance_id)

    @router.get("/calls")
    def calls() -> wire.CallsView:
        launches = [wire.LaunchCallView.model_validate(c, from_attributes=True) for c in list(cloud.launch_calls)]
        return wire.CallsView(counts=dict(cloud.calls), launches=launches)

    return router
