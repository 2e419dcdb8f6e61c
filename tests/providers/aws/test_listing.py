"""Instances in Amazon's words and in ours, and consoles that are not asked for too often."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_BATCH, TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.errors import BadRequest, CloudUnavailable, NotFound
from providers.aws import listing
from providers.aws.listing import InstanceListing
from tests.providers.aws.ec2 import CLUSTER, Answer, FakeEc2, settings

BORN = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def tagged(**tags: str) -> list[dict[str, str]]:
    return [{"Key": f"burstd-{key}", "Value": value} for key, value in {"cluster": CLUSTER, **tags}.items()]


def listed(*said: Mapping[str, Any], pages: int = 1) -> list[Instance]:
    size = len(said) // pages
    page_responses: list[Answer] = [
        {"Reservations": [{"Instances": said[n : n + size]}], "NextToken": str(n)}
        for n in range(0, len(said) - size, size)
    ]
    ec2 = FakeEc2(describe_instances=[*page_responses, {"Reservations": [{}, {"Instances": said[-size:]}]}])
    found = list(InstanceListing("aws", CLUSTER, settings(page=7), ec2).instances())
    assert ec2.count("describe_instances") == pages
    assert all(words["MaxResults"] == 7 for _, words in ec2.said)
    return found


def test_a_machine_in_all_its_words() -> None:
    said = {
        "InstanceId": "i-1", "State": {"Name": "running"}, "InstanceType": "c5.large", "PrivateIpAddress": "10.0.0.1",
        "Placement": {"AvailabilityZone": "eu-central-1a"}, "LaunchTime": BORN, "InstanceLifecycle": "spot",
        "StateReason": {"Code": "pending", "Message": "pending"},
        "Tags": [*tagged(claim="c1", batch="b1"), {"Key": "Name", "Value": "ours-c1"}],
    }  # fmt: skip
    tags = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: "c1", TAG_BATCH: "b1", "Name": "ours-c1"}
    assert listed(said) == [
        Instance(
            "i-1", "aws", InstanceState.RUNNING, "c1", tags, "ours-c1", "eu-central-1a", "c5.large", True, "10.0.0.1",
            BORN.timestamp(), "", "b1",
        )
    ]  # fmt: skip


def test_what_is_missing_is_empty() -> None:
    bare = Instance("i-1", "aws", InstanceState.UNKNOWN, "", {TAG_CLUSTER: CLUSTER})
    assert listed({"InstanceId": "i-1", "Tags": tagged()}) == [bare]


@pytest.mark.parametrize("cluster", ["ours2", "OURS", " ours", "our", "ourss", ""])
def test_a_filter_that_takes_too_much_shows_no_neighbour(cluster: str) -> None:
    theirs = {"InstanceId": "i-1", "Tags": [{"Key": TAG_CLUSTER, "Value": cluster}]}
    assert listed(theirs, {"InstanceId": "i-2"}, {"InstanceId": "i-3", "Tags": []}) == []


def test_pages() -> None:
    many = [{"InstanceId": f"i-{number}", "Tags": tagged()} for number in range(6)]
    assert [one.id for one in listed(*many, pages=3)] == [one["InstanceId"] for one in many]


@pytest.mark.parametrize(
    ("state", "code", "found", "error"),
    [
        ("pending", "pending", InstanceState.PENDING, ""),
        ("running", "Client.UserInitiatedShutdown", InstanceState.RUNNING, ""),
        ("shutting-down", "Server.SpotInstanceTermination", InstanceState.STOPPING, "told"),
        ("terminated", "Server.SpotInstanceTermination", InstanceState.TERMINATED, "told"),
        ("terminated", "Client.VolumeLimitExceeded", InstanceState.TERMINATED, "told"),
        ("terminated", "Client.InstanceInitiatedShutdown", InstanceState.TERMINATED, "told"),
        ("terminated", "Client.UserInitiatedShutdown", InstanceState.TERMINATED, ""),
        ("terminated", "", InstanceState.TERMINATED, ""),
        ("stopping", "Client.UserInitiatedShutdown", InstanceState.ERROR, "told"),
        ("stopped", "Server.SpotInstanceShutdown", InstanceState.ERROR, "told"),
        ("rebooting", "", InstanceState.UNKNOWN, ""),
    ],
)
def test_states_and_reasons(state: str, code: str, found: InstanceState, error: str) -> None:
    reason = {"StateReason": {"Code": code, "Message": "told"}} if code else {}
    (one,) = listed({"InstanceId": "i-1", "State": {"Name": state}, "Tags": tagged(), **reason})
    assert (one.state, one.error) == (found, error)


@pytest.mark.parametrize("lifecycle", ["scheduled", "capacity-block", "interruptible-capacity-reservation"])
def test_other_lifecycles_are_not_spot(lifecycle: str) -> None:
    assert not listed({"InstanceId": "i-1", "InstanceLifecycle": lifecycle, "Tags": tagged()})[0].spot


@pytest.mark.parametrize(
    "attached",
    [
        {"NetworkInterfaces": [{}, {"Attachment": {"AttachTime": LATER}}, {"Attachment": {"AttachTime": BORN}}]},
        {"BlockDeviceMappings": [{"Ebs": {"AttachTime": BORN}}, {}]},
    ],
)
def test_a_start_after_a_stop_makes_a_machine_no_younger(attached: dict[str, Any]) -> None:
    (one,) = listed({"InstanceId": "i-1", "LaunchTime": LATER, "Tags": tagged(), **attached})
    assert one.launched == BORN.timestamp()


class Consoles:
    """A listing on a clock that is moved by hand."""

    def __init__(self, *answers: Answer) -> None:
        self.now = 50.0
        self.ec2 = FakeEc2(get_console_output=list(answers))
        self.console = InstanceListing("aws", CLUSTER, settings(), self.ec2, lambda: self.now).console

    @property
    def calls(self) -> int:
        return self.ec2.count("get_console_output")


def test_a_console_is_asked_for_once_in_a_few_seconds() -> None:
    world = Consoles({"InstanceId": "i-1"}, {"Output": "keys"}, {"Output": "of another"}, {"Output": "more"})
    assert [world.console("i-1") for _ in range(3)] == [""] * 3
    world.now += 5
    assert [world.console("i-1") for _ in range(3)] == ["keys"] * 3
    assert world.console("i-2") == "of another"
    world.now += 4.9
    assert world.console("i-1") == "keys"
    assert world.calls == 3
    world.now += 0.1
    assert world.console("i-1") == "more"


def test_answers_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_CONSOLES", 3)
    world = Consoles({"Output": "keys"})
    for number in range(5):
        world.console(f"i-{number}")
    assert world.calls == 5
    assert world.console("i-4") == world.console("i-2") == "keys"
    assert world.calls == 5
    assert world.console("i-0") == "keys"
    assert world.calls == 6


def test_a_type_without_the_latest_output_gives_what_there_is() -> None:
    world = Consoles(BadRequest("only on Nitro (UnsupportedOperation)"), {"Output": "old"})
    assert world.console("i-1") == "old"
    assert [words.get("Latest") for _, words in world.ec2.said] == [True, None]


@pytest.mark.parametrize("error", [NotFound("no such"), CloudUnavailable("down")])
def test_an_error_is_no_answer_to_be_kept(error: Exception) -> None:
    world = Consoles(error, {"Output": "keys"})  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        world.console("i-1")
    assert world.console("i-1") == "keys"
