"""Google's servers on one port: Compute Engine, prices, rights, tokens, the metadata of a machine of Google's.

Whatever goes in or out passes ``schema``; what does not is kept in ``violations`` and fails the test.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

import google.auth.jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.lab.google.api import Api, Call, RefusalError
from tests.lab.google.cloud import Machines, Project
from tests.lab.google.schema import Method, SchemaViolation, masked, methods

Answer = tuple[int, Any, Mapping[str, str]]
_AUDIENCE = "https://oauth2.googleapis.com/token"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class CutError(Exception):
    """The connection ends without an answer."""


@dataclass(slots=True)
class Fault:
    """What the next ``times`` calls of ``method`` meet: a refusal, or ``lost`` after the act, or another answer."""

    method: str
    refusal: RefusalError | None = None
    lost: bool = False
    edit: Callable[[Any], None] | None = None
    """Changes the answer."""
    times: int = 1


@dataclass(slots=True)
class Account:
    """A service account, with the rights of its role in the project."""

    email: str
    rights: frozenset[str]
    tokens: set[str] = field(default_factory=set)


class GoogleServer:
    """Serves one project. ``clock`` in seconds since 1970: of instances and operations, and of the Date header."""

    def __init__(
        self,
        project: str,
        clock: Callable[[], float] = time.time,
        machines: Machines | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        key: rsa.RSAPrivateKey | None = None,
    ) -> None:
        self.clock = clock
        self.project = Project(project, clock, machines)
        self.api = Api(self.project)
        self.calls: Counter[str] = Counter()
        self.queries: deque[tuple[str, dict[str, str]]] = deque(maxlen=200)
        self.faults: list[Fault] = []
        self.violations: list[str] = []
        self.accounts: dict[str, Account] = {}
        self.head: Account | None = None
        """Whose tokens the metadata service gives."""
        self._key = key or rsa.generate_private_key(65537, 2048)
        self._lock = threading.Lock()
        server = self

        class Handler(_Handler):
            google = server

        self._http = ThreadingHTTPServer(listen, Handler)
        self._http.daemon_threads = True
        self.url = f"http://{listen[0]}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="google", daemon=True)
        self._thread.start()

    def account(self, name: str, rights: frozenset[str]) -> tuple[Account, str]:
        """Makes one; with its key file's text."""
        email = f"{name}@{self.project.name}.iam.gserviceaccount.com"
        made = self.accounts[email] = Account(email, rights)
        private = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        said = {
            "type": "service_account", "project_id": self.project.name, "private_key_id": "k1", "private_key": private,
            "client_email": email, "client_id": "1", "token_uri": f"{self.url}/token",
        }  # fmt: skip
        return made, json.dumps(said)

    def expire_tokens(self) -> None:
        """Those that were given are of no use any more."""
        for one in self.accounts.values():
            one.tokens.clear()

    def close(self) -> None:
        """Answers nobody any more."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, verb: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Status, JSON and headers. Raises CutError."""
        url = urlsplit(target)
        if url.path == "/token":
            return self._token(body)
        if url.path == "/" or url.path.startswith("/computeMetadata/"):
            return self._metadata(url.path, headers)
        with self._lock:
            try:
                return 200, self._call(verb, url.path, dict(parse_qsl(url.query)), headers, body), {}
            except RefusalError as refused:
                return refused.status, refused.body(), refused.headers
            except SchemaViolation as violation:
                self.violations.append(str(violation))
                return 400, RefusalError(400, "invalid", str(violation)).body(), {}

    def _call(self, verb: str, path: str, query: dict[str, str], headers: Mapping[str, str], body: bytes) -> Any:
        method, words = _route(verb, path)
        self.calls[method.id] += 1
        self.queries.append((method.id, query))
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        who = next((one for one in self.accounts.values() if token in one.tokens), None)
        if who is None:
            raise RefusalError(401, "authError", "Request had invalid authentication credentials.")
        method.check_query(query)
        said = json.loads(body) if body else None
        method.check_request(said)
        fault = self._fault(method.id)
        if fault is not None and fault.refusal is not None:
            raise fault.refusal
        answer = self.api.call(method.id, Call(words, query, said), who.rights)
        if fault is not None and fault.edit is not None:
            fault.edit(answer)
        method.check_answer(answer)
        if fault is not None and fault.lost:
            raise CutError
        return masked(answer, query.get("fields", ""))

    def _fault(self, method: str) -> Fault | None:
        found = next((one for one in self.faults if one.method == method), None)
        if found is not None:
            found.times -= 1
            if not found.times:
                self.faults.remove(found)
        return found

    def _token(self, body: bytes) -> Answer:
        """https://developers.google.com/identity/protocols/oauth2/service-account#httprest"""
        said = parse_qs(body.decode())
        public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        try:
            claims = google.auth.jwt.decode(  # type: ignore[no-untyped-call, unused-ignore]
                said["assertion"][0], certs=public, audience=_AUDIENCE
            )
        except ValueError as error:
            return 400, {"error": "invalid_grant", "error_description": str(error)}, {}
        assert said["grant_type"] == [_GRANT]
        who = self.accounts.get(claims["iss"])
        if who is None:
            return 400, {"error": "invalid_grant", "error_description": "Invalid grant: account not found"}, {}
        return 200, self._grant(who), {}

    def _metadata(self, path: str, headers: Mapping[str, str]) -> Answer:
        flavor = {"Metadata-Flavor": "Google"}
        if headers.get("Metadata-Flavor") != "Google" or self.head is None:
            return 403, {}, flavor
        if path.endswith("/token"):
            return 200, self._grant(self.head), flavor
        return 200, {"email": self.head.email, "scopes": [], "aliases": ["default"]}, flavor

    @staticmethod
    def _grant(who: Account) -> Any:
        token = secrets.token_urlsafe(24)
        who.tokens.add(token)
        return {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}


def _route(verb: str, path: str) -> tuple[Method, dict[str, str]]:
    for method in methods():
        found = method.path.fullmatch(path)
        if found is not None and method.verb == verb:
            words = {name: unquote(value) for name, value in found.groupdict().items()}
            return method, words
    raise SchemaViolation(f"Google has no {verb} {path}")


class _Handler(BaseHTTPRequestHandler):
    google: GoogleServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        headers = {name.title(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            status, said, more = self.google.answer(self.command, self.path, headers, body)
        except CutError:
            self.close_connection = True
            return
        except Exception as error:
            self.google.violations.append(repr(error))
            raise
        data = json.dumps(said).encode()
        self.send_response_only(status)
        self.send_header("Date", formatdate(self.google.clock(), usegmt=True))
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - as the base class finds them

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
        """Nobody reads it."""
