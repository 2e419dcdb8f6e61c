"""The metadata of Google's machines, as far as burstd's script on them asks: whether the Spot VM is taken back.

https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = "169.254.169.254"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Metadata:
    """Serves from ``listen`` until ``close``; a machine is known by the address that it asks from."""

    def __init__(self, listen: tuple[str, int] = (ADDRESS, 80)) -> None:
        self.preempted: set[str] = set()
        """Addresses of those that are taken back."""
        self.asked = 0
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                metadata.asked += 1
                status, text = HTTPStatus.OK, b"TRUE" if self.client_address[0] in metadata.preempted else b"FALSE"
                if self.headers.get("Metadata-Flavor") != "Google":
                    status, text = HTTPStatus.FORBIDDEN, b""
                elif self.path != PREEMPTED:
                    status, text = HTTPStatus.NOT_FOUND, b""
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(listen, Handler)
        self._server.daemon_threads = True
        self.url = f"http://{listen[0]}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metadata", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answers nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
