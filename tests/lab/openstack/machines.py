"""Boxes behind nova's servers: what drivers/burstd_virt.py speaks to, on a unix socket.

A box boots from the config drive that nova made for its server, and nothing else.
https://docs.openstack.org/nova/latest/user/config-drive.html
"""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from providers.sandbox.boxes.boot.description import BoxFile
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.lab import Lab
from tests.lab.boxes import Boxes, ip

_DRIVE = "/var/lib/cloud/seed/config_drive"
"""Where cloud-init looks for a config drive before it looks at disks."""
_SOURCES = BoxFile("/etc/cloud/cloud.cfg.d/90_config_drive.cfg", json.dumps({"datasource_list": ["ConfigDrive"]}))


class Machines:
    """Serves at ``socket`` while it is entered."""

    def __init__(self, lab: Lab, layers: Sequence[Path], socket: Path) -> None:
        self._lab = lab
        self._boxes = Boxes(lab, layers)
        machines = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = machines.do(json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(socket), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="machines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._boxes.close()

    def do(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        try:
            match words["do"]:
                case "spawn":
                    self._spawn(words)
                case "destroy":
                    self._boxes.end(words["uuid"])
                case "console":
                    return {"ok": True, "text": self._boxes.console(words["uuid"])}
                case other:
                    return {"error": f"{other} is nothing to do"}
        except (SandboxError, OSError) as error:
            return {"error": str(error)}
        return {"ok": True}

    def _spawn(self, words: Mapping[str, Any]) -> None:
        # Not its part on the network: the lab has set that up already, with addresses of its own for Ethernet.
        drive = {path: base64.b64decode(text) for path, text in words["drive"].items() if "network_data" not in path}
        described = json.loads(drive["openstack/latest/meta_data.json"])
        self._boxes.start(
            words["uuid"],
            words["address"],
            (),
            hostname=described["hostname"],
            gpus=words["gpus"],
            # All that there is for cloud-init is on the drive.
            user_data="",
            files=[_SOURCES, *(BoxFile(f"{_DRIVE}/{path}", data, 0o600) for path, data in drive.items())],
        )
        # No router stands between the lab's two networks: the machine itself answers at its floating address.
        for address in words["floating"]:
            ip("-n", self._lab.network.host_namespace(words["uuid"]), "addr", "add", f"{address}/32", "dev", "eth0")
