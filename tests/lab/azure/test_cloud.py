"""Microsoft's own clients against the cloud that plays Azure: its paths, versions, pages and answers are theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from burstd.testing.cloud_world import CLUSTER, launch_request
from providers.azure.catalog.sizes import parse_size
from providers.azure.launch.machine import machine_body
from tests.lab.azure.names import GROUP, SECURITY_GROUP, SUBNET, SUBSCRIPTION
from tests.lab.azure.specs import LOCATION, SIZES

if TYPE_CHECKING:
    from tests.lab.azure.world import AzureWorld

pytestmark = pytest.mark.clouds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AzureWorld]:
    from tests.lab.azure.world import AzureWorld

    made = AzureWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def clients(world: AzureWorld) -> Iterator[tuple[Any, Any]]:
    """Of compute and network, with the cluster's rights."""
    from azure.identity import ClientSecretCredential
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.network import NetworkManagementClient

    words, verify = world.words(), str(world.server.ca_file)
    credential = ClientSecretCredential(
        words["tenant"], words["client_id"], f"secret-of-{CLUSTER}", authority=world.server.url,
        disable_instance_discovery=True, connection_verify=verify,
    )  # fmt: skip
    common: dict[str, Any] = {
        "base_url": world.server.url, "credential_scopes": [f"{world.server.url}/.default"],
        "connection_verify": verify, "retry_total": 0, "polling_interval": 0,
    }  # fmt: skip
    with (
        ComputeManagementClient(credential, SUBSCRIPTION, **common) as compute,
        NetworkManagementClient(credential, SUBSCRIPTION, **common) as network,
    ):
        yield compute, network
    credential.close()


def test_what_burstd_asks_for_is_what_microsofts_client_would(world: AzureWorld, clients: tuple[Any, Any]) -> None:
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceExistsError, ResourceModifiedError
    from azure.mgmt.compute.models import VirtualMachine

    compute, network = clients
    provider = world.provider(CLUSTER)
    for word in ("c1", "c2", "c3"):
        request = launch_request(world, provider, word)
        size = parse_size(SIZES[request.offer.instance_type].sku(), LOCATION)
        body = machine_body(world.settings(), request, {"id": world.image}, "ssh-rsa AAAA", size)
        words: dict[str, Any] = {"match_condition": MatchConditions.IfMissing, "polling": False}
        made = compute.virtual_machines.begin_create_or_update(GROUP, request.name, VirtualMachine(body), **words)
        assert made.result().properties.provisioning_state == "Creating"
        with pytest.raises((ResourceExistsError, ResourceModifiedError)):
            compute.virtual_machines.begin_create_or_update(GROUP, request.name, VirtualMachine(body), **words)
    world.now += 2.0
    names = {f"{CLUSTER}-c{n}" for n in (1, 2, 3)}
    assert {one.name for one in compute.virtual_machines.list(GROUP)} == names
    assert {one.id for one in provider.instances()} == names
    for one in compute.virtual_machines.list_all(status_only="true"):
        assert [status.code for status in one.properties.instance_view.statuses] == [
            "ProvisioningState/succeeded", "PowerState/running",
        ]  # fmt: skip
    view = compute.virtual_machines.instance_view(GROUP, f"{CLUSTER}-c1")
    assert view.statuses[1].display_status == "VM running"
    console = compute.virtual_machines.retrieve_boot_diagnostics_data(
        GROUP, f"{CLUSTER}-c1", sas_uri_expiration_time_in_minutes=60
    )
    assert console.serial_console_log_blob_uri.startswith(world.server.url)
    (interface, *_) = network.network_interfaces.list(GROUP)
    assert interface.properties.ip_configurations[0].properties.private_ip_address.startswith("10.77.")
    assert len(list(compute.disks.list_by_resource_group(GROUP))) == 3
    compute.virtual_machines.begin_delete(GROUP, f"{CLUSTER}-c1", force_deletion=True, polling=False)
    world.until(lambda: {one.name for one in compute.virtual_machines.list(GROUP)} == names - {f"{CLUSTER}-c1"})
    assert len(list(compute.disks.list_by_resource_group(GROUP))) == 2


def test_what_burstd_reads_is_what_microsofts_client_would(world: AzureWorld, clients: tuple[Any, Any]) -> None:
    compute, network = clients
    assert {one.name for one in compute.resource_skus.list(filter=f"location eq '{LOCATION}'")} == set(SIZES)
    assert {one.name.value for one in compute.usage.list(LOCATION)} >= {"cores", "lowPriorityCores"}
    versions = compute.gallery_image_versions.list_by_gallery_image("images", "site", "slurm-node")
    assert [one.id for one in versions] == [world.image]
    assert compute.gallery_images.get("images", "site", "slurm-node").properties.os_state == "Generalized"
    assert compute.images.get("images", "by-hand").properties.hyper_v_generation == "V2"
    image = compute.virtual_machine_images.get(LOCATION, "Debian", "debian-12", "12-gen2", "0.20260101.1")
    assert image.properties.architecture == "x64"
    assert network.subnets.get("net", "campus", "nodes").id == SUBNET
    assert network.network_security_groups.get("net", "nodes").id == SECURITY_GROUP
    assert list(network.public_ip_addresses.list(GROUP)) == []
