from __future__ import annotations

from typing import Any

import pytest

from providers.aws.catalog.catalog import AwsCatalog
from providers.aws.catalog.quotas import AwsQuotas, quota_covers
from tests.providers.aws.ec2 import settings
from tests.providers.aws.shop import FakeCatalogApi

STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
STANDARD_SPOT = "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"


def used(*instances: dict[str, Any], types: tuple[str, ...] = ("*",), limits: tuple[str, ...]) -> dict[str, int]:
    of = settings(instance_types=list(types))
    shop = FakeCatalogApi(of)
    shop.quotas = {**dict.fromkeys(limits, 640.0), "EC2-VPC Elastic IPs": 5.0, "Running Dedicated c5 Hosts": 2.0}
    shop.instances = list(instances)
    found = AwsQuotas(of, shop, AwsCatalog("aws", of, shop)).read_quotas()
    assert all((one.limit, one.unit) == (640, "vCPUs") for one in found)
    return {one.name: one.used for one in found}


def one(name: str, lifecycle: str = "", **more: Any) -> dict[str, Any]:
    return {"InstanceType": name, **({"InstanceLifecycle": lifecycle} if lifecycle else {}), **more}


@pytest.mark.parametrize(
    ("families", "inside", "outside"),
    [
        ({"c", "i", "m"}, ["c5.large", "m7i-flex.large", "im4gn.large", "is4gen.large"], ["mac2.metal", "inf1.large"]),
        ({"g", "vt"}, ["g5.xlarge", "gr6.4xlarge", "vt1.3xlarge"], ["p4d.24xlarge"]),
        ({"p4", "p3"}, ["p4d.24xlarge", "p4de.24xlarge"], ["p5.48xlarge", "p.large"]),
        ({"high memory"}, ["u-6tb1.metal", "u7i-12tb.224xlarge"], ["x1.32xlarge"]),
        ({"hpc"}, ["hpc7a.96xlarge"], ["h1.2xlarge"]),
    ],
)  # fmt: skip
def test_families(families: set[str], inside: list[str], outside: list[str]) -> None:
    assert all(quota_covers(families, name) for name in inside)
    assert not any(quota_covers(families, name) for name in outside)


def test_only_limits_of_types_and_markets_that_the_settings_allow() -> None:
    limits = (
        STANDARD, STANDARD_SPOT, "Running On-Demand G and VT instances", "All G and VT Spot Instance Requests",
        "Running On-Demand High Memory instances", "All High Memory Spot Instance Requests",
    )  # fmt: skip
    assert set(used(types=("c5.large",), limits=limits)) == {STANDARD, STANDARD_SPOT}
    assert set(used(types=("u-6tb1.56xlarge",), limits=limits)) == {"Running On-Demand High Memory instances"}


def test_what_is_used_by_the_whole_account() -> None:
    """16 + 2 + 4 + 36 on demand, 4 on the spot market; hosts and capacity blocks count elsewhere."""
    assert used(
        one("c5.4xlarge"), one("c5.large"), one("c5.xlarge", "spot"), one("c5.4xlarge", "capacity-block"),
        one("m5.xlarge", CpuOptions={"CoreCount": 2, "ThreadsPerCore": 2}),
        one("c5.18xlarge", CpuOptions={"CoreCount": 36, "ThreadsPerCore": 1}),
        one("c5.large", Placement={"Tenancy": "host"}), one("g5.xlarge"),
        types=("c5.large",), limits=(STANDARD, STANDARD_SPOT),
    ) == {STANDARD: 58, STANDARD_SPOT: 4}  # fmt: skip
