"""A cloud on loopback that answers what a test tells it to: for what goes over the wire, and what breaks there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

PASSWORD = "Quite-Secret-Password"
TOKEN = "gAAAA-very-secret-token"
REQUEST_ID = {"x-openstack-request-id": "req-1"}


class Said(NamedTuple):
    """What a service answers. Status 0: it closes the connection instead; -1: it waits for the test's end."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = REQUEST_ID


Answers = Said | list[Said] | Callable[[dict[str, list[str]]], Said]


class Stub:
    """``answers``: by method and path, ``GET /compute/v2.1/servers``; of a list one a call, the last for ever."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        self.versions: list[str] = []
        self.over = threading.Event()
        self.catalog = {"compute": f"{url}/compute/v2.1", "network": f"{url}/network", "image": f"{url}/image"}
        self.regions = ["R"]
        self.answers: dict[str, Answers] = {
            "GET /identity/v3": Said(200, {"version": _version("v3.14", f"{url}/identity/v3/")}),
            "GET /compute/v2.1": Said(200, {"version": _version("v2.1", f"{url}/compute/v2.1/", "2.96")}),
            "GET /network/v2.0": Said(200, {"resources": []}),
            "GET /image": Said(300, {"versions": [_version("v2.9", f"{url}/image/v2/")]}),
        }
        self._lock = threading.Lock()

    def count(self, what: str) -> int:
        return self.asked.count(what)

    def token(self) -> Said:
        """What Keystone answers to a good login."""
        catalog = [
            {"type": kind, "name": kind, "endpoints": [
                {"interface": "public", "region": region, "region_id": region, "id": kind + region, "url": url}
                for region in self.regions
            ]}
            for kind, url in self.catalog.items()
        ]  # fmt: skip
        body = {
            "token": {
                "methods": ["password"], "expires_at": "2999-01-01T00:00:00.000000Z",
                "issued_at": "2020-01-01T00:00:00.000000Z", "catalog": catalog, "roles": [],
                "user": {"id": "u", "name": "u", "domain": {"id": "d", "name": "d"}},
                "project": {"id": "f" * 32, "name": "p", "domain": {"id": "d", "name": "d"}},
            }
        }  # fmt: skip
        return Said(201, body, {"X-Subject-Token": TOKEN})

    def answer(self, method: str, target: str, body: Any, version: str) -> Said:
        split = urlsplit(target)
        what = f"{method} {split.path.rstrip('/')}"
        with self._lock:
            self.asked.append(what)
            self.bodies.append(body)
            self.versions.append(version)
            found = self.answers.get(what)
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
        if found is None:
            return self.token() if what == "POST /identity/v3/auth/tokens" else Said(404, {"x": {"message": "none"}})
        return found if isinstance(found, Said) else found(parse_qs(split.query))

    def clouds_yaml(self, folder: Path, **more: Any) -> Path:
        """An entry ``stub``."""
        auth = {
            "auth_url": f"{self.url}/identity/v3", "username": "u", "password": PASSWORD, "project_name": "p",
            "user_domain_name": "d", "project_domain_name": "d",
        }  # fmt: skip
        path = folder / "clouds.yaml"
        path.write_text(json.dumps({"clouds": {"stub": {"region_name": "R", "auth": auth, **more}}}))
        return path


def _version(name: str, url: str, newest: str = "") -> dict[str, Any]:
    more = {"version": newest, "min_version": "2.1"} if newest else {}
    return {"id": name, "status": "CURRENT", "links": [{"rel": "self", "href": url}], **more}


@contextmanager
def serving() -> Iterator[Stub]:
    """A stub until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            said = stub.answer(
                self.command, self.path, json.loads(raw) if raw else None,
                self.headers.get("OpenStack-API-Version", ""),
            )  # fmt: skip
            if said.status < 1:
                if said.status < 0:
                    stub.over.wait()
                self.close_connection = True
                return
            data = said.body.encode() if isinstance(said.body, str) else json.dumps(said.body).encode()
            self.send_response(said.status)
            kind = "text/html" if isinstance(said.body, str) else "application/json"
            for name, value in {"Content-Type": kind, **said.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub = Stub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        stub.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
