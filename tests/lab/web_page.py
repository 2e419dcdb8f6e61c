"""burstctl web on the head of a lab, at the same port of 127.0.0.1 here, as ``ssh -L`` has it at a desk."""

from __future__ import annotations

import json
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab import programs
from tests.lab.base_site import BaseSite

_PYTHON = f"{programs.PREFIX}/bin/python"
_RELAY = """
import socket, sys, threading
def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # One of them has gone, as browsers do.
here, there = socket.socket(fileno=0), socket.create_connection(("127.0.0.1", int(sys.argv[1])))
back = threading.Thread(target=copy, args=(there, here))
back.start()
copy(here, there)
back.join()
"""
"""Its standard input is the browser's connection."""


@contextmanager
def web_page(site: BaseSite, user: str) -> Iterator[str]:
    """The address that burstctl web prints to this user of the head; it is good once, for a browser on this machine."""
    head = site.cluster.head

    class Relay(socketserver.BaseRequestHandler):
        """One connection, carried by a process of the user's: others are not let through."""

        def handle(self) -> None:
            head.popen([_PYTHON, "-c", _RELAY, port], user=user, stdin=self.request.fileno()).wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        port = str(server.server_address[1])
        server.daemon_threads = True
        words = [f"{programs.PREFIX}/bin/burstctl", "--json", "web", "--no-browser", "--port"]
        with head.popen([*words, port], user=user, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                answer = process.stdout.readline()
                assert answer, "burstctl web ended"
                threading.Thread(target=server.serve_forever, daemon=True).start()
                yield json.loads(answer)["url"]
                server.shutdown()
            finally:
                process.kill()
