"""The cloud by HTTPS, with Microsoft Entra ID's tokens: ``with AzureServer(cloud, folder) as server: ...``."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography import x509

from tests.lab.azure.answers import Answer
from tests.lab.azure.cloud import AzureCloud
from tests.lab.kubernetes.certificates import Authority

TENANT = "7e4a4700-0000-4000-8000-0123456789ab"


class Login:
    """Gives tokens to the clients that it knows: service principals by secret or certificate, and machines."""

    def __init__(self, cloud: AzureCloud) -> None:
        self._cloud = cloud
        self.url = ""
        self.secrets: dict[str, str] = {}
        self.certificates: dict[str, bytes] = {}
        self.identity = ""
        """The client that the head's machine is."""
        self.down = 0
        """How many of the next requests for a token find it down."""
        self.given = 0

    def go_down(self) -> None:
        """The next request for a token is not answered."""
        self.down = 1

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """One request below the tenant, or to the metadata service of the head's machine."""
        url = urlsplit(path)
        if url.path == "/metadata/identity/oauth2/token":
            assert headers.get("metadata") == "true"
            if not self.identity:
                return Answer(400, {"error": "invalid_request", "error_description": "Identity not found"})
            return self._token(self.identity, str(parse_qs(url.query)["resource"][0]))
        if TENANT not in url.path:
            return Answer(400, {"error": "invalid_tenant", "error_description": "AADSTS90002: Tenant not found."})
        base = f"{self.url}/{TENANT}"
        oauth = f"{base}/oauth2/v2.0"
        if url.path.endswith("/.well-known/openid-configuration"):
            places = {"token_endpoint": f"{oauth}/token", "authorization_endpoint": f"{oauth}/authorize"}
            return Answer(200, {**places, "issuer": f"{base}/v2.0"})
        assert (method, url.path) == ("POST", f"/{TENANT}/oauth2/v2.0/token"), path
        if self.down:
            self.down -= 1
            return Answer(503, "Service Unavailable")
        words = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        client = words.get("client_id", "")
        if "client_assertion" in words and client in self.certificates:
            key: Any = x509.load_pem_x509_certificate(self.certificates[client]).public_key()
            try:
                jwt.decode(words["client_assertion"], key, ["PS256", "RS256", "ES256"], audience=f"{oauth}/token")
            except jwt.InvalidTokenError as error:
                return self._refused("AADSTS700027", f"The certificate is not registered: {error}")
        elif not words.get("client_secret") or words["client_secret"] != self.secrets.get(client):
            return self._refused("AADSTS7000215", "Invalid client secret provided.")
        return self._token(client, words["scope"])

    def _refused(self, code: str, text: str) -> Answer:
        return Answer(401, {"error": "invalid_client", "error_description": f"{code}: {text} Trace ID: 1"})

    def _token(self, client: str, scope: str) -> Answer:
        assert scope.removesuffix("/.default") == self.url, f"a token is asked for {scope}"
        token = secrets.token_urlsafe(24)
        self._cloud.tokens[token] = client
        self.given += 1
        return Answer(200, {"token_type": "Bearer", "expires_in": 3599, "access_token": token, "resource": self.url})


class AzureServer:
    """At ``host``, from ``start`` to ``stop``; its certificate is made in ``folder``."""

    def __init__(self, cloud: AzureCloud, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.cloud, self.login = cloud, Login(cloud)
        authority = Authority(folder)
        pair = authority.pair("azure", hosts=[host])
        self.ca_file = authority.cert
        server = self

        class Handler(_Handler):
            owner = server

        self._server = _Server((host, port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        number = self._server.server_address[1]
        self.url = f"https://{host}" + (f":{number}" if number != 443 else "")
        cloud.url = self.login.url = self.url
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="azure", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever does not trust us hangs up; all else is for the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    owner: AzureServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        path = urlsplit(self.path).path
        if "/v2.0/" in path or path.startswith("/metadata/"):
            answer = self.owner.login.answer(self.command, self.path, headers, body)
        else:
            answer = self.owner.cloud.answer_request(self.command, self.path, headers, body)
        if answer.cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        text = answer.body if isinstance(answer.body, str) else "" if answer.body is None else json.dumps(answer.body)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/plain" if isinstance(answer.body, str) else "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def __getattr__(self, name: str) -> Any:
        """``do_GET`` and all others are one."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
        """Nobody reads it."""
