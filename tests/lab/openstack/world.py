"""The lab's OpenStack as a world of the providers' contract: one project, through a proxy that can break things."""

from __future__ import annotations

import base64
import io
import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import CloudUnavailable
from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import Breakage, FaultWorld
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.provider import OpenStackProvider
from providers.openstack.settings import OpenStackSettings
from tests.lab.openstack import seed
from tests.lab.openstack.plane import ControlPlane
from tests.lab.openstack.projects import SECURITY_GROUP, Project
from tests.lab.openstack.proxy import Proxy, says
from tests.lab.proxy import changed, followed, lose_answer, respond

LAUNCH, LIST, END, FREE = (
    "nova POST /servers", "nova GET /servers/detail", "nova DELETE /servers/ID", "neutron DELETE /ports/ID",
)  # fmt: skip
LOGIN = "keystone POST /auth/tokens"
IMAGES = "glance GET /images"
NO_ID = "00000000-0000-0000-0000-000000000000"
UNLIMITED = {"instances": -1, "cores": -1, "ram": -1, "ports": -1}
_PATIENCE_S = 60.0
_POLL_S = 0.3


@dataclass
class Account:
    """A control plane and its proxy, with projects that tests have left empty."""

    cloud: ControlPlane
    proxy: Proxy
    empty: list[Project] = field(default_factory=list)

    def project(self, *, router: bool = False) -> Project:
        """One with its network and security group only; with ``router``, that leads to the network of floating IPs."""
        if self.empty and not router:
            return self.empty.pop()
        return self.cloud.project(f"world-{secrets.token_hex(4)}", router=router)


class OpenStackWorld(FaultWorld):
    """A project that no other test uses meanwhile. Credentials come by a clouds.yaml, as they do on a site."""

    page = 4
    """Nova's pages are whole when nothing is built only: most tests get along with one."""
    image = seed.IMAGE

    def __init__(self, account: Account, folder: Path, *, router: bool = False) -> None:
        self.account, self.cloud, self.proxy = account, account.cloud, account.proxy
        self.project = account.project(router=router)
        self.asked = self.proxy.asked
        self._folder = folder
        self._files = itertools.count()
        self._made: list[tuple[OpenStackProvider, OpenStackCalls]] = []
        self._limited = False

    def provider(self, cluster: str, **words: Any) -> OpenStackProvider:
        """``words``: more settings."""
        settings = {
            "cloud": "burst", "clouds_yaml": self.clouds_yaml(), "networks": [self.project.network],
            "security_groups": [SECURITY_GROUP], "flavors": ["cpu.small"], "prices": {"*": "0.10"},
            "gpus": {"h100": "h100"}, "page": self.page, **words,
        }  # fmt: skip
        read = OpenStackSettings.model_validate(settings)
        calls = OpenStackCalls(read)
        made = OpenStackProvider("openstack", cluster, read, calls)
        self._made.append((made, calls))
        return made

    def clouds_yaml(self, auth: Mapping[str, str] | None = None, *, password: bool = False) -> Path:
        """With the cloud ``burst``: the project's, by way of the proxy. ``auth``: other words for its credentials."""
        words = self.project.cloud(password=password)
        words["auth"] |= {"auth_url": self.proxy.address(words["auth"]["auth_url"]), **(auth or {})}
        file = self._folder / f"clouds{next(self._files)}.yaml"
        file.write_text(json.dumps({"clouds": {"burst": words}}), encoding="utf-8")
        return file

    def token(self, provider: Provider) -> str:
        """The one that a provider has now."""
        (calls,) = (calls for made, calls in self._made if made is provider)
        return str(calls.connection.auth_token)

    @contextmanager
    def owner(self) -> Iterator[Any]:
        """A connection of the project's user, past the proxy."""
        with self.cloud.reach(), self.project.connect() as connection:
            yield connection

    def publish_image(self) -> tuple[str, str]:
        """Of one name; Glance tells their ages by seconds."""
        with self.owner() as owner:
            made = owner.image.create_image(
                name="roll", data=io.BytesIO(bytes(1 << 10)), disk_format="raw", container_format="bare",
                visibility="private", validate_checksum=False, allow_duplicates=True,
            )  # fmt: skip
            time.sleep(1.0)
        return "roll", str(made.id)

    def withdraw_image(self, version: str) -> None:
        with self.owner() as owner:
            owner.image.delete_image(version)

    def until(self, condition: Callable[[], bool]) -> None:
        """A list in small pages may contradict itself while servers are given to their hosts: then it is read again."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if condition():
                    return
            except CloudUnavailable:
                if time.monotonic() >= end:
                    raise
            assert time.monotonic() < end, "the cloud never got there"
            time.sleep(_POLL_S)

    def calls(self) -> int:
        return self.asked.total()

    def user_data(self, instance_id: str) -> str:
        with self.cloud.admin() as admin:
            found = admin.compute.get(f"/servers/{instance_id}", microversion="2.3").json()["server"]
        return base64.b64decode(found["OS-EXT-SRV-ATTR:user_data"]).decode()

    def offer(self, provider: Provider) -> Offer:
        return self.offers(provider)[0]

    def offers(self, provider: Provider) -> list[Offer]:
        """By flavor and zone."""
        return sorted(provider.offers(), key=lambda one: (one.instance_type, one.zone))

    def limit(self, **limits: int) -> None:
        """Sets quotas of the project; see ``ControlPlane.quota``."""
        self._limited = True
        self.cloud.quota(self.project, **limits)

    def inject_fault(self, how: Breakage) -> None:
        order = self.proxy.order
        if how is Breakage.CAPACITY:
            order(LAUNCH, changed(lambda words: words["server"].update(flavorRef=self._flavor("toobig"))))
        elif how is Breakage.QUOTA:
            self.limit(instances=0)
            order(LAUNCH, followed(lambda: self.limit(instances=-1)))
        elif how is Breakage.IMAGE:
            order(IMAGES, respond({"images": []}))
        elif how is Breakage.RATE:
            order(LAUNCH, says(429, "This request was rate-limited.", Retry_After="1"))
        elif how is Breakage.AUTH:
            # Once more after a new token.
            order(LAUNCH, says(401, "The request you have made requires authentication."), times=2)
        elif how is Breakage.DOWN:
            order(LAUNCH, says(503))
        elif how is Breakage.LOST:
            order(LAUNCH, lose_answer)
        elif how is Breakage.LIST_DOWN:
            order(LIST, says(503))
        elif how is Breakage.TERMINATE:
            order(END, says(503))
        elif how is Breakage.LEAK:
            order(FREE, says(204))

    def resources(self) -> dict[str, list[dict[str, Any]]]:
        """All that the project has, each as its service describes it, by kind and in order; images and such left out.

        Without what its service may touch by itself: times and counters.
        """
        with self.owner() as owner:
            found = {
                "servers": owner.compute.get("/servers/detail", microversion="2.69").json()["servers"],
                "groups": owner.compute.get("/os-server-groups").json()["server_groups"],
                "ports": owner.network.get("/ports").json()["ports"],
                "addresses": owner.network.get("/floatingips").json()["floatingips"],
                "volumes": owner.block_storage.get("/volumes/detail").json()["volumes"],
            }
        return {kind: sorted(map(_still, things), key=lambda one: str(one["id"])) for kind, things in found.items()}

    def is_empty(self) -> bool:
        """Whether it has nothing at all."""
        return not any(self.resources().values())

    def close(self) -> None:
        """Gives all connections back, and the project, where the test left nothing in it."""
        for made, _ in self._made:
            made.close()
        if self._limited:
            self.cloud.quota(self.project, **UNLIMITED)
        try:
            self.until(self._settled)
        finally:
            if self.is_empty():
                self.account.empty.append(self.project)

    def _settled(self) -> bool:
        """No server is on its way out any more."""
        return all(one["OS-EXT-STS:task_state"] != "deleting" for one in self.resources()["servers"])

    def _flavor(self, name: str) -> str:
        with self.owner() as owner:
            return str(owner.compute.find_flavor(name, ignore_missing=False).id)


def _still(thing: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in thing.items() if key not in ("updated_at", "updated", "revision_number")}
