"""``burstctl provider check`` on the cloud that plays Azure, and burstd's roles: no right too few, none too many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from burstd.domain.cloud.volume import DiskRequest
from burstd.domain.plugins.provider import Finding
from burstd.testing.cloud_world import CLUSTER, launch_and_wait, launch_request, live_instances
from providers.azure.checks.check import NEEDED, WITH_ADDRESSES
from tests.lab.azure import rights
from tests.lab.azure.names import ENCRYPTION_SET, IDENTITY, MANAGED, MARKETPLACE, SECURITY_GROUP, SUBNET, THINGS

if TYPE_CHECKING:
    from tests.lab.azure.world import AzureWorld

pytestmark = pytest.mark.clouds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AzureWorld]:
    from tests.lab.azure.world import AzureWorld

    made = AzureWorld(tmp_path)
    yield made
    made.close()


def findings(world: AzureWorld, *images: str, **words: Any) -> dict[str, Finding]:
    return {one.subject: one for one in world.provider(CLUSTER, **words).check(images)}


def test_the_roles_have_what_burstd_needs_and_nothing_else(world: AzureWorld) -> None:
    disk = {"encryption_set": ENCRYPTION_SET}
    provider = world.provider(CLUSTER, public_address=True, machine_identity=IDENTITY, disk=disk)
    launch_and_wait(world, provider, "c1")
    for word, image in (("c2", MANAGED), ("c3", MARKETPLACE)):
        provider.launch([replace(launch_request(world, provider, word), image=image)])
    world.cloud.late.append(("AllocationFailed", "none left"))
    world.cloud.status_lag_s = 60.0
    provider.launch([launch_request(world, provider, "c4")])
    world.until(lambda: any(one.error for one in provider.instances()))
    machines = live_instances(provider)
    provider.console(machines[0].id)
    provider.cloud_time()
    world.cloud.leaks = list(THINGS)
    provider.terminate([one.id for one in machines])
    world.until(lambda: not list(provider.instances()))
    provider.remove(list(provider.leftovers()))
    volume = DiskRequest("v1", machines[0].zone, 1 << 30, {})
    provider.create_disk(volume)
    world.until(lambda: all(one.ready for one in provider.disks()))
    (made,) = provider.disks()
    (again,) = launch_and_wait(world, provider, "c5")
    provider.attach_disk(made.id, again.id)
    world.until(lambda: any(one.attached_to and one.ready for one in provider.disks()))
    provider.terminate([again.id])
    world.until(lambda: not list(provider.instances()))
    provider.delete_disk(made.id)
    assert [one for one in provider.check([MANAGED, MARKETPLACE]) if one.ok is False] == []
    provider.quotas()
    roles = rights.role_actions("role") | rights.role_actions("role-subscription")
    assert world.cloud.actions == roles
    assert {*NEEDED, *WITH_ADDRESSES} == rights.role_actions("role")


def test_all_is_well(world: AzureWorld) -> None:
    found = findings(world, MANAGED)
    assert [one for one in found.values() if not one.ok] == []
    assert {name for name in found if "rights" in name} == {
        "rights to the resource group", "rights to the subnet", "rights to the security group"
    }  # fmt: skip
    assert "sees resource group burst in westeurope" in found["credentials"].text
    assert found["instance types Standard_NC4as_T4_v3"].text == "1 offered: Standard_NC4as_T4_v3; on-demand, spot"
    assert found["subnet nodes"].text == "10.77.0.0/16, 65531 free addresses"
    assert found["quota cores here"].text.startswith("4 of 1000 vCPUs in use, room for ")


@pytest.mark.parametrize(
    ("words", "subject", "says", "remedy"),
    [
        ({"resource_group": "other"}, "credentials", "AuthorizationFailed", "role.json"),
        ({"security_group": ""}, "subnet nodes", "neither it nor security_group filters", "set security_group"),
        ({"security_group": f"{SECURITY_GROUP}x"}, "security group nodesx", "ResourceNotFound", "az network nsg list"),
        ({"subnet": f"{SUBNET}x"}, "subnet nodesx", "ResourceNotFound", "az network vnet subnet list"),
        ({"instance_types": ["X*", "Standard_D2*"]}, "instance types X*", "none of that name", "az vm"),
        ({"instance_types": ["*_ND*", "Standard_D2s*"]}, "instance types *_ND*", "NotAvailable", "support"),
        ({"image": "nonsense"}, "image nonsense", "is not an id of a gallery", "mend image of the provider's table"),
        ({"image": ""}, "image", "neither the provider nor a pool names one", "set image"),
        ({"instance_types": ["Standard_D2ps_v5"]}, "image ", "the sizes are all aarch64", "name an image"),
        ({"price_list": False, "prices": {"Standard_D2s_v5": "1"}}, "prices", "Standard_D2s_v5", "set prices"),
        ({"secret_file": "/nowhere"}, "credentials", "/nowhere cannot be read", "secret"),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_remedy(
    world: AzureWorld, words: dict[str, Any], subject: str, says: str, remedy: str
) -> None:
    found = findings(world, **words)
    finding = next(one for name, one in found.items() if name.startswith(subject) and one.ok is False)
    assert says in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("features", "generation", "words", "ok", "says"),
    [
        ({}, "V2", {"security_type": "TrustedLaunch"}, False, "has not the feature SecurityType=TrustedLaunch"),
        ({"SecurityType": "TrustedLaunch"}, "V2", {}, False, "boots with TrustedLaunch only"),
        ({"SecurityType": "TrustedLaunch"}, "V2", {"security_type": "TrustedLaunch"}, True, "x86_64"),
        ({"SecurityType": "TrustedLaunchSupported"}, "V2", {"security_type": "TrustedLaunch"}, True, "x86_64"),
        ({"SecurityType": "TrustedLaunchSupported"}, "V2", {}, True, "x86_64"),
        ({}, "V2", {"instance_types": ["Standard_D2s_v6"]}, False, "SCSI,NVMe: Standard_D2s_v6 cannot"),
        ({}, "V2", {"instance_types": ["Standard_D2s_v*"]}, None, "SCSI,NVMe: Standard_D2s_v6 cannot"),
        ({"DiskControllerTypes": "SCSI, NVMe"}, "V2", {"instance_types": ["Standard_D2s_v6"]}, True, "x86_64"),
        ({"DiskControllerTypes": "NVMe"}, "V1", {"instance_types": ["*D2s_v6"]}, False, "V1: Standard_D2s_v6"),
    ],
)  # fmt: skip
def test_an_image_that_sizes_or_settings_do_not_fit(
    world: AzureWorld, features: dict[str, str], generation: str, words: dict[str, Any], ok: bool | None, says: str
) -> None:
    world.cloud.features, world.cloud.generation = features, generation
    found = next(one for name, one in findings(world, **words).items() if name.startswith("image "))
    assert found.ok is ok, found
    assert says in found.text


def test_a_missing_right_is_named(world: AzureWorld) -> None:
    client = world.client(CLUSTER)
    (subscription, reads), (group, makes) = world.cloud.clients[client].items()
    less = makes - {"Microsoft.Compute/virtualMachines/write"}
    world.cloud.clients[client] = {subscription: reads, group: less}
    found = findings(world)["rights to the resource group"]
    assert (found.ok, found.text) == (False, "missing: Microsoft.Compute/virtualMachines/write")
    less = reads - {"Microsoft.Network/virtualNetworks/subnets/join/action"}
    world.cloud.clients[client] = {subscription: less, group: makes}
    found = findings(world)["rights to the subnet"]
    assert (found.ok, found.text) == (False, "missing: Microsoft.Network/virtualNetworks/subnets/join/action")
    assert "role-subscription.json" in found.remedy
    less = reads - {"Microsoft.Compute/virtualMachines/read"}
    world.cloud.clients[client] = {subscription: less, group: makes}
    found = findings(world)["power states"]
    assert found.ok is False
    assert "AuthorizationFailed" in found.text
    assert "role-subscription.json" in found.remedy


def test_quotas_that_are_too_small(world: AzureWorld) -> None:
    world.cloud.usages["standardDSv5Family"] = (0, 0)
    world.cloud.usages["lowPriorityCores"] = (1000, 1000)
    found = findings(world)
    assert found["quota standardDSv5Family here"].ok is False
    assert "ask for 2 or more in Azure's portal" in found["quota standardDSv5Family here"].remedy
    assert found["quota lowPriorityCores here"].ok is None


def test_a_cloud_that_is_down_is_no_fault_of_the_settings(world: AzureWorld) -> None:
    found = findings(world, endpoint="https://127.0.0.1:9", authority="https://127.0.0.1:9")
    assert found["credentials"].ok is None
    assert "port 443" in found["credentials"].remedy
    assert found["all else"].ok is None


def test_the_newest_of_the_marketplace_is_known_at_the_first_launch(world: AzureWorld) -> None:
    found = findings(world, image="Debian:debian-12:12-gen2:latest")["image Debian:debian-12:12-gen2:latest"]
    assert (found.ok, found.remedy) == (None, "name a version instead of latest")
