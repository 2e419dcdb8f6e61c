from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from burstd.domain.errors import BadRequest, InsufficientCapacity
from burstd.domain.plugins.provider import LaunchRequest
from providers.aws.catalog.catalog import AwsCatalog, CapacityReservation, Ec2InstanceType
from providers.aws.launch.images import AwsImage, AwsImages
from providers.aws.launch.lookups import MAX_POOLS, LaunchLookups
from providers.aws.settings import AwsSettings
from tests.providers.aws.ec2 import IMAGE, FakeEc2, adapters, offer, request, settings


def kind(name: str, *, efa: int = 0, first: str = "efa", architecture: str = "x86_64") -> Ec2InstanceType:
    return Ec2InstanceType(
        name=name, vcpus=2, memory_mib=4096, gpus=0, gpu_name="", gpu_memory_mib=0, architecture=architecture,
        efa=adapters(efa, first), local_disk_gib=0, spot=True,
    )  # fmt: skip


KINDS = {
    one.name: one
    for one in (
        kind("c5.large"),
        kind("m5.large"),
        kind("c6g.large", architecture="aarch64"),
        kind("p4d.24xlarge", efa=4),
        kind("p4de.24xlarge", efa=4),
        kind("c5n.18xlarge", efa=1),
        replace(kind("t3.large"), cluster_groups=False),
        kind("p9.24xlarge", efa=4, first="interface"),
        *(kind(f"c{n}.large") for n in range(100, 140)),
    )
}
RESERVED = CapacityReservation(id="cr-1", instance_type="m5.large", zone="b", block=False, free=4)
ENDED = CapacityReservation(id="cr-2", instance_type="m5.large", zone="a", block=True, free=0, open=False)


class StubCatalog(AwsCatalog):
    def __init__(self, of: AwsSettings) -> None:
        super().__init__("aws", of, FakeEc2())

    def type(self, name: str) -> Ec2InstanceType | None:
        return KINDS.get(name)

    def subnet(self, zone: str) -> str | None:
        return {"a": "subnet-a", "b": "subnet-b"}.get(zone)

    def reservation(self, instance_type: str, zone: str) -> CapacityReservation | None:
        return next((one for one in (RESERVED, ENDED) if (one.instance_type, one.zone) == (instance_type, zone)), None)


@dataclass
class StubImages(AwsImages):
    image: AwsImage = IMAGE

    def find_image(self, word: str) -> AwsImage:
        if word:
            raise BadRequest(f"no image '{word}'")
        return self.image


def lookups(of: AwsSettings | None = None, image: AwsImage = IMAGE) -> LaunchLookups:
    return LaunchLookups(of or settings(), StubCatalog(of or settings()), StubImages(image))


def pools(asked: LaunchRequest, of: AwsSettings | None = None) -> list[tuple[str, str]]:
    return [(pool.offer.instance_type, pool.subnet) for pool in lookups(of).look_up(asked).pools]


def test_others_that_the_same_call_can_give() -> None:
    """Of the same market, of types, zones and images that are there, each once, in their order."""
    others = (
        offer("c101.large"), offer("c5.large", "b"), offer("c101.large"), offer("m5.large", "b"),
        offer("c102.large", spot=True), offer("zz.large"), offer(zone="z"), offer("c6g.large"),
    )  # fmt: skip
    found = pools(request("c1", others=others))
    assert found == [("c5.large", "subnet-a"), ("c101.large", "subnet-a"), ("c5.large", "subnet-b")]


def test_no_more_than_a_call_bears() -> None:
    others = tuple(offer(f"c{n}.large") for n in range(100, 140))
    found = pools(request("c1", others=others))
    assert [name for name, _ in found] == ["c5.large", *(f"c{n}.large" for n in range(100, 99 + MAX_POOLS))]


def test_a_reservation_takes_the_call_for_itself() -> None:
    found = lookups().look_up(request("c1", of=offer("m5.large", "b"), others=(offer(),)))
    assert found.reservation == RESERVED
    assert len(found.pools) == 1
    assert lookups().look_up(request("c1", of=offer("m5.large", "b", spot=True))).reservation is None
    with pytest.raises(InsufficientCapacity, match=ENDED.id):
        lookups().look_up(request("c1", of=offer("m5.large", "a")))


@pytest.mark.parametrize(
    ("gang", "allowed", "efa", "names"),
    [
        ("7", True, 4, ["p4d.24xlarge", "p4de.24xlarge"]),
        ("", True, 0, ["p4d.24xlarge", "p4de.24xlarge", "p9.24xlarge", "c5n.18xlarge", "c5.large"]),
        ("7", False, 0, ["p4d.24xlarge", "p4de.24xlarge", "p9.24xlarge", "c5n.18xlarge", "c5.large"]),
    ],
)
def test_jobs_of_many_nodes_have_one_kind_of_network(*, gang: str, allowed: bool, efa: int, names: list[str]) -> None:
    others = (offer("p4de.24xlarge"), offer("p9.24xlarge"), offer("c5n.18xlarge"), offer("c5.large"))
    found = lookups(settings(efa=allowed)).look_up(request("c1", of=offer("p4d.24xlarge"), others=others, gang=gang))
    assert len(found.efa) == efa
    assert [pool.offer.instance_type for pool in found.pools] == names


def test_machines_of_a_pool_with_efa_have_it_alone_too() -> None:
    asked = request("c1", of=offer("p4d.24xlarge"), others=(offer("c5.large"),), fabric="efa")
    found = lookups().look_up(asked)
    assert (len(found.efa), len(found.pools), found.grouped) == (4, 1, False)


def test_a_type_without_cluster_placement_groups_is_in_none() -> None:
    small = lookups().look_up(request("c1", of=offer("t3.large"), others=(offer("c5.large"),), gang="7"))
    assert (small.grouped, len(small.pools)) == (False, 2)
    large = lookups().look_up(request("c1", of=offer("c5.large"), others=(offer("t3.large"),), gang="7"))
    assert (large.grouped, len(large.pools)) == (True, 1)


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        (request("c1", of=offer("zz.large")), "zz.large"),
        (request("c1", of=offer(zone="z")), "add one to subnets"),
        (request("c1", of=offer("c6g.large")), "name an image"),
        (replace(request("c1"), image="nix"), "nix"),
        (request("c1", user_data="\u00e4" * 8193), "16386 bytes"),
    ],
)
def test_what_can_never_be(asked: LaunchRequest, remedy: str) -> None:
    with pytest.raises(BadRequest, match=remedy):
        lookups().look_up(asked)
