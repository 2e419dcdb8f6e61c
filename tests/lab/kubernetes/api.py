"""The API of a control plane as tests and the lab use it: paths and dicts, certificates verified."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

_TIMEOUT_S = 30.0
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""Forms of a PATCH: https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/"""


class Refused(RuntimeError):
    """The API server said no; ``status`` is HTTP's, ``body`` what it said."""

    def __init__(self, status: int, body: dict[str, Any], asked: str) -> None:
        super().__init__(f"{asked}: {status} {body.get('reason', '')}: {body.get('message', '')}")
        self.status = status
        self.body = body


class Api:
    """Calls with one token. For any thread that reaches the server."""

    def __init__(self, server: str, ca: Path, token: str) -> None:
        self.server = server
        context = ssl.create_default_context(cafile=str(ca))
        headers = {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.Client(
            base_url=server, verify=context, headers=headers, timeout=_TIMEOUT_S, limits=limits, trust_env=False
        )

    def close(self) -> None:
        """Ends its connections."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | list[Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        form: str = "application/json",
    ) -> dict[str, Any]:
        """One call. Raises Refused."""
        content = None if body is None else json.dumps(body)
        answer = self._client.request(
            method, path, content=content, params=query, headers={"Content-Type": form} if content else None
        )
        found: dict[str, Any]
        try:
            found = answer.json()
        except ValueError:
            found = {"message": answer.text}
        if answer.status_code >= 400:
            raise Refused(answer.status_code, found, f"{method} {path}")
        return found

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """One object, or a list. Raises Refused."""
        return self.ask("GET", path, query=query)

    def find(self, path: str) -> dict[str, Any] | None:
        """One object, None where there is none. Raises Refused."""
        try:
            return self.get(path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A new object. Raises Refused."""
        return self.ask("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any], form: str = MERGE) -> dict[str, Any]:
        """Changes one. Raises Refused."""
        return self.ask("PATCH", path, body, form=form)

    def delete(self, path: str, grace_s: int | None = None) -> dict[str, Any]:
        """Deletes one. Raises Refused."""
        return self.ask("DELETE", path, None if grace_s is None else {"gracePeriodSeconds": grace_s})

    def events(
        self, path: str, version: str, opened: Callable[[httpx.Response], None], **query: str
    ) -> Iterator[dict[str, Any]]:
        """What a watch says from a version on, until it ends; ``opened`` gets its stream. Raises httpx.HTTPError."""
        words = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", **query}
        timeout = httpx.Timeout(_TIMEOUT_S, read=None)
        with self._client.stream("GET", path, params=words, timeout=timeout) as stream:
            opened(stream)
            for line in stream.raise_for_status().iter_lines():
                yield json.loads(line)


def shut(stream: httpx.Response) -> None:
    """Ends a stream that another thread reads."""
    with suppress(OSError):
        # TLS's own would have the reader take what is still under way for plain text.
        socket.socket.shutdown(stream.extensions["network_stream"].get_extra_info("socket"), socket.SHUT_RDWR)
