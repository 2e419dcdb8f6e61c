"""What the check tells of an account that is set up, and of one where something is missing; on the mock of EC2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest

from burstd.domain.plugins.provider import Finding, Quota
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog, Ec2InstanceType
from providers.aws.catalog.quotas import AwsQuotas
from providers.aws.checks import supply
from providers.aws.checks.check import check
from providers.aws.launch.images import AwsImages
from providers.aws.settings import AwsSettings
from tests.lab.aws.mock import Account, Ec2Mock, User, policy_for

pytestmark = pytest.mark.clouds

CLUSTER = "ada"
POLICY = policy_for(CLUSTER)
SIDS = [one["Sid"] for one in POLICY["Statement"]]
UNTOLD = {"ec2:CreateFleet", "role of ec2fleet.amazonaws.com", "role of spot.amazonaws.com", "rights not tried"}
"""What does not show before the first launch."""


@dataclass
class Site:
    """An account as docs/providers/aws.md sets it up, and burstd's user in it."""

    mock: Ec2Mock
    account: Account
    user: User

    def owner(self, service: str = "ec2") -> Any:
        return boto3.client(service, **self.mock.client_words(self.account))

    def with_policy(self, policy: Mapping[str, Any]) -> Site:
        return replace(self, user=self.mock.user(self.account, CLUSTER, policy))

    def check(self, *images: str, **more: Any) -> dict[str, Finding]:
        """Findings by their subjects, in order."""
        words = {
            "region": "us-east-1", "endpoint_url": self.mock.url, "subnets": list(self.account.subnets.values()),
            "security_groups": [self.account.security_group], "instance_types": ["c5.*"], "image": self.account.image,
            "instance_profile": self.user.role, "notices_queue": self.user.queue,
        }  # fmt: skip
        settings = AwsSettings(**{**words, **more})
        calls = AwsCalls(settings)
        catalog = AwsCatalog("aws", settings, calls)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.mock.environment(self.user).items():
                patch.setenv(name, value)
            quotas = AwsQuotas(settings, calls, catalog)
            found = list(check(settings, calls, catalog, AwsImages(settings, calls), quotas, CLUSTER, images))
        calls.close()
        assert len({f.subject for f in found}) == len(found), [f.subject for f in found]
        assert all(f.text and (f.ok is not False or f.remedy) for f in found)
        return {f.subject: f for f in found}


def wrong(found: Mapping[str, Finding]) -> dict[str, Finding]:
    return {subject: finding for subject, finding in found.items() if finding.ok is False}


@pytest.fixture(scope="module")
def mock() -> Iterator[Ec2Mock]:
    with Ec2Mock() as made:
        yield made


def set_up(mock: Ec2Mock) -> Site:
    """A new account, furnished as the document says."""
    account = mock.account()
    return Site(mock, account, mock.user(account, CLUSTER, POLICY))


@pytest.fixture(scope="module")
def site(mock: Ec2Mock) -> Site:
    """Before the first launch."""
    return set_up(mock)


@pytest.fixture(scope="module")
def used(mock: Ec2Mock) -> Site:
    """After it."""
    made = set_up(mock)
    launched(made)
    return made


def launched(site: Site) -> None:
    """One of each thing that burstd makes, bearing the cluster's tag."""
    client = boto3.client("ec2", **site.mock.client_words(site.user))
    instance_ids = [{"Key": "burstd-cluster", "Value": CLUSTER}]

    def tagged(*kinds: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": instance_ids} for kind in kinds]

    data = {
        "ImageId": site.account.image, "TagSpecifications": tagged("network-interface", "spot-instances-request"),
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [site.account.security_group]}],
    }  # fmt: skip
    client.create_launch_template(
        LaunchTemplateName=f"burstd-{CLUSTER}-1", LaunchTemplateData=data, TagSpecifications=tagged("launch-template")
    )
    client.create_placement_group(
        GroupName=f"burstd-{CLUSTER}-g", Strategy="cluster", TagSpecifications=tagged("placement-group")
    )
    subnet = next(iter(site.account.subnets.values()))
    client.create_fleet(
        Type="instant", TagSpecifications=tagged("instance", "volume", "fleet"),
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
        LaunchTemplateConfigs=[{
            "LaunchTemplateSpecification": {"LaunchTemplateName": f"burstd-{CLUSTER}-1", "Version": "1"},
            "Overrides": [{"InstanceType": "c5.large", "SubnetId": subnet}],
        }],
    )  # fmt: skip


def test_nothing_is_wrong_with_what_the_document_sets_up(site: Site) -> None:
    found = site.check()
    assert wrong(found) == {}
    assert {subject for subject, finding in found.items() if finding.ok is None} == UNTOLD
    assert found["image " + site.account.image].text.startswith(f"{site.account.image}, x86_64, root volume of ")
    assert "ec2:TerminateInstances, ec2:GetConsoleOutput, ec2:DeleteVolume" in found["rights not tried"].text
    assert "room for" in found["quota Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"].text


def test_every_right_shows_once_there_is_something_to_try_it_on_and_nothing_changes(used: Site) -> None:
    before = things(used)
    found = used.check()
    assert things(used) == before
    assert wrong(found) == {}
    assert [f.subject for f in found.values() if f.ok is None] == []
    assert found["ec2:TerminateInstances"].text == found["ec2:CreateFleet"].text == "allowed"


def things(site: Site) -> list[Any]:
    client = site.owner()
    instances = [i["InstanceId"] for r in client.describe_instances()["Reservations"] for i in r["Instances"]]
    templates = [t["LaunchTemplateName"] for t in client.describe_launch_templates()["LaunchTemplates"]]
    groups = [g["GroupName"] for g in client.describe_placement_groups()["PlacementGroups"]]
    volumes = [v["VolumeId"] for v in client.describe_volumes()["Volumes"]]
    return [instances, templates, groups, sorted(volumes)]


@pytest.mark.parametrize(
    "missing",
    [
        {"Look"},
        {"MakeWithTheClustersTagOnly", "MakeTemplatesWithTheClustersTagOnly", "EndTheClustersOwn", "ReadNotices"},
        {"MakeFromTheClustersOwn", "MakeFromAndIn", "MakePlacementGroupsWithTheClustersTagOnly"},
        {"TagWhatIsBeingMade", "ReadParametersThatNameImages"},
        {"GiveMachinesTheirRole"},
    ],
    ids=lambda some: " ".join(sorted(some)),
)
def test_each_statement_that_is_missing_is_named(used: Site, missing: set[str]) -> None:
    rest = {**POLICY, "Statement": [one for one in POLICY["Statement"] if one["Sid"] not in missing]}
    found = wrong(used.with_policy(rest).check(f"ssm:{used.account.image_parameter}"))
    named = {sid for finding in found.values() for sid in SIDS if f"statement {sid} of " in finding.remedy}
    assert named == missing


def test_rights_for_another_cluster_are_none(used: Site) -> None:
    found = wrong(used.with_policy(policy_for("other")).check(instance_profile="", notices_queue=""))
    assert {"ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:TerminateInstances"} <= set(found)
    assert all("this cluster's name in its Condition" in f.remedy for f in found.values())


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"image": "ami-0123456789abcdef0", "security_groups": ["sg-0123456789abcdef0"], "price_list": False,
             "instance_types": ["c5.large", "zz9.*"], "reservations": ["cr-0123456789abcdef0"]},
            {
                "image ami-0123456789abcdef0": ("us-east-1", "mend image of the provider"),
                "security group sg-0123456789abcdef0": ("sg-0123456789abcdef0", "set security_groups"),
                "prices": ("c5.large", "set prices"),
                "instance types zz9.*": ("none of that name", "describe-instance-type-offerings"),
                "reservation cr-0123456789abcdef0": ("not exist", "set reservations"),
            },
        ),
        (
            {"image": "name:nothing-*", "instance_profile": "nobody", "price_list": False,
             "notices_queue": "https://sqs.us-east-1.amazonaws.com/1/other"},
            {
                "image name:nothing-*": ("has a name like", "mend image"),
                "prices": ("c5.12xlarge", 'set prices = { "c5.12xlarge"'),
                "queue other": ("", "notices_queue"),
            },
        ),
        (
            {"instance_types": ["c6g.large"], "instance_profile": "nobody"},
            {
                "image IMAGE": ("the instance types are all aarch64", "name an image"),
            },
        ),
        (
            {"instance_profile": "nobody"},
            {
                "ec2:RunInstances": ("nobody", "set instance_profile"),
                "ec2:RunInstances on the spot market": ("nobody", "set instance_profile"),
            },
        ),
        (
            {"image": "", "subnets": ["subnet-0123456789abcdef0"]},
            {
                "image": ("neither the provider nor a pool", "set image"),
                "subnet subnet-0123456789abcdef0": ("subnet-0123456789abcdef0", "set subnets"),
                "offers": ("subnets", "mend what it names"),
                "instance types c5.*": ("", ""),
            },
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_remedy(
    site: Site, more: dict[str, Any], expected: dict[str, tuple[str, str]]
) -> None:
    found = wrong(site.check(**more))
    wanted = {subject.replace("IMAGE", site.account.image): words for subject, words in expected.items()}
    assert set(found) == set(wanted)
    for subject, (text, remedy) in wanted.items():
        assert text in found[subject].text
        assert remedy in found[subject].remedy


def test_images_of_pools_are_looked_at_too(site: Site) -> None:
    found = site.check(f"name:{site.account.image_name}", "ami-00000000000000000", image="")
    assert found[f"image name:{site.account.image_name}"].ok
    assert found["image ami-00000000000000000"].remedy == "mend image in the pools' offers"


def test_closed_ports_and_a_queue_that_nobody_may_fill(mock: Ec2Mock) -> None:
    site = set_up(mock)
    client, group = site.owner(), site.account.security_group
    (said,) = client.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    client.revoke_security_group_ingress(GroupId=group, IpPermissions=said["IpPermissions"])
    client.authorize_security_group_ingress(
        GroupId=group, IpProtocol="tcp", FromPort=6000, ToPort=7000, CidrIp="10.0.0.0/16"
    )
    site.owner("sqs").set_queue_attributes(QueueUrl=site.user.queue, Attributes={"Policy": ""})
    found = wrong(site.check())
    assert list(found) == ["port 22", f"queue {site.user.queue.rpartition('/')[2]}"]
    assert "does not let EventBridge" in found[f"queue {site.user.queue.rpartition('/')[2]}"].text


@pytest.mark.parametrize(
    ("limit", "used", "ok", "text"),
    [
        (0, 0, False, "room for 0 p5.48xlarge (192 each) or 0 p3.2xlarge"),
        (64, 0, True, "room for 0 p5.48xlarge (192 each) or 8 p3.2xlarge"),
        (384, 0, True, "room for 2 p5.48xlarge"),
        (384, 380, None, "all is taken now"),
    ],
)
def test_quotas_are_told_in_machines(limit: int, used: int, ok: bool | None, text: str) -> None:
    large = Ec2InstanceType("p5.48xlarge", 192, 0, 8, "H100", 0, "x86_64", (), 0, spot=False)

    kinds = [large, replace(large, name="p3.2xlarge", vcpus=8), replace(large, name="c5.large", vcpus=2)]
    finding = supply.judge_quota(Quota("Running On-Demand P instances", limit, used, "vCPUs"), kinds)
    assert (finding.ok, text in finding.text) == (ok, True)
    assert ("request-service-quota-increase" in finding.remedy) == (ok is False)


def test_reservations(site: Site) -> None:
    zone = next(iter(site.account.subnets))
    mine = site.mock.reserve(site.account, "c5.large", zone, 3)
    other = site.mock.reserve(site.account, "p5.48xlarge", zone, 2, block=True)
    found = site.check(reservations=[mine, other])
    assert found[f"reservation {mine}"].text.startswith(f"c5.large in {zone}, active, 3 of 3 free")
    assert found[f"reservation {other}"].remedy == 'add "p5.48xlarge" to instance_types'


@pytest.mark.parametrize(
    ("environment", "text", "remedy"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIA0000000000009999"}, "AuthFailure", "make a new access key"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials", "AWS_SHARED_CREDENTIALS_FILE"),
    ],
)
def test_without_credentials_nothing_else_is_looked_at(
    site: Site, environment: dict[str, str], text: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**site.mock.environment(site.user), **environment, "AWS_EC2_METADATA_DISABLED": "true"}
    monkeypatch.setattr(Ec2Mock, "environment", lambda *_: keys)
    first, rest = site.check().values()
    assert (first.subject, first.ok, rest.ok) == ("credentials", False, None)
    assert text in first.text
    assert remedy in first.remedy


def test_an_amazon_that_is_not_reached(site: Site) -> None:
    found = site.check(endpoint_url="http://127.0.0.1:9")
    assert "port 443" in found["credentials"].remedy
    assert len(found) == 2
