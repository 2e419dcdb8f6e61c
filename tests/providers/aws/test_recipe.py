from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.cloud.instance import TAG_BATCH, TAG_CLAIM, TAG_CLUSTER
from burstd.domain.errors import OutcomeUnknown
from burstd.domain.plugins.provider import LaunchRequest
from providers.aws import tags
from providers.aws.launch import template
from providers.aws.launch.recipe import LaunchRecipe
from tests.providers.aws.ec2 import CLUSTER, adapters, many, offer, prepared, request, settings, validate


@dataclass(frozen=True)
class Reservation:
    id: str = "cr-1"
    block: bool = False


def recipe(asked: LaunchRequest) -> LaunchRecipe:
    return LaunchRecipe.from_text(asked.recipe)


def tagged(found: LaunchRecipe, kind: str) -> dict[str, str]:
    (one,) = [spec for spec in found.words["TagSpecifications"] if spec["ResourceType"] == kind]
    return tags.from_aws(one["Tags"])


requests = st.lists(
    st.tuples(
        st.sampled_from(["c5.large", "m5.large"]), st.booleans(), st.sampled_from(["", "7", "8"]),
        st.sampled_from(["#cloud-config\n", "#!/bin/sh\n"]), st.integers(0, 2),
    ),
    max_size=24,
)  # fmt: skip


@given(requests, st.integers(1, 5))
def test_batches_are_a_function_of_what_is_asked(kinds: list[Any], size: int) -> None:
    """Every claim once, in one batch of those alike, in its order; again the same, letter for letter."""
    asked = []
    for number, (kind, spot, gang, user_data, others) in enumerate(kinds):
        more = tuple(offer(f"c{6 + n}i.large", "b", spot=spot) for n in range(others))
        one = request(f"c{number}", of=offer(kind, spot=spot), others=more, gang=gang, user_data=user_data)
        asked.append(one)
    found = prepared(*asked, of=settings(batch=size))
    assert found == prepared(*asked, of=settings(batch=size))
    assert [replace(one, batch="", recipe="") for one in found] == asked
    by_batch: dict[str, list[LaunchRequest]] = {}
    for one in found:
        by_batch.setdefault(one.batch, []).append(one)
    for batch, members in by_batch.items():
        assert len({(m.offer, m.others, m.gang, m.user_data, m.recipe) for m in members}) == 1
        assert recipe(members[0]).claims == tuple(m.claim_id for m in members)
        assert batch == members[0].claim_id
        assert recipe(members[0]).words["ClientToken"] == batch
        assert members[0].gang or len(members) <= size
        assert recipe(members[0]).to_text() == members[0].recipe
    gangs = [(m[0].gang, m[0].offer, m[0].others, m[0].user_data) for m in by_batch.values() if m[0].gang]
    assert len(gangs) == len(set(gangs)), "a gang is one call, whatever its size"


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("gang", ["", "job 7/1"])
def test_a_fleet_says_what_ec2_knows(*, spot: bool, gang: str) -> None:
    of = offer(spot=spot)
    others = (offer("m5.large", "b", spot=spot),)
    found = recipe(prepared(*many(3, of=of, others=others, gang=gang))[0])
    validate("create_fleet", found.words)
    assert found.operation == "create_fleet"
    assert found.words["Type"] == "instant"
    market = "SpotOptions" if spot else "OnDemandOptions"
    assert {"SpotOptions", "OnDemandOptions"} & set(found.words) == {market}
    options = found.words[market]
    whole = {"MinTargetCapacity": 3, "SingleAvailabilityZone": True}
    assert (whole.items() <= options.items()) is bool(gang)
    overrides = found.words["LaunchTemplateConfigs"][0]["Overrides"]
    assert [(o["InstanceType"], o["SubnetId"]) for o in overrides] == [
        ("c5.large", "subnet-a"),
        ("m5.large", "subnet-b"),
    ]
    assert [o.get("Priority") for o in overrides] == ([None, None] if spot else [0.0, 1.0])
    assert [o.get("Placement") for o in overrides] == [{"GroupName": "burstd-ours-job-7-1"} if gang else None] * 2
    assert found.gang == gang


def test_tags_of_the_settings_are_none_of_burstd_s() -> None:
    """A volume with the cluster's tag would be taken for a leftover."""
    with pytest.raises(ValueError, match="burstd's own"):
        settings(tags={TAG_CLUSTER: CLUSTER})


@pytest.mark.parametrize(("count", "claim"), [(1, "c000"), (2, None)])
def test_tags_say_what_is_true_of_all(count: int, claim: str | None) -> None:
    found = recipe(prepared(*many(count), of=settings(tags={"project": "x"}))[0])
    for kind in ("instance", "volume", "fleet"):
        said = tagged(found, kind)
        assert said.get(TAG_CLAIM) == claim
        assert said.get("burstd-slot") == (f"slot-{claim}" if claim else None)
        assert (said[TAG_CLUSTER], said[TAG_BATCH], said["burstd-pool"], said["project"]) == (
            CLUSTER,
            "c000",
            "cpu",
            "x",
        )
    assert tagged(found, "instance")[tags.NAME] == (f"ours-{claim}" if claim else "burstd-ours")
    (network,) = found.content["TagSpecifications"]
    assert (network["ResourceType"], tags.from_aws(network["Tags"])[TAG_CLUSTER]) == ("network-interface", CLUSTER)


def test_batches_of_a_kind_share_one_template() -> None:
    found = prepared(*many(5), of=settings(batch=2))
    assert len({one.batch for one in found}) == 3
    assert len({recipe(one).template for one in found}) == 1
    gangs = [prepared(request(f"c{gang}", gang=gang))[0] for gang in ("7", "8")]
    assert {recipe(one).template for one in gangs} == {recipe(found[0]).template}
    (other,) = prepared(request("c9", user_data="#cloud-config\n# another\n"))
    assert recipe(other).template != recipe(found[0]).template


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("gang", ["", "7"])
def test_a_reservation_is_launched_in_by_run_instances(*, block: bool, gang: str) -> None:
    asked = prepared(*many(3, gang=gang), reservation=Reservation(block=block))
    found = recipe(asked[0])
    validate("run_instances", found.words)
    words = found.words
    assert (found.operation, words["MinCount"], words["MaxCount"]) == ("run_instances", 3 if gang else 1, 3)
    target = words["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-1"}
    market = {"MarketType": "capacity-block"} if block else None
    assert words.get("InstanceMarketOptions") == market
    assert [n["SubnetId"] for n in words["NetworkInterfaces"]] == ["subnet-a"]
    assert "NetworkInterfaces" not in found.content
    assert found.gang == "", "a reservation outside a placement group cannot be used in one"
    assert tagged(found, "network-interface")[TAG_BATCH] == "c000"


def test_a_type_that_no_placement_group_takes() -> None:
    (one,) = prepared(request("c1", gang="7"), grouped=False)
    found = recipe(one)
    assert (found.gang, "Placement" in str(found.words)) == ("", False)


def test_round_trip() -> None:
    (one,) = prepared(request("c1", of=offer(spot=True), gang="7"), efa=adapters(4))
    found = recipe(one)
    assert LaunchRecipe.from_text(found.to_text()) == found
    assert json.loads(one.recipe)["claims"] == ["c1"]


def test_a_recipe_of_another_burstd() -> None:
    """Of one before there were versions, and of one that knows more."""
    (one,) = prepared(request("c1"))
    said = json.loads(one.recipe)
    older = {key: value for key, value in said.items() if key not in ("version", "gang", "zones")}
    assert LaunchRecipe.from_text(json.dumps(older)) == replace(recipe(one), zones={})
    assert LaunchRecipe.from_text(json.dumps({**said, "new": 1})) == recipe(one)


@pytest.mark.parametrize("text", ["", "[]", '{"claims":["c1"]}', '{"version":2}', '{"version":"x"}', '{"claims":3}'])
def test_a_recipe_that_nobody_can_read_leaves_the_outcome_open(text: str) -> None:
    with pytest.raises(OutcomeUnknown):
        LaunchRecipe.from_text(text)


@pytest.mark.parametrize(
    ("efa", "public", "places"),
    [
        (0, False, [("interface", 0, 0)]),
        (0, True, [("interface", 0, 0)]),
        (1, True, [("efa", 0, 0)]),
        (4, False, [("efa", 0, 0), ("efa-only", 1, 0), ("efa-only", 2, 0), ("efa-only", 3, 0)]),
        (4, True, [("efa", 0, 0)]),
    ],
)
def test_adapters(*, efa: int, public: bool, places: list[tuple[str, int, int]]) -> None:
    """One for each card; Amazon takes no word about public addresses where there are several."""
    found = template.network_interfaces(settings(public_address=public), adapters(efa))
    said = [(n.get("InterfaceType", "interface"), n.get("NetworkCardIndex", 0), n["DeviceIndex"]) for n in found]
    assert said == places
    assert [n.get("AssociatePublicIpAddress") for n in found] == ([public] if len(found) == 1 else [None] * len(found))
    assert all(n["Groups"] == ["sg-1"] and n["DeleteOnTermination"] for n in found)
