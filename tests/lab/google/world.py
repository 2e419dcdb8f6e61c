"""The server as a world of the providers' contract: one project, a service account for each cluster, burstd's role."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from requests.adapters import HTTPAdapter

from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import Provider
from burstd.share import share_path
from burstd.testing.cloud_world import Breakage, FaultWorld
from providers.google.calls import GoogleCalls
from providers.google.provider import GoogleProvider
from providers.google.settings import GoogleSettings
from tests.lab.google.api import SMALLEST_DISK_GIB, RefusalError
from tests.lab.google.cloud import REGION, SUBNETWORK, ZONES, Instance
from tests.lab.google.server import Fault, GoogleServer

PROJECT = "physics-burst"
INSERT, LIST = "compute.instances.insert", "compute.instances.list"
_BEGIN = 1_800_000_000.0
_STEPS = 200


def role_permissions(name: str = "role.yaml") -> frozenset[str]:
    """Those of a role that burstd ships."""
    said = yaml.safe_load((share_path("config") / "google" / name).read_text(encoding="utf-8"))
    return frozenset(said["includedPermissions"])


class GoogleWorld(FaultWorld):
    """A project that no other test knows. Its time passes only in ``until`` and by ``pass_time``."""

    page = 2
    disk_bytes = SMALLEST_DISK_GIB << 30
    more_calls = 3

    def __init__(self, folder: Path, key: rsa.RSAPrivateKey) -> None:
        self.now = _BEGIN
        self.server = GoogleServer(PROJECT, lambda: self.now, key=key)
        self.project = self.server.project
        self.project.add_image("node-0", "node")
        self.image = "family:node"
        self.rights = role_permissions() | role_permissions("role-volumes.yaml")
        self._folder = folder
        self._calls: list[GoogleCalls] = []
        self._images = 0

    def settings(self, cluster: str, **words: Any) -> GoogleSettings:
        file = self._folder / f"{cluster}.json"
        if not file.exists():
            file.write_text(self.server.account(cluster, self.rights)[1], encoding="utf-8")
        said = {
            "project": PROJECT, "region": REGION, "zones": [ZONES[0]], "credentials_file": str(file),
            "endpoint": self.server.url, "subnetwork": SUBNETWORK, "network_tags": ["burst"],
            "machine_types": ["n2-standard-*"], "image": self.image, "page": self.page, "settle_s": 30.0, **words,
        }  # fmt: skip
        return GoogleSettings.model_validate(said)

    def provider(self, cluster: str, **words: Any) -> GoogleProvider:
        settings = self.settings(cluster, **words)
        self._calls.append(GoogleCalls(settings))
        return GoogleProvider("google", cluster, settings, self._calls[-1], clock=lambda: self.now)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(_STEPS):
            if condition():
                return
            self.pass_time(1.0)
        raise AssertionError("the cloud never got there")

    def pass_time(self, seconds: float) -> None:
        """Without anybody's waiting."""
        self.now += seconds

    def calls(self) -> int:
        return self.server.calls.total()

    def user_data(self, instance_id: str) -> str:
        items = self.instance(instance_id).said["metadata"]["items"]
        return str(next(one["value"] for one in items if one["key"] == "user-data"))

    def instance(self, instance_id: str) -> Instance:
        """As Google has it."""
        return self.project.instances[instance_id.rpartition("/")[2]]

    def publish_image(self) -> tuple[str, str]:
        self._images += 1
        return "family:roll", self.project.add_image(f"roll-{self._images}", "roll")

    def withdraw_image(self, version: str) -> None:
        del self.project.images[version.rpartition("/")[2]]

    def offer(self, provider: Provider) -> Offer:
        return min((one for one in provider.offers() if not one.spot), key=lambda one: (one.price, one.id))

    def refuse(self, method: str, status: int, reason: str, times: int = 1, **headers: str) -> None:
        """The next calls of a method are refused."""
        refusal = RefusalError(status, reason, f"as the test has it: {reason}", headers)
        self.server.faults.append(Fault(method, refusal, times=times))

    def inject_fault(self, how: Breakage) -> None:
        faults = self.project.faults
        if how is Breakage.CAPACITY:
            faults.late.append("ZONE_RESOURCE_POOL_EXHAUSTED")
        elif how is Breakage.QUOTA:
            self.refuse(INSERT, 403, "quotaExceeded")
        elif how is Breakage.RATE:
            self.refuse(INSERT, 429, "rateLimitExceeded")
        elif how is Breakage.AUTH:
            self.refuse(INSERT, 401, "authError", times=3)
        elif how is Breakage.IMAGE:
            refusal = RefusalError(404, "notFound", "The resource 'projects/p/global/images/none' was not found")
            self.server.faults.append(Fault(INSERT, refusal))
        elif how is Breakage.DOWN:
            self._refuse_connection(self._calls[-1])
        elif how is Breakage.LOST:
            self.server.faults.append(Fault(INSERT, lost=True))
        elif how is Breakage.LIST_DOWN:
            self.refuse(LIST, 503, "backendError")
        elif how is Breakage.TERMINATE:
            self.refuse("compute.instances.delete", 503, "backendError")
        elif how is Breakage.LEAK:
            faults.leak += 1

    def _refuse_connection(self, calls: GoogleCalls) -> None:
        """Of the next call that launches."""
        calls.server_time()
        assert calls._http is not None
        session = calls._http.session
        prefix = f"{self.server.url}/compute/v1/projects/{PROJECT}/zones/{ZONES[0]}/instances"

        class Down(HTTPAdapter):
            def send(self, request: requests.PreparedRequest, *args: Any, **words: Any) -> requests.Response:
                del session.adapters[prefix]
                with socket.socket() as taken:
                    taken.bind(("127.0.0.1", 0))
                    # Nobody listens there.
                    request.url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
                    return super().send(request, *args, **words)

        session.mount(prefix, Down())

    def close(self) -> None:
        """Raises AssertionError where something was not as Google's schema has it."""
        for one in self._calls:
            one.close()
        self.server.close()
        assert self.server.violations == []
