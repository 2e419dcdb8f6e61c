"""A caller on the control socket, as itself or as another user of the machine."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from burstd.api.auth import Authorizer
from burstd.runtime.sockets import PeerCredentials

ME = Authorizer("").caller(PeerCredentials(os.geteuid(), os.getegid(), os.getpid())).user
"""Who runs the tests: an administrator, as the server runs in the same process."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer as it came; ``headers`` whatever their case."""

    status: int
    headers: Message
    body: bytes


class ApiTestClient:
    """One connection. ``uid`` other than this process's is taken on by a forked child that connects for us."""

    def __init__(self, path: Path, uid: int | None = None, gid: int | None = None) -> None:
        self._http = HTTPConnection("burstd", timeout=30)
        self._http.sock = _connect(path) if uid is None else connect_as(path, uid, uid if gid is None else gid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def fetch(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> HttpAnswer:
        """What a browser gets; with a body, of a form."""
        form = {} if body is None else {"content-type": "application/x-www-form-urlencoded"}
        self._http.request(method, path, body, {"accept": "text/html", **form, **headers})
        answer = self._http.getresponse()
        return HttpAnswer(answer.status, answer.headers, answer.read())

    def text(self, path: str) -> str:
        """A page that must be a good one."""
        answer = self.fetch("GET", path)
        assert answer.status == 200, answer
        return answer.body.decode()

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and answer."""
        text = None if body is None else json.dumps(body)
        self._http.request(method, path, text, {"content-type": "application/json"} if text else {})
        answer = self._http.getresponse()
        return answer.status, json.loads(answer.read())

    def get(self, path: str) -> Any:
        """An answer that must be a good one."""
        status, answer = self.request("GET", path)
        assert status == 200, answer
        return answer


def _connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(path))
    return sock


def connect_as(path: Path, uid: int, gid: int) -> socket.socket:
    """A connection of another user's: the kernel notes who connects, and whoever holds it later speaks as that user."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            # The folders above may be root's alone, as those of a box are.
            os.chdir(path.parent)
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            sock = _connect(Path(path.name))
            socket.send_fds(there, [b"x"], [sock.fileno()])
        finally:
            os._exit(0)
    there.close()
    _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
    os.waitpid(child, 0)
    here.close()
    assert descriptors, f"uid {uid} could not connect to {path}"
    return socket.socket(fileno=descriptors[0])
