"""The page's own socket, for one reverse proxy: it has asked its users who they are, and names each in a header."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from pathlib import Path

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer, Caller
from burstd.api.backend import Backend
from burstd.api.server import ApiServer, OptionalServer
from burstd.runtime.sockets import ConnectionLimiter, PeerCredentials, SocketFailed, listen_for_user
from burstd.settings.web import WebSettings
from burstd.web.app import install_pages

MAX_USERS_REQUESTS = 256
"""Requests under way of all users together; one user alone has a fifth of them, as of connections elsewhere."""
_MAX_CONNECTIONS = 5 * MAX_USERS_REQUESTS
"""As ConnectionLimiter counts: the proxy, which is one user to it, has a fifth."""
_API = "/v1"

log = structlog.get_logger(__name__)


def proxy_server(settings: WebSettings, backend: Backend) -> OptionalServer | None:
    """What answers the reverse proxy, not yet started; None where the settings have none."""
    socket = settings.socket
    return OptionalServer("page", lambda: _listen(socket, settings, backend)) if socket is not None else None


def _listen(socket: Path, settings: WebSettings, backend: Backend) -> ApiServer:
    """Raises SocketFailed and AlreadyRunning."""
    try:
        uid = pwd.getpwnam(settings.proxy_user).pw_uid
    except KeyError:
        raise SocketFailed(
            f"[web] names {settings.proxy_user!r} as proxy_user, and this host has no such account: "
            "name the one that the reverse proxy runs as, or take socket out"
        ) from None
    app = create_api_app(backend, ProxyAuthorizer(settings.admins), install_pages)
    known = ProxyIdentity(app, uid, settings.header, settings.admins)
    listener = listen_for_user(socket, uid)
    return ApiServer(known, listener, name="page", max_connections=_MAX_CONNECTIONS)


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ProxyAuthorizer(Authorizer):
    """Administrators are those whom the settings name for this way in: not what the host's groups say."""

    def __init__(self, admins: Collection[str]) -> None:
        super().__init__("")
        self._admins = frozenset(admins)

    def caller(self, peer: PeerCredentials) -> Caller:
        """Who it is; ProxyIdentity has made sure that the account exists."""
        user = pwd.getpwuid(peer.uid).pw_name
        return Caller(user, user in self._admins)

    def admins_text(self) -> str:
        """Who may act, in words for a refusal."""
        return "those whom admins in [web] names"


class ProxyIdentity:
    """Puts the named user in the place of the proxy, so that all else goes by him: rights, turns and numbers.

    Only pages are answered, not /v1: its requests bear no token of a form, so any page could have a user's browser send
    them.
    """

    def __init__(self, app: ASGIApp, proxy_uid: int, header: str, admins: Collection[str]) -> None:
        self._app = app
        self._proxy_uid = proxy_uid
        self._header = header.lower().encode("ascii")
        self._admins = frozenset(admins)
        self._under_way = ConnectionLimiter(MAX_USERS_REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        try:
            peer = await self._identify(scope)
        except _Refused as refused:
            log.warning(
                "a request on the page's socket was refused", uid=scope["state"]["peer"].uid, reason=refused.text
            )
            await PlainTextResponse(refused.text + "\n", refused.status)(scope, receive, send)
            return
        try:
            scope["state"] = {**scope["state"], "peer": peer}
            await self._app(scope, receive, send)
        finally:
            self._under_way.release(peer.uid)

    async def _identify(self, scope: Scope) -> PeerCredentials:
        """The named user, for whom a place is taken."""
        peer: PeerCredentials = scope["state"]["peer"]
        if peer.uid != self._proxy_uid:
            raise _Refused(403, f"uid {peer.uid} is not the reverse proxy's account")
        if scope["path"] == _API or scope["path"].startswith(f"{_API}/"):
            raise _Refused(404, "only pages are answered here")
        values = [value for name, value in scope["headers"] if name == self._header]
        if len(values) != 1 or not values[0]:
            raise _Refused(403, f"{len(values)} headers {self._header.decode()} instead of one with a name")
        name = values[0].decode("utf-8", "replace")
        try:
            account = await run_in_threadpool(pwd.getpwnam, name)
        except (KeyError, ValueError):
            raise _Refused(403, f"this host knows no user {name[:64]!r}") from None
        if account.pw_name != name:
            raise _Refused(403, f"{name[:64]!r} is not how this host writes the name of {account.pw_name}")
        if account.pw_uid in (0, os.geteuid()) and name not in self._admins:
            raise _Refused(403, f"{name} is not among admins in [web]")
        if not self._under_way.acquire(account.pw_uid):
            raise _Refused(503, f"too many requests of {name} at once")
        return PeerCredentials(account.pw_uid, account.pw_gid, peer.pid)
