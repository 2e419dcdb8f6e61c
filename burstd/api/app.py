"""The control interface as an ASGI application; it expects the caller's Peer in the connection's state."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from burstd.api.answers.base import ErrorView
from burstd.api.auth import Authorizer
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError
from burstd.api.routers import (
    bill,
    closed_months,
    compare,
    events,
    forecast,
    history,
    ingress,
    job_use,
    jobs,
    nodes,
    notify,
    plan,
    policies,
    projects,
    providers,
    quote,
    staging,
    status,
    volumes,
)
from burstd.db import UnknownClaim
from burstd.domain.errors import BurstdError

MAX_CONCURRENT_REQUESTS = 2
"""Requests of one user that are answered at a time; the others wait their turn."""
MAX_BODY_BYTES = 1 << 20
"""Bytes; a body is read before it is known who sent it, and anyone may connect."""

_LOGGED_PATH_CHARS = 200

log = structlog.get_logger(__name__)


def create_api_app(backend: Backend, authorizer: Authorizer, *extensions: Callable[[FastAPI], None]) -> FastAPI:
    """The application; all state but these is in the daemon. ``extensions`` add routes for others than burstctl."""
    app = FastAPI(title="burstd", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    app.state.backend = backend
    app.state.authorizer = authorizer
    groups = (status, nodes, jobs, job_use, events, plan, staging, providers, ingress, policies, volumes, projects)
    for group in (*groups, history, notify, quote, bill, closed_months, forecast, compare):
        app.include_router(group.router)
    app.add_exception_handler(ApiError, _handle_api_error)
    app.add_exception_handler(BurstdError, _handle_burstd_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_middleware(UserConcurrencyMiddleware)
    app.add_middleware(BodySizeMiddleware)
    app.add_middleware(UnhandledErrorMiddleware)
    for extend in extensions:
        extend(app)
    return app


class UserConcurrencyMiddleware:
    """Answers MAX_CONCURRENT_REQUESTS requests of one user at a time; root's and burstd's own have no limit.

    An answer may cost as much as a decision, and the deciding thread shares the processor with those who make them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._unlimited = (0, os.geteuid())
        self._semaphores: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or (uid := scope["state"]["peer"].uid) in self._unlimited:
            await self._app(scope, receive, send)
            return
        async with self._semaphores[uid]:
            await self._app(scope, receive, send)


class BodySizeMiddleware:
    """Refuses bodies of more than MAX_BODY_BYTES bytes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MAX_BODY_BYTES:
                raise HTTPException(413, f"A request may have {MAX_BODY_BYTES} bytes.")
            return message

        await self._app(scope, limited, send)


class UnhandledErrorMiddleware:
    """Tells who still waits for an answer why there is none: the daemon stops, or failed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            # The server cancels at its end only, and this is the whole of the task.
            if begun:
                raise
            text = "burstd is stopping; whether it still did what was asked shows after its next start."
            await _error_response(503, text)(scope, receive, send)
        except Exception as error:
            uid, asked = scope["state"]["peer"].uid, f"{scope['method']} {scope['path'][:_LOGGED_PATH_CHARS]}"
            # The caller need not see it. As one of a user's: no user fills the log.
            log.exception("a request failed unexpectedly", uid=uid, request=asked)
            if begun:
                raise
            text = f"burstd failed to answer ({type(error).__name__}); journalctl -u burstd has the details."
            await _error_response(500, text)(scope, receive, send)


def _error_response(status: int, text: str, known: list[str] | None = None) -> JSONResponse:
    return JSONResponse(ErrorView(error=text, known=known or []).model_dump(mode="json"), status)


async def _handle_api_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, ApiError):
        raise error
    return _error_response(error.status, error.text, error.known)


async def _handle_burstd_error(_: Request, error: Exception) -> JSONResponse:
    return _error_response(404 if isinstance(error, UnknownClaim) else 503, str(error))


async def _handle_validation_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    faults = [f"{'.'.join(str(part) for part in e['loc'][1:]) or 'the body'}: {e['msg']}" for e in error.errors()]
    return _error_response(422, "; ".join(faults))


async def _handle_http_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    return _error_response(error.status_code, str(error.detail))
