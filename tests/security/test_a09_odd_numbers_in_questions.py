"""Numbers that are none, or beyond all that is counted, are the caller's mistake: a no of one line, no traceback."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from fastapi import FastAPI

from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer
from burstd.api.dependencies import ApiError
from burstd.api.job_connections.ports import requested_port
from burstd.api.job_connections.server import read_request
from burstd.runtime.logs import MAX_LINES, WINDOW_S, TracebackLimit, set_up
from tests.api.client import ApiTestClient
from tests.api.fake_backend import FakeBackend, sample_database, serving_api
from tests.api.world import JOBS

ODD = ("nan", "inf", "-inf", "1e300", str(10**20), "-1", "1" * 5000)
ODD_JSON = ("NaN", "Infinity", "-Infinity", "1e300", str(10**20), "-1", "1" * 5000)
ODD_TEXT = ("nan_1", "1e300_1", "-1_1", "1" * 5000, "%00", "%ed%a0%80", "%1b%5b31m", "..%2f..", "[1-99999999]")
PATHS = {"pool": "gpu", "job_id": JOBS[0].id, "name": "sandbox", "what": "record", "month": "2026-10"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/pools/{pool}/pin": {"nodes": 1, "kind": "exact", "for_s": 60.0},
    "/v1/jobs/{job_id}/routes": {"port": 8888, "node": ""},
    "/v1/nodes/hold": {"nodes": ["gpu1"], "reason": "x"},
    "/v1/nodes/release": {"nodes": ["gpu1"], "reason": "x"},
    "/v1/hold": {"reason": "x"},
    "/v1/providers/{name}/forget": {"zone": "north", "instance_type": "g4"},
    "/v1/reference": {"node": "op1", "answer": "cpus=2"},
    "/v1/stage/evict": {"kind": "dataset", "name": "x"},
    "/v1/quote": {"jobs": [{"partitions": ["burst"]}]},
    "POST /v1/projects/{name}": {"values": {"quota": 2}},
    "PUT /v1/projects/{name}": {"values": {"quota": 2}},
    "DELETE /v1/projects/{name}": {},
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ApiTestClient, FakeBackend]]:
    with sample_database() as record, serving_api(record) as (backend, path), ApiTestClient(path) as client:
        yield client, backend


def numeric(schema: dict[str, Any]) -> bool:
    return any(one.get("type") in ("number", "integer") for one in (schema, *schema.get("anyOf", ())))


def operations(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Method, path, description and the body's properties of every route."""
    said = app.openapi()
    for path, methods in said["paths"].items():
        for method, about in methods.items():
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            name = body.get("$ref", "").rpartition("/")[2]
            yield method.upper(), path, about, said["components"]["schemas"][name]["properties"] if name else {}


def raw(client: ApiTestClient, method: str, path: str, text: str | None = None) -> int:
    client._http.request(method, path, text, {"content-type": "application/json"} if text else {})
    answer = client._http.getresponse()
    answer.read()
    return answer.status


@pytest.mark.slow
def test_every_parameter_of_every_route(served: tuple[ApiTestClient, FakeBackend]) -> None:
    client, backend = served
    tried, wrong = set(), []

    def note(status: int, numbers: bool, *what: str) -> None:
        tried.add(what[:3])
        if status >= 500 or (numbers and status < 400):
            wrong.append((status, *what))

    for method, path, about, fields in operations(create_api_app(backend, Authorizer(""))):
        good = path.format(**PATHS)
        body = BODIES.get(path, BODIES.get(f"{method} {path}")) if fields else None
        assert not fields or body is not None, f"write down a body for {method} {path}"
        text = None if body is None else json.dumps(body)
        for parameter in about.get("parameters", ()):
            name, numbers = parameter["name"], numeric(parameter["schema"])
            for odd in ODD if numbers else ODD_TEXT:
                if parameter["in"] == "path":
                    odd_path = path.format(**{**PATHS, name: odd})
                    note(raw(client, method, odd_path, text), numbers, method, path, name, odd[:30])
                elif name in ("after", "since", "limit") and path == "/v1/events":
                    whole = f"{good}?job={quote(JOBS[0].id)}&{name}={odd}"
                    note(raw(client, method, whole, text), numbers, method, path, name, odd[:30])
                else:
                    note(raw(client, method, f"{good}?all=1&{name}={odd}", text), numbers, method, path, name, odd[:30])
        for name, schema in fields.items():
            odds = ODD_JSON if numeric(schema) else ('"\\ud800"', '["\\ud800", "[1-99999999]"]', '"\\u0000"')
            for odd in odds:
                sent = json.dumps({**(body or {}), name: 13579}).replace("13579", odd)
                note(raw(client, method, good, sent), numeric(schema), method, path, name, odd[:30])
    assert not wrong
    assert {
        ("GET", "/v1/bill", "since"),
        ("GET", "/v1/events", "after"),
        ("PUT", "/v1/pools/{pool}/pin", "for_s"),
    } <= tried


@pytest.mark.parametrize("line", [f'"port": {odd}' for odd in ODD_JSON] + ['"port": "8888"', "[" * 4000])
def test_the_socket_for_ports(line: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(f'{{"job": "1", {line}}}\n'.encode())
        ours.settimeout(5)
        with pytest.raises(ApiError) as caught:
            requested_port(read_request(ours))
    assert caught.value.status == 422
    assert len(caught.value.text) < 200


def test_one_traceback_of_a_kind(served: tuple[ApiTestClient, FakeBackend]) -> None:
    client, backend = served
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    out = io.StringIO()

    def broken(_: object) -> Any:
        raise ZeroDivisionError

    try:
        set_up(stream=out, environ={})
        backend.answer = broken
        for _ in range(3 * MAX_LINES):
            assert client.request("POST", "/v1/reload")[0] == 500
    finally:
        backend.reset()
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
    text = out.getvalue()
    assert text.count("Traceback (most recent call last)") == 1
    assert text.count("a request failed unexpectedly") == MAX_LINES
    assert "request='POST /v1/reload'" in text


def test_another_traceback_after_a_while() -> None:
    now = 0.0
    processor = TracebackLimit(lambda: now)

    def said(kind: type[Exception]) -> bool:
        return "exc_info" in processor(None, "", {"event": "x", "exc_info": kind("x")})

    assert [said(KeyError), said(KeyError), said(ValueError)] == [True, False, True]
    now = WINDOW_S
    assert said(KeyError)
