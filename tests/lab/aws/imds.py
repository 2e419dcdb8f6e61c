"""The metadata service of EC2's instances, version 2 only, for boxes: each is known by the address that it asks from.

Protocol: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html; the notices:
spot-instance-termination-notices.html and rebalance-recommendations.html beside it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

ADDRESS = "169.254.169.254"
_TTL_S = 21600
_TOKEN = "X-aws-ec2-metadata-token"


@dataclass(slots=True)
class Guest:
    """An instance, as its metadata tells of it."""

    instance_id: str
    address: str
    instance_type: str
    zone: str
    user_data: bytes
    notices: dict[str, str] = field(default_factory=dict)
    """What was announced, by its path below ``meta-data``."""

    def metadata(self) -> dict[str, bytes]:
        """Every path below ``latest`` that has a value."""
        host = f"{host_name(self.address)}.{self.zone[:-1]}.compute.internal"
        values = {
            "instance-id": self.instance_id,
            "instance-type": self.instance_type,
            "local-ipv4": self.address,
            "local-hostname": host,
            "hostname": host,
            "placement/availability-zone": self.zone,
            "placement/region": self.zone[:-1],
            **self.notices,
        }
        found = {f"meta-data/{path}": value.encode() for path, value in values.items()}
        return found | ({"user-data": self.user_data} if self.user_data else {})


def host_name(address: str) -> str:
    """The name that EC2 gives an instance: ``ip-10-77-16-4``."""
    return f"ip-{address.replace('.', '-')}"


class Imds:
    """Serves from ``listen`` (address, port) until ``close``; the address must be there."""

    def __init__(self, listen: tuple[str, int] = (ADDRESS, 80), clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._guests: dict[str, Guest] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        imds = self

        class Handler(_Handler):
            service = imds

        self._server = ThreadingHTTPServer(listen, Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="imds", daemon=True)
        self._thread.start()

    def add(self, guest: Guest) -> None:
        """From now on its address is answered."""
        with self._lock:
            self._guests[guest.address] = guest

    def remove(self, instance_id: str) -> None:
        """Its address is nobody's; no error where it never was anybody's."""
        with self._lock:
            self._guests = {at: one for at, one in self._guests.items() if one.instance_id != instance_id}

    def notice(self, instance_id: str, kind: Literal["interruption", "rebalance"], deadline: float | None) -> None:
        """Announces it to the instance, if it is there. ``deadline`` in seconds since 1970."""
        now = _stamp(self._clock())
        path, text = "events/recommendations/rebalance", f'{{"noticeTime":"{now}"}}'
        if kind == "interruption":
            end = now if deadline is None else _stamp(deadline)
            path, text = "spot/instance-action", f'{{"action":"terminate","time":"{end}"}}'
        with self._lock:
            for guest in self._guests.values():
                if guest.instance_id == instance_id:
                    guest.notices[path] = text

    def close(self) -> None:
        """Answers nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, address: str, ttl: str) -> tuple[HTTPStatus, bytes]:
        """A token for ``ttl`` seconds, for the instance of this address only."""
        if not ttl.isdigit() or not 1 <= int(ttl) <= _TTL_S:
            return HTTPStatus.BAD_REQUEST, b""
        word = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens[word] = (address, self._clock() + int(ttl))
        return HTTPStatus.OK, word.encode()

    def value(self, address: str, token: str, path: str) -> tuple[HTTPStatus, bytes]:
        """What is at a path below ``latest``: a value, or a folder's names."""
        with self._lock:
            asker, until = self._tokens.get(token, ("", 0.0))
            if asker != address or self._clock() > until:
                return HTTPStatus.UNAUTHORIZED, b""
            guest = self._guests.get(address)
            told = {} if guest is None else guest.metadata()
        if path in told:
            return HTTPStatus.OK, told[path]
        folder = f"{path.rstrip('/')}/"
        below = [other.removeprefix(folder) for other in told if other.startswith(folder)]
        names = sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in below})
        return (HTTPStatus.OK, "\n".join(names).encode()) if names else (HTTPStatus.NOT_FOUND, b"")


class _Handler(BaseHTTPRequestHandler):
    service: Imds
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        if self.path != "/latest/api/token":
            self._answer(HTTPStatus.NOT_FOUND, b"")
            return
        self._answer(*self.service.token(self.client_address[0], self.headers.get(f"{_TOKEN}-ttl-seconds", "")))

    def do_GET(self) -> None:
        top, _, path = self.path.removeprefix("/").partition("/")
        if top != "latest":
            self._answer(HTTPStatus.NOT_FOUND, b"")
            return
        self._answer(*self.service.value(self.client_address[0], self.headers.get(_TOKEN, ""), path))

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
        """Nobody reads it."""


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
