"""Which limits are read, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.errors import NotFound
from burstd.domain.plugins.provider import Quota
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.settings import OpenStackSettings
from tests.providers.openstack.cloud import PROJECT, FakeCloud, limits

NETWORK = f"network /quotas/{PROJECT}/details.json"
VOLUMES = {"limits": {"absolute": {
    "maxTotalVolumes": 10, "totalVolumesUsed": 1, "maxTotalVolumeGigabytes": 1000, "totalGigabytesUsed": 20,
}}}  # fmt: skip


def read(answers: dict[str, Any], **more: Any) -> tuple[list[Quota], list[str]]:
    settings = OpenStackSettings(**{"networks": ["inside"], "flavors": ["*"], **more})
    cloud = FakeCloud(settings, answers)
    return list(OpenStackQuotas(settings, cloud).read_quotas()), cloud.said


def test_those_of_a_plain_machine_by_one_call_a_service() -> None:
    found, said = read({})
    assert found == [
        Quota("instances", 10, 2), Quota("cores", 40, 8, "cores"), Quota("ram", 200000, 32768, "MiB"),
        Quota("ports", 50, 1, "ports"),
    ]  # fmt: skip
    assert said == ["compute /limits", NETWORK]


def test_those_of_what_the_settings_have_burstd_make_besides() -> None:
    network = {"quota": {"port": {"limit": 9, "used": 3, "reserved": 1},
                         "floatingip": {"limit": 4, "used": 2, "reserved": 0}}}  # fmt: skip
    found, _ = read(
        {NETWORK: network, "block_storage /limits": VOLUMES},
        floating_network="outside", root={"gib": 20}, gang_policy="affinity",
    )  # fmt: skip
    assert found[3:] == [
        Quota("server-groups", 5, 1, "server groups"), Quota("ports", 9, 4, "ports"),
        Quota("floating-ips", 4, 2, "floating IPs"), Quota("volumes", 10, 1, "volumes"),
        Quota("gigabytes", 1000, 20, "GiB"),
    ]  # fmt: skip


@pytest.mark.parametrize("absent", [NotFound("no such extension"), {"quota": {}}])
def test_what_is_not_limited_or_not_told_is_left_out(absent: Any) -> None:
    found, _ = read({"compute /limits": limits(maxTotalInstances=-1, maxTotalCores=-1), NETWORK: absent})
    assert [quota.name for quota in found] == ["ram"]
