"""The mock's server: ``python -m tests.lab.aws.server --port N``. Prints ``listening on HOST PORT``, then serves.

It takes the calls of all services at ``/``, told apart by their signatures' scope, and the mock's own at ``/_lab/NAME``
(JSON in, JSON out; see ``control``). It keeps no state, and ends at SIGTERM.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.lab.aws import ec2, extras, hooks
from tests.lab.aws.accounts import Worlds
from tests.lab.aws.control import Control
from tests.lab.aws.faults import Cut, MockRefused
from tests.lab.aws.life import Clock, Life
from tests.lab.aws.rights import Rights
from tests.lab.aws.worlds import World

Environ = dict[str, Any]
Start = Callable[..., Any]
Answer = tuple[str, list[tuple[str, str]], bytes]
_SCOPE = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request")


class App:
    """The WSGI application."""

    def __init__(self, worlds: Worlds, life: Life) -> None:
        self._worlds, self._life = worlds, life
        self._control = Control(worlds, life)
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        """One request."""
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        path = environ.get("PATH_INFO", "")
        try:
            if path.startswith("/_lab/"):
                status, headers, data = self._control(path.removeprefix("/_lab/"), body)
            else:
                status, headers, data = self._call(environ, body)
        except Cut:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("cut by the fault switch") from None
        kept = [one for one in headers if one[0].lower() not in ("content-length", "connection")]
        start(status, [*kept, ("Content-Length", str(len(data)))])
        return [data]

    def _call(self, environ: Environ, body: bytes) -> Answer:
        scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
        key, region, service = scope.groups() if scope else ("", "", "ec2")
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        speaks_json = bool(target)
        words: Mapping[str, Any] = json.loads(body or b"{}") if speaks_json else dict(parse_qsl(body.decode()))
        action = target.rpartition(".")[2] or str(words.get("Action", ""))
        try:
            world, rights = self._who(key, service, region)
            name = action if service == "ec2" else f"{service}:{action}"
            with world.lock:
                world.calls[name] += 1
                world.faults.before(name, bool(words.get("NextToken")))
            answer = self._done(environ, body, service, action, words, world, rights)
            with world.lock:
                world.faults.after(name)
        except MockRefused as error:
            text, kind = (error.json(), "application/x-amz-json-1.1") if speaks_json else (error.xml(), "text/xml")
            return f"{error.status} {error.code}", [("Content-Type", kind)], text.encode()
        return answer

    def _who(self, key: str, service: str, region: str) -> tuple[World, Rights]:
        found = self._worlds.world_of_key(key)
        if found is None:
            raise MockRefused("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
        if service == "ec2" and region != found[0].region:
            raise MockRefused("AuthFailure", f"the mock's account has region {found[0].region} only", 401)
        return found

    def _done(
        self, environ: Environ, body: bytes, service: str, action: str, words: Mapping[str, Any], world: World,
        rights: Rights,
    ) -> Answer:  # fmt: skip
        if service != "ec2":
            rights.check(service, action, words)
        said: dict[str, Any] | None = None
        if service == "servicequotas" and action == "ListServiceQuotas":
            said = extras.list_service_quotas(words, world.region, world.number)
        elif service == "pricing" and action == "GetProducts":
            said = extras.get_products(words)
        if said is not None:
            return "200 OK", [("Content-Type", "application/x-amz-json-1.1")], json.dumps(said).encode()
        ec2.here.world, ec2.here.rights, ec2.here.life = world, rights, self._life
        return self._ask_moto({**environ, "HTTP_X_MOTO_ACCOUNT_ID": world.number}, body)

    def _ask_moto(self, environ: Environ, body: bytes) -> Answer:
        heard: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], object]:
            heard.update(status=status, headers=headers)
            return lambda _: None

        words = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        parts = self._moto.get_application(words)(words, start)
        data = b"".join(parts)
        if hasattr(parts, "close"):
            parts.close()
        return heard["status"], heard["headers"], data


class _Handler(WSGIRequestHandler):
    """Keeps connections open, and is silent."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any, **__: Any) -> None:
        """Nobody reads it."""


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="A mock of EC2.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--machines", default="", help="PACKAGE.MODULE:FUNCTION of what stands behind the instances")
    parser.add_argument("--machines-config", type=Path, default=Path(os.devnull))
    given = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # Thousands of images of Amazon's, which moto looks through for every instance.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "0"
    ec2.install()
    worlds = Worlds()
    life = Life(Clock())

    def halted(instance_id: str) -> None:
        world = worlds.owner_of(instance_id)
        if world is not None:
            life.halted(world, world.made[instance_id])

    life.machines = machines = hooks.load(given.machines, given.machines_config, halted)
    server = make_server(given.host, given.port, App(worlds, life), threaded=True, request_handler=_Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"listening on {given.host} {server.server_port}", flush=True)
    server.serve_forever(poll_interval=0.05)
    machines.close()
    # It keeps nothing, and moto takes seconds to take its objects apart.
    os._exit(0)


if __name__ == "__main__":
    main()
