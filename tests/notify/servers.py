"""A mail server and an HTTP server on 127.0.0.1, each with faults to order."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Inbox:
    """What came, and what the server answers: the next of ``faults``, then 250 or 200; 0: it hangs until ``freed``."""

    port: int = 0
    faults: list[int] = field(default_factory=list)
    mails: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    calls: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    freed: threading.Event = field(default_factory=threading.Event)
    raw: list[bytes] = field(default_factory=list)

    def fault(self) -> int:
        return self.faults.pop(0) if self.faults else 200


@contextmanager
def mail_server() -> Iterator[Inbox]:
    """SMTP as far as smtplib asks for it (RFC 5321)."""
    inbox = Inbox()

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            fault = inbox.fault()
            if fault == 0:
                inbox.freed.wait()
                return
            recipients: list[str] = []
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                word = line.decode().strip().upper()
                if word.startswith(("EHLO", "HELO")):
                    self.wfile.write(b"250 here\r\n")
                elif word.startswith("RCPT"):
                    if fault != 200:
                        self.wfile.write(f"{fault} no such user\r\n".encode())
                        continue
                    recipients.append(line.decode().partition(":")[2].strip().strip("<>"))
                    self.wfile.write(b"250 ok\r\n")
                elif word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    data = b""
                    while (part := self.rfile.readline()) != b".\r\n":
                        data += part
                    inbox.raw.append(data)
                    mail = message_from_bytes(data, policy=policy.default)
                    assert isinstance(mail, EmailMessage)
                    inbox.mails.append((recipients, mail))
                    self.wfile.write(b"250 taken\r\n")
                elif word == "QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                else:
                    self.wfile.write(b"250 ok\r\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with _serving(Server(("127.0.0.1", 0), Session), inbox):
        yield inbox


@contextmanager
def web_server() -> Iterator[Inbox]:
    """Takes JSON by POST and PUT."""
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            fault = inbox.fault()
            if fault == 0:
                inbox.freed.wait()
                return
            inbox.calls.append((self.command, self.path, dict(self.headers), json.loads(body)))
            self.send_response(fault)
            self.end_headers()

        do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler), inbox):
        yield inbox


@contextmanager
def _serving(server: socketserver.TCPServer, inbox: Inbox) -> Iterator[None]:
    inbox.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        inbox.freed.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
