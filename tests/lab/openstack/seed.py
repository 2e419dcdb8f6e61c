"""What every control plane of the lab has from the start: services, flavors, zones, images, an external network."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from tests.lab.openstack import conf

EXTERNAL = "floating"
"""The network of floating IPs."""
FLOATING_SUBNET = "10.77.128.0/18"
VOLUME_TYPE = "lab"
IMAGE = "node"
"""The image that a test uses which does not care."""


@dataclass(frozen=True)
class LabFlavor:
    """A flavor. ``ram`` in MiB, disks in GiB."""

    name: str
    vcpus: int
    ram: int
    disk: int = 10
    ephemeral: int = 0
    specs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LabImage:
    """An image, which holds nothing. ``min_disk`` in GiB."""

    name: str
    properties: dict[str, str] = field(default_factory=dict)
    min_disk: int = 0


FLAVORS = (
    LabFlavor("cpu.small", 2, 4096),
    LabFlavor("cpu.large", 16, 65536, ephemeral=100),
    LabFlavor("gpu.1", 8, 65536, specs={"pci_passthrough:alias": "h100:1"}),
    LabFlavor("gpu.4", 32, 131072, specs={"pci_passthrough:alias": "h100:4"}),
    LabFlavor("vgpu.1", 4, 16384, specs={"resources:VGPU": "1"}),
    LabFlavor("fpga.1", 4, 16384, specs={"pci_passthrough:alias": "fpga:1"}),
    # No host has as much.
    LabFlavor("toobig", 2, 900_000),
)
IMAGES = (
    LabImage(IMAGE, {"burst_role": "node", "os_distro": "debian", "hw_architecture": "x86_64"}),
    LabImage("slurm-node-1", {"burst_role": "slurm", "burst_release": "1"}),
    LabImage("slurm-node-2", {"burst_role": "slurm", "burst_release": "2"}),
    LabImage("twin"),
    LabImage("twin"),
    LabImage("roomy", min_disk=100),
)
"""The oldest first."""
_TYPES = {
    "image": ("glance", f"http://{conf.HOST}:{conf.GLANCE}"),
    "placement": ("placement", f"http://{conf.HOST}:{conf.PLACEMENT}"),
    "compute": ("nova", f"http://{conf.HOST}:{conf.NOVA}/v2.1"),
    "network": ("neutron", f"http://{conf.HOST}:{conf.NEUTRON}"),
    "block-storage": ("cinder", f"http://{conf.HOST}:{conf.CINDER}/v3"),
}


def catalogue(admin: Any) -> None:
    """Services and endpoints. Before any of nova's starts: each keeps the catalogue that it saw first."""
    for kind, (name, url) in _TYPES.items():
        service = admin.identity.create_service(type=kind, name=name)
        for interface in ("public", "internal"):
            admin.identity.create_endpoint(service_id=service.id, interface=interface, url=url, region_id=conf.REGION)
    # A token that comes along with another one is worth something only from a service.
    user, project = admin.identity.find_user(conf.ADMIN), admin.identity.find_project(conf.ADMIN)
    admin.identity.assign_project_role_to_user(project, user, admin.identity.find_role("service"))


def things(admin: Any) -> None:
    """All else. The compute hosts must be known."""
    for flavor in FLAVORS:
        made = admin.compute.create_flavor(
            name=flavor.name, vcpus=flavor.vcpus, ram=flavor.ram, disk=flavor.disk, ephemeral=flavor.ephemeral
        )
        if flavor.specs:
            admin.compute.create_flavor_extra_specs(made, flavor.specs)
    for host, zone in conf.COMPUTES.items():
        aggregate = admin.compute.create_aggregate(name=zone, availability_zone=zone)
        admin.compute.add_host_to_aggregate(aggregate, host)
    for image in IMAGES:
        admin.image.create_image(
            name=image.name,
            data=io.BytesIO(bytes(1 << 16)),
            disk_format="raw",
            container_format="bare",
            visibility="public",
            min_disk=image.min_disk,
            validate_checksum=False,
            # Else the client adds some of its own.
            allow_duplicates=True,
            **image.properties,
        )
    network = admin.network.create_network(
        name=EXTERNAL, is_router_external=True, provider_network_type="flat", provider_physical_network="outside"
    )
    admin.network.create_subnet(
        name=EXTERNAL, network_id=network.id, ip_version=4, cidr=FLOATING_SUBNET, is_dhcp_enabled=False
    )
    admin.block_storage.create_type(name=VOLUME_TYPE)
