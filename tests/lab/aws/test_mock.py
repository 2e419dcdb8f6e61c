"""The mock does what EC2 does where the provider's tests rest on it, and moto alone does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.lab.aws.iam import Need, Policy
from tests.lab.aws.mock import Account, Ec2Mock, policy_for

pytestmark = pytest.mark.clouds

TAGS = [{"Key": "burstd-cluster", "Value": "ours"}]


@pytest.fixture(scope="module")
def mock() -> Iterator[Ec2Mock]:
    with Ec2Mock() as running:
        yield running


@pytest.fixture
def account(mock: Ec2Mock) -> Account:
    return mock.account()


@pytest.fixture
def ec2(mock: Ec2Mock, account: Account) -> Any:
    return client(mock, account)


def client(mock: Ec2Mock, who: Any, service: str = "ec2") -> Any:
    return boto3.client(service, config=Config(retries={"total_max_attempts": 1}), **mock.client_words(who))


def run(ec2: Any, account: Account, count: int = 1, **words: Any) -> list[str]:
    said = {"ImageId": account.image, "InstanceType": "c5.large", "SubnetId": next(iter(account.subnets.values()))}
    made = ec2.run_instances(MinCount=1, MaxCount=count, **{**said, **words})
    return [one["InstanceId"] for one in made["Instances"]]


@contextmanager
def refused(code: str, status: int = 400) -> Iterator[None]:
    with pytest.raises(ClientError) as caught:
        yield
    said = caught.value.response
    assert (said["Error"]["Code"], said["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)


def states(ec2: Any, **words: Any) -> dict[str, str]:
    said = ec2.describe_instances(**words)["Reservations"]
    return {one["InstanceId"]: one["State"]["Name"] for r in said for one in r["Instances"]}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_token_is_one_launch(ec2: Any, account: Account) -> None:
    first = run(ec2, account, 3, ClientToken="t")
    assert run(ec2, account, 3, ClientToken="t") == first
    with refused("IdempotentParameterMismatch"):
        run(ec2, account, 4, ClientToken="t")
    assert set(states(ec2)) == set(first)


def test_as_many_as_there_are(mock: Ec2Mock, ec2: Any, account: Account) -> None:
    mock.faults(account, cap={"c5.large": 2})
    assert len(run(ec2, account, 3)) == 2
    with refused("InsufficientInstanceCapacity", 500):
        run(ec2, account, 3)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"InstanceType": "c5.no"}, "InvalidParameterValue"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"LaunchTemplate": {"LaunchTemplateName": "no"}}, "InvalidLaunchTemplateName.NotFoundException"),
        ({"Placement": {"GroupName": "no"}}, "InvalidPlacementGroup.Unknown"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue"),
        ({"InstanceType": "m6g.large"}, "InvalidParameterValue"),
    ],
)
def test_what_cannot_be_is_refused(ec2: Any, account: Account, words: dict[str, Any], code: str) -> None:
    with refused(code):
        run(ec2, account, **words)
    assert states(ec2) == {}


def test_pages_end_and_belong_to_their_question(ec2: Any, account: Account) -> None:
    ids = run(ec2, account, 12)
    first = ec2.describe_instances(MaxResults=5)
    second = ec2.describe_instances(MaxResults=5, NextToken=first["NextToken"])
    third = ec2.describe_instances(MaxResults=5, NextToken=second["NextToken"])
    pages = [
        [one["InstanceId"] for r in page["Reservations"] for one in r["Instances"]] for page in (first, second, third)
    ]
    assert [len(page) for page in pages] == [5, 5, 2]
    assert sorted(one for page in pages for one in page) == sorted(ids)
    assert "NextToken" not in third
    with refused("InvalidParameterValue"):
        ec2.describe_instances(
            MaxResults=6, Filters=[{"Name": "image-id", "Values": ["x"]}], NextToken=first["NextToken"]
        )
    with refused("InvalidParameterValue"):
        ec2.describe_instances(MaxResults=4)
    with refused("InvalidParameterCombination"):
        ec2.describe_instances(MaxResults=5, InstanceIds=ids[:1])


def test_all_are_ended_or_none_and_take_their_things_along(mock: Ec2Mock, ec2: Any, account: Account) -> None:
    ids = run(ec2, account, 2)
    with refused("InvalidInstanceID.NotFound"):
        ec2.terminate_instances(InstanceIds=[ids[0], "i-0123456789abcdef0"])
    with refused("InvalidInstanceID.Malformed"):
        ec2.terminate_instances(InstanceIds=[ids[0], "no-such-instance"])
    assert not {"shutting-down", "terminated"} & set(states(ec2).values())
    disk = {"DeviceName": "/dev/xvda", "Ebs": {"DeleteOnTermination": True}}
    (ours,) = run(ec2, account, BlockDeviceMappings=[disk])
    volumes = {one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]}
    interfaces = len(ec2.describe_network_interfaces()["NetworkInterfaces"])
    ec2.terminate_instances(InstanceIds=[ours])
    ec2.terminate_instances(InstanceIds=[ours])
    until(lambda: states(ec2)[ours] == "terminated")
    assert len(volumes - {one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]}) == 1
    assert len(ec2.describe_network_interfaces()["NetworkInterfaces"]) == interfaces - 1


def test_an_instance_boots_ends_and_is_forgotten(mock: Ec2Mock) -> None:
    account = mock.account(boot_s=0.2, stop_s=0.2, gone_s=0.2)
    ec2 = client(mock, account)
    (one,) = run(ec2, account)
    assert states(ec2) == {one: "pending"}
    until(lambda: states(ec2) == {one: "running"})
    ec2.terminate_instances(InstanceIds=[one])
    assert states(ec2) == {one: "shutting-down"}
    until(lambda: states(ec2) == {one: "terminated"})
    until(lambda: states(ec2) == {})


def test_the_policy_decides(mock: Ec2Mock, ec2: Any, account: Account) -> None:
    user = client(mock, mock.user(account, "ours", policy_for("ours")))
    (stranger,) = run(ec2, account)
    with refused("UnauthorizedOperation", 403):
        user.terminate_instances(InstanceIds=[stranger])
    with refused("UnauthorizedOperation", 403):
        run(user, account)
    with refused("UnauthorizedOperation", 403):
        user.describe_vpcs()
    kinds = ("instance", "volume", "network-interface")
    tagged = [{"ResourceType": kind, "Tags": TAGS} for kind in kinds]
    with refused("DryRunOperation", 412):
        run(user, account, TagSpecifications=tagged, DryRun=True)
    with refused("UnauthorizedOperation", 403):
        run(user, account, TagSpecifications=tagged[:2], DryRun=True)
    (ours,) = run(user, account, TagSpecifications=tagged)
    user.terminate_instances(InstanceIds=[ours])
    with refused("AuthFailure", 401):
        client(mock, type("Nobody", (), {"access_key": "AKIANOBODY", "secret_key": "x"})).describe_instances()


def test_conditions_of_a_policy() -> None:
    def allows(condition: dict[str, Any], **context: list[str]) -> bool:
        words = {"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": condition}
        return Policy({"Statement": words}).allows(
            Need("ec2:X", "r", {key.replace("_", ":"): v for key, v in context.items()})
        )

    assert allows({"StringEquals": {"a:b": ["x", "y"]}}, a_b=["y"])
    assert not allows({"StringEquals": {"a:b": "x*"}}, a_b=["xy"])
    assert not allows({"StringEquals": {"a:b": "x"}})
    assert allows({"StringLike": {"a:b": "x*"}}, a_b=["xy"])
    assert allows({"StringNotEquals": {"a:b": "x"}}, a_b=["y"])
    assert not allows({"ForAllValues:StringEquals": {"a:b": ["x"]}}, a_b=["x", "z"])
    assert allows({"Null": {"a:b": "true"}})
    with pytest.raises(ValueError, match="NumericLessThan"):
        allows({"NumericLessThan": {"a:b": "1"}})
