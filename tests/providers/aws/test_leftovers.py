"""What is found and removed without a machine: ours only, unused only, in few calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Leftover
from burstd.domain.errors import BadRequest, CloudUnavailable, NotAllowed, NotFound, ProviderError, RateLimited
from providers.aws.launch.placement_groups import TAG_MADE
from providers.aws.leftovers import AwsLeftovers
from tests.providers.aws.ec2 import CLUSTER, Answer, FakeEc2, settings

NOW = 1_800_000_000.0
HOUR = 3600.0
LISTS = {
    "describe_volumes": ("Volumes", "VolumeId", "volume-id", 500),
    "describe_network_interfaces": ("NetworkInterfaces", "NetworkInterfaceId", "network-interface-id", 1000),
    "describe_launch_templates": ("LaunchTemplates", "LaunchTemplateName", "launch-template-name", 200),
    "describe_spot_instance_requests":
        ("SpotInstanceRequests", "SpotInstanceRequestId", "spot-instance-request-id", 1000),
    "describe_placement_groups": ("PlacementGroups", "GroupName", "group-name", 0),
}  # fmt: skip
ENDS = (
    "delete_volume", "delete_network_interface", "delete_launch_template", "delete_placement_group",
    "cancel_spot_instance_requests",
)  # fmt: skip
Thing = dict[str, Any]


def tags(cluster: str = CLUSTER, **more: str) -> list[dict[str, str]]:
    said = {TAG_CLUSTER: cluster, **({TAG_CLAIM: more["claim"]} if "claim" in more else {})}
    if "made" in more:
        said[TAG_MADE] = more["made"]
    return [{"Key": key, "Value": value} for key, value in said.items()]


def volume(number: int = 1, state: str = "available", of: str = CLUSTER, claim: str = "c1") -> Thing:
    return {"VolumeId": f"vol-{number}", "State": state, "Tags": tags(of, claim=claim)}


def interface(number: int = 1, status: str = "available", of: str = CLUSTER) -> Thing:
    return {"NetworkInterfaceId": f"eni-{number}", "Status": status, "TagSet": tags(of)}


def spot(number: int = 1, state: str = "active", machine: str = "i-1") -> Thing:
    words = {"InstanceId": machine} if machine else {}
    return {"SpotInstanceRequestId": f"sir-{number}", "State": state, "Tags": tags(), **words}


def template(name: str, age: float = 2 * HOUR) -> Thing:
    return {"LaunchTemplateName": name, "CreateTime": datetime.fromtimestamp(NOW - age, UTC), "Tags": tags()}


def group(name: str, made: str = str(int(NOW - 2 * HOUR)), state: str = "available") -> Thing:
    return {"GroupName": name, "State": state, "Tags": tags(made=made)}


class Account(FakeEc2):
    """Holds these things, gives them in pages of three, and heeds filters for ids only."""

    def __init__(self, *things: Thing) -> None:
        answers: dict[str, list[Answer]] = {one: [partial(self._list, one)] for one in LISTS}
        answers |= {one: [self._end] for one in ENDS}
        super().__init__(describe_instances=[self._alive], **answers)
        self.things = list(things)
        self.machines: list[Thing] = []
        self.errors: dict[str, ProviderError] = {}
        """By the id of what is to be removed."""
        self.removed: list[str] = []

    def _list(self, operation: str, words: Mapping[str, Any]) -> Mapping[str, Any]:
        key, word, by, most = LISTS[operation]
        assert words.get("MaxResults", 0) == min(most, 1000)
        given = {one["Name"]: one["Values"] for one in words["Filters"]}
        assert sum(map(len, given.values())) <= 200
        found = [one for one in self.things if word in one and one[word] in given.get(by, [one[word]])]
        if not most:
            return {key: found}
        start = int(words.get("NextToken", 0))
        return {key: found[start : start + 3], **({"NextToken": str(start + 3)} if start + 3 < len(found) else {})}

    def _alive(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {one["Name"]: one["Values"] for one in words["Filters"]}
        assert sum(map(len, given.values())) <= 200
        assert "terminated" not in given["instance-state-name"]
        assert "shutting-down" in given["instance-state-name"]
        names = given.get("placement-group-name")
        found = [one for one in self.machines if names is None or one["Placement"]["GroupName"] in names]
        return {"Reservations": [{"Instances": found}]}

    def _end(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        ((_, asked),) = words.items()
        for one in asked if isinstance(asked, list) else [asked]:
            if one in self.errors:
                raise self.errors[one]
            self.removed.append(one)
        return {}


def leftovers(account: Account, used: tuple[str, ...] = ()) -> AwsLeftovers:
    of = settings(unused_s=HOUR)
    return AwsLeftovers("aws", CLUSTER, of, account, lambda name: name in used, lambda: NOW)


def listed(account: Account, used: tuple[str, ...] = ()) -> list[str]:
    return [one.id for one in leftovers(account, used).list_leftovers()]


def left(*ids: str) -> Iterator[Leftover]:
    kinds = {"vol": "volume", "eni": "network-interface", "sir": "spot-instances-request", "lt": "launch-template"}
    return (Leftover(kinds.get(one.partition("-")[0], "placement-group"), one, "aws", "") for one in ids)


def test_what_nobody_uses_is_listed_with_its_claim() -> None:
    account = Account(volume(1), volume(2, "error", claim=""), interface(3))
    assert list(leftovers(account).list_leftovers()) == [
        Leftover("volume", "vol-1", "aws", "c1"),
        Leftover("volume", "vol-2", "aws", ""),
        Leftover("network-interface", "eni-3", "aws", ""),
    ]


@pytest.mark.parametrize(
    "thing",
    [
        volume(state="in-use"), volume(state="creating"), volume(state="deleting"), volume(of=f"{CLUSTER}2"),
        volume(of=CLUSTER.upper()), interface(status="in-use"), interface(of=f" {CLUSTER}"), spot(state="cancelled"),
        spot(state="closed"), group("g", state="deleting"), {"VolumeId": "vol-1", "State": "available"},
    ],
)  # fmt: skip
def test_what_is_in_use_gone_or_not_ours_is_not(thing: Thing) -> None:
    assert listed(Account(thing)) == []


def test_spot_requests_whose_machine_is_gone() -> None:
    account = Account(spot(1), spot(2, machine="i-2"), spot(3, "open", ""), spot(4, machine="i-4"))
    account.machines = [{"InstanceId": "i-1"}, {"InstanceId": "i-4"}]
    assert listed(account) == ["sir-2", "sir-3"]
    assert account.count("describe_instances") == 1


def test_templates_that_are_old_and_not_used() -> None:
    account = Account(template("old"), template("new", HOUR - 1), template("used"), template("just", HOUR))
    del account.things[0]["Tags"]
    account.things += [template("oldest", 90 * HOUR), {"LaunchTemplateName": "ageless", "Tags": tags()}]
    assert listed(account, used=("used",)) == ["just", "oldest"]


def test_placement_groups_that_are_old_and_empty() -> None:
    young = str(int(NOW - HOUR + 60))
    ahead, far = (str(int(NOW + seconds)) for seconds in (60, 2 * HOUR))
    account = Account(
        group("old"), group("young", young), group("at work"), group("odd", "yesterday"), group("ahead", ahead),
        group("far ahead", far), group("untold"),
    )  # fmt: skip
    account.things[-1]["Tags"] = tags()
    account.machines = [{"InstanceId": "i-1", "Placement": {"GroupName": "at work"}}, {"Placement": {"GroupName": ""}}]
    assert listed(account) == ["old", "odd", "far ahead", "untold"]
    assert account.count("describe_instances") == 1


def test_calls_grow_with_pages_and_not_with_things() -> None:
    account = Account(*map(volume, range(30)), *(group(f"g{n}") for n in range(30)), *map(spot, range(30)))
    assert len(listed(account)) == 90
    assert account.count("describe_volumes") == account.count("describe_spot_instance_requests") == 10
    assert account.count("describe_placement_groups") == 1
    assert account.count("describe_instances") == 2
    assert account.count("describe_network_interfaces") == account.count("describe_launch_templates") == 1


def test_more_placement_groups_than_a_filter_takes() -> None:
    account = Account(*(group(f"g{n}") for n in range(200)))
    account.machines = [{"InstanceId": "i-1", "Placement": {"GroupName": "g199"}}]
    assert listed(account) == [f"g{n}" for n in range(199)]


def test_a_page_that_fails_is_no_end_of_the_list() -> None:
    account = Account(volume())
    account._responses["describe_launch_templates"] = [CloudUnavailable("down")]
    with pytest.raises(CloudUnavailable):
        listed(account)


def test_where_there_are_no_groups_no_right_to_look_for_them_is_needed() -> None:
    account = Account(volume(1), group("old"))
    without = AwsLeftovers("aws", CLUSTER, settings(placement_groups=False), account, lambda _: False, lambda: NOW)
    assert [one.id for one in without.list_leftovers()] == ["vol-1", "old"]
    account._responses["describe_placement_groups"] = [NotAllowed("no right")]
    assert [one.id for one in without.list_leftovers()] == ["vol-1"]
    with pytest.raises(NotAllowed):
        listed(account)


def test_all_kinds_are_removed() -> None:
    account = Account(volume(1), interface(2), spot(3), spot(4), template("lt-5"), group("g-6"))
    leftovers(account).remove(list(left("g-6", "sir-4", "vol-1", "lt-5", "eni-2", "sir-3", "vol-gone", "lt-gone")))
    assert sorted(account.removed) == ["eni-2", "g-6", "lt-5", "sir-3", "sir-4", "vol-1"]
    assert account.count("cancel_spot_instance_requests") == 1


def test_nothing_is_removed_where_one_is_not_ours() -> None:
    account = Account(*map(volume, range(5)), interface(6, of="other"), group("g-7"))
    account.things[4]["Tags"] = []
    with pytest.raises(BadRequest) as error:
        leftovers(account).remove(list(left("vol-0", "vol-4", "eni-6", "g-7")))
    assert "volume vol-4, network-interface eni-6" in str(error.value)
    assert "vol-0" not in str(error.value)
    assert account.removed == []


def test_an_id_that_is_a_pattern_touches_nothing_else() -> None:
    account = Account(volume(1))
    account._responses["describe_volumes"] = [{"Volumes": [volume(1), volume(2, of="other")]}]
    leftovers(account).remove(list(left("vol-*")))
    assert account.removed == []


def test_an_unknown_kind_is_refused() -> None:
    account = Account(volume(1))
    with pytest.raises(BadRequest, match="bucket"):
        leftovers(account).remove([*left("vol-1"), Leftover("bucket", "b-1", "aws", "")])
    assert account.said == []


def test_a_template_that_a_launch_needs_by_now_is_left_alone() -> None:
    account = Account(template("lt-1"), template("lt-2"), template("lt-3", 60.0))
    leftovers(account, used=("lt-2",)).remove(list(left("lt-1", "lt-2", "lt-3")))
    assert account.removed == ["lt-1"]


def test_many_are_looked_up_by_parts_and_one_in_use_keeps_no_other() -> None:
    account = Account(*map(volume, range(250)))
    account.errors = {"vol-7": BadRequest("in use (VolumeInUse)"), "vol-9": NotFound("gone (InvalidVolume.NotFound)")}
    with pytest.raises(BadRequest, match="VolumeInUse"):
        leftovers(account).remove(list(left(*(f"vol-{n}" for n in range(250)))))
    assert set(account.removed) == {f"vol-{n}" for n in range(250)} - {"vol-7", "vol-9"}


def test_too_many_calls_are_not_made_more() -> None:
    account = Account(*map(volume, range(9)), interface(1))
    account.errors = {f"vol-{n}": RateLimited("slow down") for n in range(9)}
    with pytest.raises(RateLimited):
        leftovers(account).remove(list(left(*(f"vol-{n}" for n in range(9)), "eni-1")))
    assert account.count("delete_volume") == 1
    assert account.removed == ["eni-1"]
