"""The control interface as an ASGI application; it expects the caller's Peer in the connection's state."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from burstd.api.answers.types import ErrorView
from burstd.api.auth import Rights
from burstd.api.backend import Office
from burstd.api.dependencies import Denied
from burstd.api.routers import ingress, mutations, policies, providers, queries, staging
from burstd.db import UnknownClaim
from burstd.domain.errors import BurstdError

AT_ONCE = 2
"""Requests of one user that are answered at a time; the others wait their turn."""
MOST_BODY = 1 << 20
"""Bytes; a body is read before it is known who sent it, and anyone may connect."""

_SHOWN = 200

log = structlog.get_logger(__name__)


def make_app(office: Office, rights: Rights) -> FastAPI:
    """The application; all state but these two is in the daemon."""
    app = FastAPI(title="burstd", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    app.state.office = office
    app.state.rights = rights
    app.include_router(queries.router)
    app.include_router(mutations.router)
    app.include_router(staging.router)
    app.include_router(providers.router)
    app.include_router(ingress.router)
    app.include_router(policies.router)
    app.add_exception_handler(Denied, _denied)
    app.add_exception_handler(BurstdError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(Turns)
    app.add_middleware(SmallBodies)
    app.add_middleware(LastAnswers)
    return app


class Turns:
    """Answers AT_ONCE requests of one user at a time; root's and burstd's own have no limit.

    An answer may cost as much as a decision, and the deciding thread shares the processor with those who make them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._unlimited = (0, os.geteuid())
        self._of: defaultdict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or (uid := scope["state"]["peer"].uid) in self._unlimited:
            await self._app(scope, receive, send)
            return
        async with self._of[uid]:
            await self._app(scope, receive, send)


class SmallBodies:
    """Refuses bodies of more than MOST_BODY bytes."""

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
            if read > MOST_BODY:
                raise HTTPException(413, f"A request may have {MOST_BODY} bytes.")
            return message

        await self._app(scope, limited, send)


class LastAnswers:
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
            await _answer(503, text)(scope, receive, send)
        except Exception as error:
            uid, asked = scope["state"]["peer"].uid, f"{scope['method']} {scope['path'][:_SHOWN]}"
            # The caller need not see it. As one of a user's: no user fills the log.
            log.exception("a request failed unexpectedly", uid=uid, request=asked)
            if begun:
                raise
            text = f"burstd failed to answer ({type(error).__name__}); journalctl -u burstd has the details."
            await _answer(500, text)(scope, receive, send)


def _answer(status: int, text: str, known: list[str] | None = None) -> JSONResponse:
    return JSONResponse(ErrorView(error=text, known=known or []).model_dump(mode="json"), status)


async def _denied(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, Denied):
        raise error
    return _answer(error.status, error.text, error.known)


async def _failed(_: Request, error: Exception) -> JSONResponse:
    return _answer(404 if isinstance(error, UnknownClaim) else 503, str(error))


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    faults = [f"{'.'.join(str(part) for part in e['loc'][1:]) or 'the body'}: {e['msg']}" for e in error.errors()]
    return _answer(422, "; ".join(faults))


async def _http(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    return _answer(error.status_code, str(error.detail))
