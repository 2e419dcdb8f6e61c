"""burstctl web: the pages on a port of 127.0.0.1, as the user who runs it, until it ends."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import socketserver
import sys
import threading
from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote

import typer

from burstd.cli.commands.ports import HOST, peer_is_same_user, sudo_uid, warn
from burstd.cli.plain_text import print_json_line
from burstd.cli.session import REQUEST_TIMEOUT_S, ApiClient, DaemonUnreachable, ExitCode, with_client
from burstd.domain.cloud.read_limits import read_bounded

MAX_CONNECTIONS = 32
"""A browser has six; the daemon lets one user have about fifty."""
MAX_BODY_BYTES = 1 << 16
_MAX_PAGE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 16
_IDLE_S = 60.0
_RETRY_S = 3
"""After this time a browser asks again for a page that could not be had."""
_API = "/v1"
_TO_DAEMON = (
    "accept", "accept-encoding", "accept-language", "content-type", "host", "if-none-match", "origin", "sec-fetch-site",
)  # fmt: skip
_NOT_TO_BROWSER = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})
_HEADERS = MappingProxyType({
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
})  # fmt: skip
"""Of answers that are not the daemon's."""


@with_client
def web(
    burstd: ApiClient,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 here; 0: any free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Show burstd's pages to your browser, until Ctrl-C.

    The printed address works once. Only your own processes on this host are let through, with sudo too. From another
    machine: ssh -t -L 8080:127.0.0.1:8080 HEAD burstctl web --port 8080
    """
    try:
        burstd.request_status("GET", "/status")
    except DaemonUnreachable as error:
        burstd.fail(ExitCode.UNREACHABLE, str(error))
    try:
        server = PageServer(burstd, port)
    except OSError as error:
        burstd.fail(ExitCode.NEGATIVE, f"Port {port} of {HOST} cannot be used here: {os.strerror(error.errno or 0)}.")
    with server:
        if burstd.json:
            print_json_line({"host": HOST, "port": server.port, "url": server.url})
        else:
            typer.echo(
                f"{server.url}\nThe address works once, and the pages end with Ctrl-C. Where the browser is on another "
                f"machine, run there first: ssh -N -L {server.port}:{HOST}:{server.port} {socket.gethostname()}"
            )
        sys.stdout.flush()
        if not no_browser and sys.stdout.isatty() and _has_screen():
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _has_screen() -> bool:
    """Whether a browser here would be on the user's own screen, and be his: by sudo it would be root's."""
    here = "SSH_CONNECTION" not in os.environ and sudo_uid() is None
    return here and bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


class PageServer(socketserver.ThreadingTCPServer):
    """Takes connections of the user's own processes; knows the token of the address and the cookie that replaces it."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, burstd: ApiClient, port: int) -> None:
        """Raises OSError where the port cannot be used."""
        super().__init__((HOST, port), PageHandler)
        self.burstd = burstd
        self.port: int = self.server_address[1]
        self.hosts = frozenset({f"{HOST}:{self.port}", f"localhost:{self.port}"})
        self.cookie_name = f"burstd-{self.port}"
        """Cookies are shared by all ports of a host."""
        self.cookie = secrets.token_urlsafe(32)
        self._token = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @property
    def url(self) -> str:
        """With the token."""
        return f"http://{HOST}:{self.port}/?token={self._token}"

    def use_token(self, token: str) -> bool:
        """Whether it is the address's token, used for the first time."""
        with self._lock:
            if not self._token or not hmac.compare_digest(self._token.encode(), token.encode(errors="replace")):
                return False
            self._token = ""
            return True

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Lets this user's processes through, and those of who ran sudo: they need the address's token too."""
        if peer_is_same_user(request, client_address, sudo_uid()):
            return True
        warn("a connection was not let through: no process of yours has its other end.")
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for the connection, if there are not too many."""
        if not self._free.acquire(blocking=False):
            warn(f"a connection was not let through: there are {MAX_CONNECTIONS} already.")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The whole of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no fault."""
        del request, client_address
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            warn(f"a request failed: {error!r}")


class PageHandler(BaseHTTPRequestHandler):
    """One connection of a browser: checks each request and passes it on to the daemon."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    disable_nagle_algorithm = True
    server: PageServer

    def do_GET(self) -> None:
        """A page."""
        if self._is_for_this_server() and not self._signs_in() and self._has_cookie():
            self._pass_on(None)

    def do_POST(self) -> None:
        """A form. Its own token is the daemon's to check."""
        if not self._is_for_this_server() or not self._has_cookie():
            return
        # Browsers that send neither are older than 2020.
        site, origin = self.headers.get("sec-fetch-site"), self.headers.get("origin")
        if not (site == "same-origin" if site else origin == f"http://{self.headers['host']}"):
            self.send_error(403, "The form was refused: another site's page sent it")
            return
        length = self.headers.get("content-length", "")
        if "transfer-encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self.send_error(411, "A form must have a length")
        elif int(length[:9]) > MAX_BODY_BYTES:
            self.send_error(413, f"A form may have {MAX_BODY_BYTES} bytes")
        else:
            self._pass_on(self.rfile.read(int(length)))

    def _is_for_this_server(self) -> bool:
        """Another name in Host is a site that has its name resolved to this address."""
        hosts = self.headers.get_all("host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            self.send_error(403, f"The request is for {', '.join(hosts)[:100]!r}, not for this address")
            return False
        if not self.path.startswith("/") or not (self.path.isascii() and self.path.isprintable()):
            self.send_error(400, "The address is not understood")
            return False
        # As the daemon reads it.
        path = unquote(self.path.partition("?")[0])
        if path == _API or path.startswith(f"{_API}/"):
            self.send_error(404, "Only pages are answered here")
            return False
        return True

    def _is_signed_in(self) -> bool:
        expected = f"{self.server.cookie_name}={self.server.cookie}".encode()
        given = [one.strip() for line in self.headers.get_all("cookie", []) for one in line.split(";")]
        return any([hmac.compare_digest(expected, one.encode(errors="replace")) for one in given])  # noqa: C419 - as long if the first is it

    def _has_cookie(self) -> bool:
        if self._is_signed_in():
            return True
        self.send_error(403, "Open the address that burstctl web printed; where it was used, start burstctl web again")
        return False

    def _signs_in(self) -> bool:
        """Whether this was the printed address, which is answered here."""
        path, _, query = self.path.partition("?")
        if path != "/" or not query.startswith("token="):
            return False
        tokens = parse_qs(query, max_num_fields=4).get("token", [""])
        headers = {"location": "/"}
        if not self._is_signed_in():
            if not self.server.use_token(tokens[0]):
                self.send_error(403, "This address was used, or is not of this burstctl web; start it again")
                return True
            cookie = f"{self.server.cookie_name}={self.server.cookie}"
            headers["set-cookie"] = f"{cookie}; HttpOnly; SameSite=Strict; Path=/"
        self._answer(303, headers, b"")
        return True

    def _pass_on(self, body: bytes | None) -> None:
        headers = {name: value for name in _TO_DAEMON if (value := self.headers.get(name)) is not None}
        connection = HTTPConnection("burstd", timeout=REQUEST_TIMEOUT_S)
        try:
            connection.sock = self.server.burstd.connect(REQUEST_TIMEOUT_S)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            page = read_bounded(iter(lambda: answer.read1(_PIECE_BYTES), b""), _MAX_PAGE_BYTES, REQUEST_TIMEOUT_S)
        except (DaemonUnreachable, OSError, HTTPException, ValueError) as error:
            self._say_unreachable(error)
            return
        finally:
            connection.close()
        self._answer(answer.status, {n: v for n, v in answer.getheaders() if n.lower() not in _NOT_TO_BROWSER}, page)

    def _say_unreachable(self, error: Exception) -> None:
        why = str(error).splitlines()[0] if isinstance(error, DaemonUnreachable) else "it closed the connection"
        again = f"This page tries again every {_RETRY_S} seconds." if self.command == "GET" else "Load the page again."
        text = f"burstd does not answer: {why.rstrip('.')}. {again}"
        page = f'<!DOCTYPE html>\n<html lang="en"><title>burstd does not answer</title><p>{escape(text)}</p></html>\n'
        headers = {**_HEADERS, "content-type": "text/html; charset=utf-8"}
        if self.command == "GET":
            headers["refresh"] = str(_RETRY_S)
        self._answer(503, headers, page.encode(errors="replace"))

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("connection", "close")
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if status != HTTPStatus.NOT_MODIFIED:
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A refusal, in one sentence here and there; the connection ends, as more of a request may come."""
        del explain
        text = message or HTTPStatus(code).phrase
        warn(f"a request was refused ({code}): {text}.")
        self.close_connection = True
        headers = {**_HEADERS, "content-type": "text/plain; charset=utf-8"}
        self._answer(code, headers, f"{text}.\n".encode(errors="replace"))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called above
        """Nothing of requests that are answered."""
