"""Stands for the machines behind Nova's servers: every one boots at once, but those that are named ``refused``."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from pathlib import Path
from typing import Any


class NovaMachines(socketserver.ThreadingUnixStreamServer):
    """What nova's driver is told, and a console for every server."""

    daemon_threads = True

    def __init__(self, place: Path) -> None:
        self.requests: list[dict[str, Any]] = []
        super().__init__(str(place), _Asked)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Asked(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        words = json.loads(self.rfile.readline())
        assert isinstance(self.server, NovaMachines)
        self.server.requests.append(words)
        answer = {"ok": True, "text": "hello from " + words["uuid"]}
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def meta_data(drive: dict[str, str]) -> dict[str, Any]:
    """What the config drive of a server says of it."""
    found: dict[str, Any] = json.loads(base64.b64decode(drive["openstack/latest/meta_data.json"]))
    return found
