from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_CLUSTER, Instance, InstanceState
from burstd.domain.errors import (
    AuthFailed,
    ClientTokenSpent,
    CloudUnavailable,
    InsufficientCapacity,
    NoSuchImage,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchOutcome
from providers.aws import tags
from providers.aws.errors import AwsAlreadyExists, error_for_code
from providers.aws.launch.launch import InstanceLauncher
from providers.aws.launch.placement_groups import TAG_GANG, TAG_MADE, PlacementGroups
from providers.aws.launch.template import LaunchTemplates
from tests.providers.aws.ec2 import CLUSTER, FakeEc2, adapters, fleet, many, offer, prepared, refusal, request, settings
from tests.providers.aws.test_recipe import Reservation

OTHERS = (offer("m5.large", "a"), offer("c5.large", "b"))
GONE = NotFound("the template is not there")


def launching(ec2: FakeEc2) -> InstanceLauncher:
    templates = LaunchTemplates(CLUSTER, settings(), ec2)
    return InstanceLauncher(
        "aws", CLUSTER, settings(settle_s=30), ec2, templates, PlacementGroups(CLUSTER, settings(), ec2), lambda: 1000.0
    )


def ids(outcomes: Mapping[str, LaunchOutcome]) -> dict[str, str]:
    return {claim: o.result.id if isinstance(o.result, Instance) else o.result.cause for claim, o in outcomes.items()}


def error(outcomes: Mapping[str, LaunchOutcome]) -> ProviderError:
    """That which all have."""
    found = [o.result for o in outcomes.values()]
    assert isinstance(found[0], ProviderError)
    assert len({(type(one), str(one)) for one in found}) == 1
    return found[0]


def test_each_claim_has_its_place() -> None:
    """Whatever the order of the answer, of the requests, and however many of them are asked for again."""
    asked = prepared(*many(3, others=OTHERS))
    ec2 = FakeEc2(create_fleet=[fleet])
    whole = {"c000": "i-000", "c001": "i-001", "c002": "i-002"}
    assert ids(launching(ec2).launch_batches(asked)) == whole
    again = launching(ec2).launch_batches([asked[2], asked[1], asked[2]])
    assert ids(again) == {claim: whole[claim] for claim in ("c001", "c002")}
    first, second = [words for operation, words in ec2.said if operation == "create_fleet"]
    assert first == second, "the same call, word for word"


def test_what_an_outcome_says() -> None:
    (asked,) = prepared(request("c1", others=OTHERS))
    found = launching(FakeEc2(create_fleet=[lambda words: fleet(words, place=2)])).launch_batches([asked])["c1"]
    assert isinstance(found.result, Instance)
    made = found.result
    assert found.offer == OTHERS[1]
    assert (made.state, made.claim_id, made.batch, made.name) == (InstanceState.PENDING, "c1", "c1", "ours-c1")
    assert (made.instance_type, made.zone, made.spot, made.launched, made.address) == (
        "c5.large",
        "b",
        False,
        1000.0,
        "",
    )
    found = launching(FakeEc2(create_fleet=[fleet])).launch_batches([asked])["c1"]
    assert found.offer is None


REFUSALS = [
    (["InsufficientInstanceCapacity"], InsufficientCapacity),
    (["UnfulfillableCapacity"], InsufficientCapacity),
    (["Unsupported"], InsufficientCapacity),
    (["VcpuLimitExceeded"], QuotaExceeded),
    (["MaxSpotInstanceCountExceeded"], QuotaExceeded),
    (["RequestLimitExceeded"], ClientTokenSpent),
    (["RequestLimitExceeded", "InsufficientInstanceCapacity"], InsufficientCapacity),
    (["InvalidAMIID.NotFound"], NoSuchImage),
    (["InvalidSubnetID.NotFound"], InsufficientCapacity),
    (["UnauthorizedOperation"], NotAllowed),
    (["AuthFailure"], AuthFailed),
    (["ServiceUnavailable"], CloudUnavailable),
    (["InvalidLaunchTemplateName.NotFoundException"], ClientTokenSpent),
    (["InternalError"], CloudUnavailable),
]


@pytest.mark.parametrize(("codes", "kind"), REFUSALS, ids=["+".join(codes) for codes, _ in REFUSALS])
def test_why_a_fleet_is_empty(codes: list[str], kind: type[ProviderError]) -> None:
    ec2 = FakeEc2(create_fleet=[{"Instances": [], "Errors": [refusal(code) for code in codes]}])
    assert type(error(launching(ec2).launch_batches(prepared(*many(2))))) is kind


def test_a_template_that_a_fleet_did_not_see_is_made_again() -> None:
    missing = {"Errors": [refusal("InvalidLaunchTemplateName.NotFoundException")]}
    ec2 = FakeEc2(create_fleet=[missing, fleet])
    launcher = launching(ec2)
    launcher.launch_batches(prepared(request("c1")))
    launcher.launch_batches(prepared(request("c2")))
    assert ec2.count("create_launch_template") == 2


def test_the_error_of_the_own_offer_counts() -> None:
    """Others are told as warnings, once for the batch."""
    said = [refusal("VcpuLimitExceeded", "m5.large"), refusal("InsufficientInstanceCapacity")]
    asked = prepared(*many(2, others=OTHERS))
    found = launching(FakeEc2(create_fleet=[{"Errors": said}])).launch_batches(asked)
    assert isinstance(error(found), InsufficientCapacity)
    warned = {o.id: type(e) for o, e in found["c000"].warnings}
    assert warned == {OTHERS[0].id: QuotaExceeded, asked[0].offer.id: InsufficientCapacity}
    assert found["c001"].warnings == ()


def test_a_fleet_that_is_short_leaves_out_the_last() -> None:
    def short(words: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**fleet(words, of=2), "Errors": [refusal("InsufficientInstanceCapacity")]}

    asked = prepared(*many(3, others=OTHERS))
    found = launching(FakeEc2(create_fleet=[short])).launch_batches(asked)
    assert ids(found) == {"c000": "i-000", "c001": "i-001", "c002": "capacity"}
    assert [o.id for o, _ in found["c000"].warnings] == [asked[0].offer.id]
    without_reason = launching(FakeEc2(create_fleet=[lambda words: fleet(words, of=2)])).launch_batches(asked)
    assert isinstance(without_reason["c002"].result, InsufficientCapacity)


def test_errors_beside_success_are_warnings() -> None:
    """Throttling is none: it says nothing of an offer."""
    errors = [refusal("RequestLimitExceeded"), refusal("InsufficientInstanceCapacity", "m5.large")]
    ec2 = FakeEc2(create_fleet=[lambda words: {**fleet(words), "Errors": errors}])
    found = launching(ec2).launch_batches(prepared(*many(2, others=OTHERS)))
    assert ids(found) == {"c000": "i-000", "c001": "i-001"}
    assert [(o.id, e.cause) for o, e in found["c000"].warnings] == [(OTHERS[0].id, "capacity")]


@pytest.mark.parametrize(
    ("launched", "found"),
    [
        ([], ["unknown", "unknown"]),
        ([999.0, 990.0], ["i-0", "i-1"]),
        ([999.0], ["unknown", "unknown"]),
        ([970.0], ["i-0", "capacity"]),
    ],
)
def test_a_repeat_that_names_no_machines(launched: list[float], found: list[str]) -> None:
    """They are found by the batch's tag, once all of them would show."""

    def listed(words: Mapping[str, Any]) -> Mapping[str, Any]:
        assert {one["Name"]: one["Values"] for one in words["Filters"]} == {
            "tag:burstd-cluster": [CLUSTER], "tag:burstd-batch": ["c000"],
        }  # fmt: skip
        one = {"InstanceType": "c5.large", "Placement": {"AvailabilityZone": "a"}}
        times = [datetime.fromtimestamp(at, UTC) for at in launched]
        return {
            "Reservations": [
                {"Instances": [{**one, "InstanceId": f"i-{n}", "LaunchTime": t}]} for n, t in enumerate(times)
            ]
        }

    ec2 = FakeEc2(create_fleet=[{"FleetId": "fleet-1"}], describe_instances=[listed])
    assert list(ids(launching(ec2).launch_batches(prepared(*many(2)))).values()) == found


def shown(*machines: tuple[str, float, str]) -> Mapping[str, Any]:
    """DescribeInstances' answer: id, time of launch, state."""
    one = {"InstanceType": "c5.large", "Placement": {"AvailabilityZone": "a"}}
    made = [
        {**one, "InstanceId": name, "LaunchTime": datetime.fromtimestamp(at, UTC), "State": {"Name": state}}
        for name, at, state in machines
    ]
    return {"Reservations": [{"Instances": [each]} for each in made]}


def test_a_repeat_that_names_errors_only_still_finds_its_machines() -> None:
    """And what has ended keeps its place: another claim's machine is not given twice."""
    only_errors = {"Instances": [], "Errors": [refusal("RequestLimitExceeded")]}
    listed = shown(("i-2", 900, "running"), ("i-1", 900, "terminated"), ("i-3", 900, "shutting-down"))
    ec2 = FakeEc2(create_fleet=[only_errors], describe_instances=[listed])
    found = launching(ec2).launch_batches(prepared(*many(3)))
    assert ids(found) == {"c000": "rate", "c001": "i-2", "c002": "rate"}
    assert {type(found[claim].result) for claim in ("c000", "c002")} == {ClientTokenSpent}
    assert ec2.count("describe_instances") == 1


def test_what_cannot_be_looked_for_is_unknown() -> None:
    ec2 = FakeEc2(create_fleet=[{"Errors": [refusal("RequestLimitExceeded")]}], describe_instances=[RateLimited("no")])
    assert type(error(launching(ec2).launch_batches(prepared(*many(2))))) is OutcomeUnknown


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (shown(), ["rate", "rate"]),
        (shown(("i-1", 900, "terminated"), ("i-2", 900, "terminated")), ["rate", "rate"]),
        (shown(("i-1", 900, "terminated"), ("i-2", 900, "running")), ["rate", "i-2"]),
    ],
)
def test_a_token_whose_machines_have_ended_rests_no_type(listed: Mapping[str, Any], found: list[str]) -> None:
    """Nor does it hold up other batches."""
    ended = error_for_code("IdempotentInstanceTerminated", "no", 400, OutcomeUnknown)
    ec2 = FakeEc2(run_instances=[ended], describe_instances=[listed])
    outcomes = launching(ec2).launch_batches(prepared(*many(2), reservation=Reservation()))
    assert list(ids(outcomes).values()) == found
    assert {type(o.result) for o in outcomes.values()} <= {ClientTokenSpent, Instance}
    several = prepared(*many(40), reservation=Reservation(), of=settings(batch=1))
    assert {type(o.result) for o in launching(FakeEc2(run_instances=[ended])).launch_batches(several).values()} == {
        ClientTokenSpent
    }


def test_a_strange_answer_costs_no_other_batch_its_outcomes() -> None:
    asked = prepared(*many(4), of=settings(batch=2))

    def answer(words: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"Instances": [{"InstanceIds": 7}]} if words["ClientToken"] == "c000" else fleet(words)

    found = launching(FakeEc2(create_fleet=[answer])).launch_batches(asked)
    assert [type(found[one.claim_id].result) for one in asked] == [OutcomeUnknown, OutcomeUnknown, Instance, Instance]


@pytest.mark.parametrize("kind", [RateLimited, OutcomeUnknown, AuthFailed, CloudUnavailable])
def test_a_call_that_failed_failed_for_its_batch_alone(kind: type[ProviderError]) -> None:
    """But once calls are too many, what was not asked is not asked."""
    asked = prepared(*many(10, others=OTHERS), of=settings(batch=2))

    def answer(words: Mapping[str, Any]) -> Mapping[str, Any]:
        if words["ClientToken"] == "c000":
            raise kind("no")
        return fleet(words)

    found = launching(FakeEc2(create_fleet=[answer])).launch_batches(asked)
    assert {type(found[claim].result) for claim in ("c000", "c001")} == {kind}
    rest = [found[one.claim_id].result for one in asked[2:]]
    assert all(isinstance(one, Instance) or (kind is RateLimited and type(one) is RateLimited) for one in rest)


def test_a_throttled_call_stops_the_others() -> None:
    ec2 = FakeEc2(create_fleet=[RateLimited("slow down")])
    asked = prepared(*many(100), of=settings(batch=1))
    assert {type(o.result) for o in launching(ec2).launch_batches(asked).values()} == {RateLimited}
    assert ec2.count("create_fleet") <= 4


def test_what_was_removed_meanwhile_is_made_again() -> None:
    """By another process, from the recipe alone, and the call goes out again word for word."""
    asked = prepared(*many(2, gang="7"))
    ec2 = FakeEc2(create_fleet=[GONE, fleet], create_placement_group=[AwsAlreadyExists("there"), {}])
    assert ids(launching(ec2).launch_batches(asked)) == {"c000": "i-000", "c001": "i-001"}
    assert [operation for operation, _ in ec2.said] == [
        "create_launch_template", "create_placement_group", "create_fleet",
    ] * 2  # fmt: skip
    assert isinstance(error(launching(FakeEc2(create_fleet=[GONE])).launch_batches(asked)), CloudUnavailable)


def test_a_gang_gets_its_group_and_its_adapters() -> None:
    ec2 = FakeEc2(create_fleet=[fleet])
    launching(ec2).launch_batches(prepared(*many(2, gang="7"), efa=adapters(4)))
    (template, group, call) = [words for _, words in ec2.said]
    assert len(template["LaunchTemplateData"]["NetworkInterfaces"]) == 4
    (override,) = call["LaunchTemplateConfigs"][0]["Overrides"]
    assert override["Placement"] == {"GroupName": group["GroupName"]}
    said = tags.from_aws(group["TagSpecifications"][0]["Tags"])
    assert said == {TAG_CLUSTER: CLUSTER, TAG_GANG: "7", TAG_MADE: said[TAG_MADE]}
    assert group["Strategy"] == "cluster"


def test_a_reservation_tells_addresses() -> None:
    def run(words: Mapping[str, Any]) -> Mapping[str, Any]:
        one = {"InstanceType": words["InstanceType"], "Placement": {"AvailabilityZone": "a"}}
        return {"Instances": [{**one, "InstanceId": f"i-{n}", "PrivateIpAddress": f"10.0.0.{n}"} for n in (2, 1)]}

    found = launching(FakeEc2(run_instances=[run])).launch_batches(prepared(*many(3), reservation=Reservation()))
    made = [o.result for o in found.values()]
    assert [one.address for one in made if isinstance(one, Instance)] == ["10.0.0.1", "10.0.0.2"]
    assert isinstance(made[2], InsufficientCapacity)
