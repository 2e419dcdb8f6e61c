"""The lab's hand on a cloud server: starts it in the background, orders faults, counts calls. By its unix socket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.cloud import wire
from providers.sandbox.cloud.faults import SandboxFault
from providers.sandbox.cloud.settings import ServerSettings

_POLL_S = 0.05
# Servers that this process started, to be reaped when they end.
_servers: dict[Path, subprocess.Popen[bytes]] = {}


class CloudServerClient:
    """A client of one lab's server. Calls raise httpx.HTTPError where it does not answer, or refuses."""

    def __init__(self, state: Path, timeout_s: float = 30.0) -> None:
        # A unix socket has no TLS, and reading this machine's certificates takes longer than the call.
        transport = httpx.HTTPTransport(uds=str(state / "cloud.sock"), verify=False)
        self._http = httpx.Client(base_url="http://cloud/v1", transport=transport, timeout=timeout_s)

    def _call(self, method: str, path: str, **parts: Any) -> httpx.Response:
        answer = self._http.request(method, path, **parts)
        answer.raise_for_status()
        return answer

    def ready(self) -> bool:
        """Whether the server answers."""
        try:
            self._call("GET", "/ready")
        except httpx.HTTPError:
            return False
        return True

    def inject_fault(self, fault: SandboxFault) -> str:
        """Orders a fault; returns its id."""
        body = wire.FaultBody.model_validate(fault, from_attributes=True)
        return wire.FaultBody.model_validate(self._call("PUT", "/faults", json=body.model_dump(mode="json")).json()).id

    def cancel_fault(self, fault_id: str | None = None) -> None:
        """Takes one order back, or all."""
        self._call("DELETE", "/faults", params={} if fault_id is None else {"fault": fault_id})

    def instances(self) -> list[wire.InstanceView]:
        """The first 1000 instances that are shown."""
        answer = self._call("GET", "/instances", params={"limit": 1000}).json()
        return wire.PageView[wire.InstanceView].model_validate(answer).items

    def interrupt(self, instance_id: str, notice_s: float = 0.0) -> None:
        """Takes a spot instance back, ``notice_s`` seconds from now."""
        self._call("POST", f"/instances/{instance_id}/interrupt", params={"notice_seconds": notice_s})

    def recommend_rebalance(self, instance_id: str) -> None:
        """Says of an instance that it may be taken back soon."""
        self._call("POST", f"/instances/{instance_id}/hint")

    def calls(self) -> wire.CallsView:
        """Calls since the cloud was made."""
        return wire.CallsView.model_validate(self._call("GET", "/calls").json())

    def bill(self) -> wire.BillView:
        """What everything has cost so far."""
        return wire.BillView.model_validate(self._call("GET", "/bill").json())

    def close(self) -> None:
        """Gives the connection back."""
        self._http.close()


def start_server(config: Path, timeout_s: float = 300.0) -> None:
    """Starts the cloud server of a configuration in the background and returns when it answers.

    It may build a root file system first, hence the long time. Its output goes to ``cloud.log`` in the state
    directory. Raises SandboxError.
    """
    settings = ServerSettings.load(config)
    settings.state.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    log = settings.state / "cloud.log"
    with log.open("ab") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "providers.sandbox.cloud.server", "--config", str(config.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    control = CloudServerClient(settings.state, timeout_s=5.0)
    deadline = time.monotonic() + timeout_s
    try:
        while not control.ready():
            if server.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise SandboxError(f"the cloud server did not start: {' '.join(last)}", f"see {log}")
            time.sleep(_POLL_S)
    finally:
        control.close()
    _servers[settings.state.resolve()] = server


def stop_server(state: Path) -> None:
    """Ends the cloud server of a lab, kindly; its boxes run on. May be repeated."""
    lab = Lab.open(state)
    if lab is not None:
        lab.end_process("cloud")
    server = _servers.pop(state.resolve(), None)
    if server is not None:
        server.wait()
