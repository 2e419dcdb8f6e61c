"""A whole site whose cloud is the lab's OpenStack, with boxes behind its servers: ``with OpenStackSite(...)``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.cloud.offer import OfferRule, Pool
from tests.lab.base_site import BaseSite
from tests.lab.openstack import seed
from tests.lab.openstack.machines import Machines
from tests.lab.openstack.plane import ControlPlane
from tests.lab.openstack.projects import SECURITY_GROUP, Project

CLOUDS = "/etc/burstd/clouds.yaml"


class OpenStackSite(BaseSite):
    """One site. ``prices``, of an hour, say which flavors are allowed; ``openstack`` are more keys of its provider.

    burstd on the head has an application credential of an ordinary member of the project.
    """

    def __init__(
        self,
        release: str = "bookworm",
        *,
        pools: Sequence[Pool],
        prices: Mapping[str, str],
        openstack: Mapping[str, object] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(release, pools=pools, **more)
        self._prices = prices
        self._openstack = {"settle_s": 5.0, "unused_s": 3.0, **(openstack or {})}
        self._up = ExitStack()
        self.plane: ControlPlane
        self.project: Project
        self._client: Any = None

    def start_cloud(self, layers: Sequence[Path]) -> None:
        """Starts OpenStack at the hub's address, and a project with a network in the lab's."""
        lab, socket = self.cluster.lab, self.cluster.state / "machines.sock"
        self._up.enter_context(Machines(lab, layers, socket))
        self.plane = self._up.enter_context(ControlPlane(lab=lab, machines=socket, progress=self._progress))
        self.project = self.plane.project("physics", router=True)
        self._client = self._up.enter_context(self.project.connect())
        self.write(CLOUDS, self.project.clouds_yaml("physics"), 0o600)

    def stop_cloud(self) -> None:
        """Ends OpenStack, and its boxes after it."""
        self._up.close()

    def provider_toml(self) -> str:
        """The section of burstd.toml."""
        settings = {
            "kind": "openstack",
            "cloud": "physics",
            "clouds_yaml": CLOUDS,
            "networks": [self.project.network],
            "security_groups": [SECURITY_GROUP],
            "image": seed.IMAGE,
            "flavors": list(self._prices),
            **self._openstack,
        }
        lines = "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())
        prices = "".join(f'"{name}" = "{price}"\n' for name, price in self._prices.items())
        gpus = '[providers.openstack.gpus]\nh100 = "h100"\n'
        return f"[providers.openstack]\n{lines}{gpus}[providers.openstack.prices]\n{prices}"

    def rules_of(self, pool: Pool) -> Sequence[OfferRule]:
        """Every flavor."""
        del pool
        return (OfferRule("openstack"),)

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A connection with the rights of the project's member; this thread reaches the cloud meanwhile."""
        with self.plane.reach():
            yield self._client

    def servers(self) -> list[dict[str, Any]]:
        """Our cluster's servers, as Nova describes them."""
        with self.client() as client:
            found = client.compute.get("/servers/detail").json()["servers"]
        return [one for one in found if one["metadata"].get(TAG_CLUSTER) == "lab"]

    def instances(self) -> list[str]:
        """Ids of our cluster's servers."""
        return [one["id"] for one in self.servers()]


def _toml(value: object) -> str:
    """JSON is TOML, but for tables."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
