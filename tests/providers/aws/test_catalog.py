from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.cloud.offer import Hardware
from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog, CapacityReservation, parse_instance_type
from tests.lab.aws.mock import Ec2Mock, policy_for
from tests.providers.aws.ec2 import settings
from tests.providers.aws.shop import INSTANCE_TYPES, FakeCatalogApi

HOUR = 3600.0
TestedCatalog = Callable[..., tuple[AwsCatalog, FakeCatalogApi]]


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shelf(clock: Clock) -> TestedCatalog:
    """Every type costs a dollar, a quarter on the spot market, unless ``more`` says otherwise."""

    def make(*types: str, **more: Any) -> tuple[AwsCatalog, FakeCatalogApi]:
        priced = {"prices": dict.fromkeys(types, "1"), "spot_prices": dict.fromkeys(types, "0.25"), "price_list": False}
        of = settings(**{"instance_types": list(types), **priced, **more})
        shop = FakeCatalogApi(of)
        return AwsCatalog("aws", of, shop, clock), shop

    return make


def places(catalog: AwsCatalog) -> set[str]:
    return {offer.id.removeprefix("aws/eu-central-1/") for offer in catalog.offers()}


@pytest.mark.parametrize(
    ("name", "cpus", "memory", "gres", "hardware"),
    [
        ("c5d.large", 2, 3891, "", Hardware("x86_64", 0, 46, "none", "placement-group")),
        ("c6g.metal", 64, 124518, "", Hardware("aarch64", 0, 0, "none", "placement-group")),
        ("c5n.18xlarge", 72, 186777, "", Hardware("x86_64", 0, 0, "efa", "placement-group")),
        ("p4d.24xlarge", 96, 1120665, "gpu:a100:8", Hardware("x86_64", 40960, 7450, "efa", "placement-group")),
        ("g5.12xlarge", 48, 186777, "gpu:ampere:4", Hardware("x86_64", 22888, 3539, "efa", "placement-group")),
        (
            "g7e.4xlarge",
            16,
            124518,
            "gpu:rtx_pro_server_6000:1",
            Hardware("x86_64", 98304, 1769, "none", "placement-group"),
        ),
        # An eighth of a GPU must not pass for a whole one.
        ("g6f.large", 2, 7782, "gpu:l4_1_8:1", Hardware("x86_64", 2861, 93, "none", "placement-group")),
        # Amazon's own accelerators are no GPUs.
        ("inf1.xlarge", 4, 7782, "", Hardware("x86_64", 0, 0, "none", "placement-group")),
        # Its disks are not NVMe.
        ("d2.xlarge", 4, 29670, "", Hardware("x86_64", 0, 0, "none", "placement-group")),
        # Amazon takes no burstable type into a cluster placement group.
        ("t3.micro", 2, 972, "", Hardware("x86_64", 0, 0, "none")),
    ],
)
def test_what_a_machine_has(
    shelf: TestedCatalog, name: str, cpus: int, memory: int, gres: str, hardware: Hardware
) -> None:
    catalog, _ = shelf(name, gpu_names={"A10G": "ampere"})
    offer = catalog.offers()[0]
    assert (offer.shape.cpus, offer.shape.memory_mib) == (cpus, memory)
    assert [str(one) for one in offer.shape.gres] == [gres][: bool(gres)]
    assert offer.hardware == hardware


def test_what_the_settings_switch_off_binds_no_machines(shelf: TestedCatalog) -> None:
    catalog, _ = shelf("p4d.24xlarge", efa=False, placement_groups=False)
    assert catalog.offers()[0].hardware.binding == "none"


def test_several_gpus_of_a_name_are_added_up() -> None:
    (gpu,) = INSTANCE_TYPES["g4dn.xlarge"]["GpuInfo"]["Gpus"]
    fpga = {**gpu, "Manufacturer": "Xilinx", "Count": 9, "LogicalGpuCount": 9}
    kind = parse_instance_type(
        {**INSTANCE_TYPES["g4dn.xlarge"], "GpuInfo": {"Gpus": [gpu, {**gpu, "Count": 2, "LogicalGpuCount": 2}, fpga]}}
    )
    assert (kind.gpus, kind.gpu_name, kind.gpu_memory_mib) == (3, "T4", 16384)


def efa(name: str, **network: Any) -> list[tuple[int, str]]:
    said = INSTANCE_TYPES[name]
    kind = parse_instance_type({**said, "NetworkInfo": {**said["NetworkInfo"], **network}})
    return [(one.card, one.kind) for one in kind.efa]


@pytest.mark.parametrize(
    ("name", "adapters"),
    [
        ("c5.large", []),
        ("c5n.18xlarge", [(0, "efa")]),
        ("hpc6id.32xlarge", [(0, "efa"), (1, "efa-only")]),
        ("p4d.24xlarge", [(0, "efa"), (1, "efa-only"), (2, "efa-only"), (3, "efa-only")]),
        # Two cards, EFA for one.
        ("i7ie.48xlarge", [(0, "efa")]),
        # Its first card has no EFA.
        ("p6-b300.48xlarge", [(0, "interface"), *((card, "efa-only") for card in range(1, 17))]),
    ],
)
def test_adapters_by_the_types_own_cards(name: str, adapters: list[tuple[int, str]]) -> None:
    assert efa(name) == adapters


def test_no_type_is_asked_for_more_than_its_cards_bear() -> None:
    """Of all that Amazon lists: as much EFA as it says, by cards that say they can."""
    fabrics = {
        name: said["NetworkInfo"] for name, said in INSTANCE_TYPES.items() if said["NetworkInfo"]["EfaSupported"]
    }
    assert len(fabrics) > 100
    for name, network in fabrics.items():
        can = {card["NetworkCardIndex"]: card["InterfaceTypes"] for card in network["NetworkCards"]}
        adapters = efa(name)
        assert adapters[0][0] == 0, name
        assert adapters[0][1] != "efa-only", name
        assert len(dict(adapters)) == len(adapters), name
        assert all(kind in can[card] for card, kind in adapters), name
        assert sum(kind != "interface" for _, kind in adapters) == network["EfaInfo"]["MaximumEfaInterfaces"], name


@pytest.mark.parametrize(
    ("name", "adapters"),
    [("hpc6id.32xlarge", [0, 1]), ("i7ie.48xlarge", [0]), ("c5n.18xlarge", [0]), ("p6-b300.48xlarge", [])],
)
def test_adapters_where_boto3_is_too_old_to_say_what_a_card_can(name: str, adapters: list[int]) -> None:
    cards = [
        {key: value for key, value in card.items() if key != "InterfaceTypes"}
        for card in INSTANCE_TYPES[name]["NetworkInfo"]["NetworkCards"]
    ]
    assert [card for card, _ in efa(name, NetworkCards=cards)] == adapters
    assert efa("c5n.18xlarge", NetworkCards=[]) == [(0, "efa")]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["t3.nano", "t3.micro"], {"t3.nano", "t3.micro"}),
        # Amazon's ? is also none, and it knows no brackets.
        (["t3?.nano"], {"t3a.nano"}),
        (["c[56].large", "c[!1-9].large"], {"c5.large"}),
        (["mac*", "t2.nano"], {"t2.nano"}),
    ],
)
def test_patterns_are_the_shells(shelf: TestedCatalog, patterns: list[str], names: set[str]) -> None:
    catalog, shop = shelf(*patterns)
    assert set(catalog.types()) == names
    assert all("[" not in value for _, words in shop.said for one in words["Filters"] for value in one["Values"])


def test_an_offer_for_each_zone_that_has_a_subnet_and_the_type(shelf: TestedCatalog) -> None:
    catalog, shop = shelf("c5.large", "m5.large", subnets=["subnet-b", "subnet-a", "subnet-a2"])
    shop.subnets["subnet-a2"] = "zone-a"
    shop.not_sold = {("m5.large", "zone-a")}
    assert places(catalog) == {
        "zone-a/c5.large/on-demand", "zone-a/c5.large/spot", "zone-b/c5.large/on-demand", "zone-b/c5.large/spot",
        "zone-b/m5.large/on-demand", "zone-b/m5.large/spot",
    }  # fmt: skip
    assert [catalog.subnet(zone) for zone in ("zone-a", "zone-b", "zone-c")] == ["subnet-a", "subnet-b", None]


def test_spot_only_where_the_type_is_sold_so(shelf: TestedCatalog) -> None:
    catalog, _ = shelf("u-6tb1.56xlarge")
    assert {offer.spot for offer in catalog.offers()} == {False}


def test_the_price_has_its_source(shelf: TestedCatalog) -> None:
    catalog, shop = shelf("c5.large", spot_prices={})
    shop.history = [("c5.large", "zone-b", "0.0312", 900.0)]
    spot = [offer for offer in catalog.offers() if offer.spot]
    assert [(one.zone, one.price, one.price_source, one.price_at) for one in spot] == [
        ("zone-b", Decimal("0.0312"), "spot history", 900.0)
    ]
    assert catalog.unpriced() == ["c5.large"]


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ({}, "0"),
        ({"address_hour": "0.004"}, "0"),
        ({"public_address": True}, "0.005"),
        ({"public_address": True, "address_hour": "0.004"}, "0.004"),
        ({"public_address": True, "address_hour": "0.03", "currency": "CNY"}, "0.03"),
    ],
)
def test_a_public_address_is_in_the_price(shelf: TestedCatalog, more: dict[str, Any], address: str) -> None:
    catalog, _ = shelf("c5.large", **more)
    prices = {offer.spot: (offer.price, offer.address_price) for offer in catalog.offers()}
    assert prices == {
        spot: (Decimal(price) + Decimal(address), Decimal(address)) for spot, price in ((False, "1"), (True, "0.25"))
    }


def test_what_an_address_costs_in_another_currency_is_to_be_said() -> None:
    with pytest.raises(ValueError, match="public_address needs address_hour"):
        settings(public_address=True, currency="CNY")


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ({"instance_types": ["q1.large"]}, "no instance type like q1.large"),
        ({"prices": {}, "spot_prices": {}}, "set prices"),
        ({"prices": {}, "spot_prices": {}, "price_list": True}, "price list: no right to ask"),
        ({"subnets": ["subnet-c"]}, "zone-d"),
        ({"subnets": ["subnet-x", "subnet-y"]}, "none of subnet-x, subnet-y"),
    ],
)
def test_nothing_to_offer_with_what_to_do(shelf: TestedCatalog, more: dict[str, Any], remedy: str) -> None:
    catalog, shop = shelf("c5.large", **more)
    shop.subnets["subnet-c"] = "zone-d"
    shop.broken["get_products"] = AuthFailed("no right to ask")
    with pytest.raises(BadRequest, match=remedy):
        catalog.offers()


def reserved(zone: str = "zone-a", *, free: int = 2, state: str = "active", kind: str = "default") -> dict[str, Any]:
    return {
        "InstanceType": "p5.48xlarge", "AvailabilityZone": zone, "AvailableInstanceCount": free, "State": state,
        "ReservationType": kind, "TotalInstanceCount": 4,
    }  # fmt: skip


def test_a_reserved_type_is_offered_where_it_is_reserved_only(shelf: TestedCatalog) -> None:
    catalog, shop = shelf("p5.48xlarge", "c5.large", reservations=["cr-1", "cr-2", "cr-3"])
    shop.not_sold = {("p5.48xlarge", "zone-a")}
    shop.reservations = {"cr-1": reserved(free=1), "cr-2": reserved(free=3, kind="capacity-block"),
                         "cr-3": reserved(free=9, state="scheduled")}  # fmt: skip
    assert {place for place in places(catalog) if "p5" in place} == {"zone-a/p5.48xlarge/on-demand"}
    assert catalog.reservation("p5.48xlarge", "zone-a") == CapacityReservation("cr-2", "p5.48xlarge", "zone-a", True, 3)
    assert catalog.reservation("p5.48xlarge", "zone-b") is None
    assert catalog.reservation("c5.large", "zone-a") is None


def test_an_ended_reservation_does_not_let_its_type_out_to_the_market(shelf: TestedCatalog, clock: Clock) -> None:
    catalog, shop = shelf("p5.48xlarge", "c5.large", reservations=["cr-1", "cr-2"])
    shop.reservations = {"cr-1": reserved(), "cr-2": reserved("zone-b")}
    assert len([place for place in places(catalog) if "p5" in place]) == 2
    del shop.reservations["cr-1"]
    shop.reservations["cr-2"] = reserved("zone-b", state="expired")
    clock.now += 300
    assert not [place for place in places(catalog) if "p5" in place]
    ended = catalog.reservation("p5.48xlarge", "zone-a")
    assert ended
    assert not ended.open


def test_what_amazon_has_forgotten_keeps_nothing_else_back(shelf: TestedCatalog) -> None:
    catalog, shop = shelf("p5.48xlarge", subnets=["subnet-x", "subnet-b"], reservations=["cr-old", "cr-1"])
    shop.reservations = {"cr-1": reserved("zone-b")}
    assert places(catalog) == {"zone-b/p5.48xlarge/on-demand"}
    assert catalog.subnet("zone-a") is None


def test_answers_are_kept_for_hours_and_longer_where_amazon_is_silent(shelf: TestedCatalog, clock: Clock) -> None:
    catalog, shop = shelf("c5.large", "p5.48xlarge", reservations=["cr-1"])
    shop.reservations = {"cr-1": reserved()}
    first = catalog.offers()
    asked = len(shop.said)
    clock.now += 299
    assert catalog.offers() == first
    assert len(shop.said) == asked
    clock.now += 1
    catalog.offers()
    assert [operation for operation, _ in shop.said[asked:]] == ["describe_capacity_reservations"]
    clock.now += 6 * HOUR
    shop.broken = dict.fromkeys(("describe_subnets", "describe_instance_types"), CloudUnavailable("down"))
    assert catalog.offers() == first
    assert shop.count("describe_subnets") == shop.count("describe_instance_types") == 2
    catalog.offers()
    assert shop.count("describe_subnets") == 2


def test_without_a_first_answer_there_is_an_error(shelf: TestedCatalog) -> None:
    catalog, shop = shelf("c5.large")
    shop.broken["describe_instance_types"] = CloudUnavailable("down")
    with pytest.raises(CloudUnavailable):
        catalog.offers()
    shop.broken.clear()
    assert catalog.offers()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[AwsCalls, AwsCatalog]]:
    """By boto3, to the mock, with the rights of the policy that burstd ships and no more."""
    with Ec2Mock() as mock:
        account = mock.account()
        for name, value in mock.environment(mock.user(account, "mysite", policy_for("mysite"))).items():
            monkeypatch.setenv(name, value)
        of = settings(
            region=account.region, endpoint_url=mock.client_words(account)["endpoint_url"], page=5,
            subnets=list(account.subnets.values()), instance_types=["c5*.large", "p4d.*", "t[23]a.nano"],
        )  # fmt: skip
        made = AwsCalls(of)
        yield made, AwsCatalog("aws", of, made)
        made.close()


@pytest.mark.clouds
def test_by_boto3_in_pages(calls: tuple[AwsCalls, AwsCatalog]) -> None:
    made, catalog = calls
    offers = {offer.id: offer for offer in catalog.offers()}
    assert {offer.instance_type for offer in offers.values()} == {
        "c5.large", "c5a.large", "c5ad.large", "c5d.large", "c5n.large", "p4d.24xlarge", "t3a.nano",
    }  # fmt: skip
    assert {(offer.spot, offer.price_source) for offer in offers.values()} == {
        (False, "price list"), (True, "spot history"),
    }  # fmt: skip
    assert made.call_counts["describe_instance_types"] == 2
    assert made.call_counts["describe_instance_type_offerings"] > 2
    assert catalog.prices.failures == {}
