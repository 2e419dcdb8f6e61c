"""What is Kubernetes' of the proxy before its API: names of requests, errors as it says them, and a certificate."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.lab import proxy
from tests.lab.kubernetes.certificates import Authority
from tests.lab.proxy import Act, Api, Asked

_REASONS = {
    401: "Unauthorized", 403: "Forbidden", 409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


def kind(asked: Asked) -> str:
    """Method (WATCH for one) and path without API, version and namespace, NAME for names: ``DELETE pods/NAME``."""
    parts = urlsplit(asked.target)
    words = [word for word in parts.path.split("/") if word]
    if words[:1] in (["api"], ["apis"]) and len(words) > 2:
        words = words[2:] if words[0] == "api" else words[3:]
        words = words[2:] if words[0] == "namespaces" and len(words) > 2 else words
        words[1:2] = ["NAME"] * bool(words[1:2])
    return f"{'WATCH' if watches(asked) else asked.method} {'/'.join(words)}"


def watches(asked: Asked) -> bool:
    """Whether the answer is a stream of events."""
    return asked.method == "GET" and parse_qs(urlsplit(asked.target).query).get("watch", [""])[0] in ("1", "true")


def says(status: int, message: str = "", **headers: str) -> Act:
    """It is not passed on. An error as the API server says them."""
    words = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": _REASONS[status], "code": status,
    }  # fmt: skip
    return proxy.respond(words, status, **headers)


class Proxy(proxy.Proxy):
    """For the API server at this address. ``folder``: where its certificates are kept."""

    def __init__(self, namespace: str, api: Api, folder: Path) -> None:
        authority = Authority(folder / "proxy")
        own = authority.pair("proxy", hosts=["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.cert, own.key)
        super().__init__(namespace, {"kubernetes": api}, kind, streams=watches, tls=context)
        self.url = self.address(api.url)
        self.authority = base64.b64encode(authority.cert.read_bytes()).decode()
        """As a kubeconfig has it (``certificate-authority-data``)."""

    def kubeconfig(self, namespace: str, user: dict[str, Any]) -> dict[str, Any]:
        """For one user: as a kubeconfig says who that is."""
        cluster = {"server": self.url, "certificate-authority-data": self.authority}
        context = {"cluster": "lab", "user": "burst", "namespace": namespace}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "burst", "user": user}],
            "contexts": [{"name": "lab", "context": context}],
        }  # fmt: skip
