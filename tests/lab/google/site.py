"""A whole site whose cloud is the lab's Compute Engine, with boxes behind its instances: ``with GoogleSite(...)``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER, TAG_POOL
from burstd.domain.cloud.offer import OfferRule, Pool
from providers.google.labels import tags_of
from providers.sandbox.boxes.lab import Lab
from tests.lab import boxes as lab_boxes
from tests.lab.base_site import BaseSite
from tests.lab.google.cloud import MACHINE_TYPES, REGION, SUBNETWORK, ZONES, Instance, Project
from tests.lab.google.metadata import ADDRESS, Metadata
from tests.lab.google.server import GoogleServer
from tests.lab.google.world import PROJECT, role_permissions
from tests.node.conftest import on_network

_PORT = 8481
_KEY = "/etc/burstd/google.json"


class BoxMachines:
    """A box for each instance: it boots with cloud-init from its user data, and asks for metadata on its link."""

    def __init__(self, lab: Lab, layers: Sequence[Path]) -> None:
        self._lab = lab
        self._boxes = lab_boxes.Boxes(lab, layers)
        hub = lab.network.hub or ""
        lab_boxes.ip("-n", hub, "addr", "replace", f"{ADDRESS}/32", "dev", lab.network.bridge)
        with on_network(hub):
            self.metadata = Metadata()

    def running(self, instance: Instance) -> None:
        """Starts its box, with the instance's name as Google has it."""
        said = instance.said
        items = {one["key"]: one["value"] for one in said["metadata"]["items"]}
        kind = MACHINE_TYPES[instance.zone][said["machineType"].rpartition("/")[2]]
        self._boxes.start(
            instance.name,
            instance.address,
            hostname=instance.name,
            gpus=sum(one["guestAcceleratorCount"] for one in kind.get("accelerators", ())),
            user_data=items["user-data"],
            meta_data={"instance-id": instance.id, "availability-zone": instance.zone},
        )
        namespace = self._lab.network.host_namespace(instance.name)
        lab_boxes.ip("-n", namespace, "route", "add", f"{ADDRESS}/32", "dev", "eth0")

    def ended(self, instance: Instance) -> None:
        """Stops its box and removes it."""
        self.metadata.preempted.discard(instance.address)
        self._boxes.end(instance.name)

    def console(self, instance: Instance) -> str:
        """What its box has written to its console."""
        return self._boxes.console(instance.name)

    def close(self) -> None:
        """Ends all."""
        self._boxes.close()
        self.metadata.close()


class GoogleSite(BaseSite):
    """One site. ``machine_types`` are those that it allows; ``google`` are more keys of ``[providers.google]``.

    burstd on the head has the rights of config/google/role.yaml and no others, by a service account's key.
    """

    def __init__(
        self,
        release: str = "bookworm",
        *,
        pools: Sequence[Pool],
        machine_types: Sequence[str],
        google: Mapping[str, object] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(release, pools=pools, **more)
        self._google = {"machine_types": list(machine_types), "settle_s": 3.0, **(google or {})}
        self._up = ExitStack()
        self.server: GoogleServer
        self.machines: BoxMachines

    @property
    def project(self) -> Project:
        """As Google has it."""
        return self.server.project

    def start_cloud(self, layers: Sequence[Path]) -> None:
        """Starts Google's servers at the hub's address, with boxes behind the instances."""
        network = self.cluster.lab.network
        self.machines = BoxMachines(self.cluster.lab, layers)
        self._up.callback(self.machines.close)
        with on_network(network.hub or ""):
            self.server = GoogleServer(PROJECT, machines=self.machines, listen=(network.gateway, _PORT))
        self._up.callback(self.server.close)
        self.project.faults.boot_s = self.project.faults.stop_s = self.project.faults.late_s = 0.5
        self.project.add_image("slurm-node-1", "slurm-node")
        self.write(_KEY, self.server.account("burstd", role_permissions())[1], 0o600)

    def stop_cloud(self) -> None:
        """Ends the servers, and the boxes after them."""
        self._up.close()

    def provider_toml(self) -> str:
        """The section of burstd.toml."""
        settings = {
            "kind": "google",
            "project": PROJECT,
            "region": REGION,
            "zones": list(ZONES),
            "credentials_file": _KEY,
            "endpoint": self.server.url,
            "subnetwork": SUBNETWORK,
            "image": "family:slurm-node",
            **self._google,
        }
        return "[providers.google]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())

    def rules_of(self, pool: Pool) -> Sequence[OfferRule]:
        """Every type."""
        del pool
        return (OfferRule("google"),)

    def preempt(self, instance: Instance, notice_s: float) -> None:
        """Google takes a Spot VM back, tells the machine itself, and stops it for so long."""
        self.machines.metadata.preempted.add(instance.address)
        self.project.preempt(instance, notice_s)

    def of_pool(self, pool: str) -> list[Instance]:
        """Our cluster's instances that are there for a pool."""
        return [one for one in self._ours() if tags_of(one.said).get(TAG_POOL) == pool]

    def instances(self) -> list[str]:
        """Ids of our cluster's instances."""
        return [one.id for one in self._ours()]

    def _ours(self) -> list[Instance]:
        return [one for one in list(self.project.instances.values()) if one.said["labels"].get(TAG_CLUSTER) == "lab"]
