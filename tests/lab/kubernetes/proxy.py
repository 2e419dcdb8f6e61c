"""What is Kubernetes' of the proxy before its API: names of requests, errors as it says them, and a certificate."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.lab import proxy
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
    return proxy.answers(words, status, **headers)


class Proxy(proxy.Proxy):
    """For the API server at this address. ``folder``: where its certificate is kept."""

    def __init__(self, namespace: str, api: Api, folder: Path) -> None:
        certificate, key = _identity()
        both = folder / "proxy.pem"
        both.touch(mode=0o600)
        both.write_bytes(key + certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(both)
        super().__init__(namespace, {"kubernetes": api}, kind, streams=watches, tls=context)
        self.url = self.address(api.url)
        self.authority = base64.b64encode(certificate).decode()
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


def _identity() -> tuple[bytes, bytes]:
    """Certificate, its own authority, for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "proxy of the lab")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    public = key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        x509.CertificateBuilder(name, name, public, x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), secret
