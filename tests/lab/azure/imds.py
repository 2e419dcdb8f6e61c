"""The metadata service of Azure's machines, for boxes and for the script that reads it: known by their addresses.

https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service and scheduled-events beside it.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ADDRESS = "169.254.169.254"


@dataclass(slots=True)
class Guest:
    """A machine, as its metadata tells of it."""

    name: str
    address: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def announce(self, kind: str, not_before: float | None, *, whose: str = "", status: str = "Scheduled") -> None:
        """A scheduled event; of this machine, unless it is said whose."""
        at = "" if not_before is None else format_datetime(datetime.fromtimestamp(not_before, UTC), usegmt=True)
        about = {"EventType": kind, "EventStatus": status, "NotBefore": at, "Resources": [whose or self.name]}
        source = {"ResourceType": "VirtualMachine", "EventSource": "Platform", "DurationInSeconds": -1}
        self.events.append({**about, **source, "EventId": f"{len(self.events)}", "Description": ""})


class Imds:
    """Serves from ``listen`` (address, port) until ``close``; the address must be there."""

    def __init__(self, listen: tuple[str, int] = (ADDRESS, 80)) -> None:
        self.guests: dict[str, Guest] = {}
        """By address."""
        imds = self

        class Handler(_Handler):
            service = imds

        self._server = ThreadingHTTPServer(listen, Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="imds", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answers nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, address: str, path: str, metadata: str) -> tuple[HTTPStatus, bytes]:
        """Of one question."""
        guest = self.guests.get(address)
        if guest is None or metadata != "true":
            return HTTPStatus.BAD_REQUEST, b"{}"
        if path == "/metadata/instance/compute/name":
            return HTTPStatus.OK, guest.name.encode()
        if path == "/metadata/scheduledevents":
            return HTTPStatus.OK, json.dumps({"DocumentIncarnation": 1, "Events": guest.events}).encode()
        return HTTPStatus.NOT_FOUND, b""


class _Handler(BaseHTTPRequestHandler):
    service: Imds

    def do_GET(self) -> None:
        status, body = self.service.answer(
            self.client_address[0], urlsplit(self.path).path, self.headers.get("Metadata", "")
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
        """Nobody reads it."""
