"""A10. What bears tags that merely resemble ours is another's: not listed as ours, so neither ended nor adopted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.testing.cloud_world import launch_and_wait
from providers.aws import tags as aws_tags
from providers.aws.listing import InstanceListing as AwsListing
from providers.azure import resources as azure_resources
from providers.google import labels as google_labels
from providers.openshift import labels as openshift_marks
from providers.openstack.servers import metadata as openstack_marks
from providers.sandbox.client import CloudApi, DirectApi
from providers.sandbox.cloud import wire
from providers.sandbox.provider import SandboxProvider
from tests.contract.test_sandbox_provider import VirtualWorld
from tests.providers.aws.ec2 import FakeEc2
from tests.providers.aws.ec2 import settings as aws_settings
from tests.providers.openstack.test_listing import listing as openstack_listing
from tests.providers.openstack.test_listing import page, server

OURS = "ours"
VALUES = [
    "our", "ours2", "ours-", "OURS", "Ours", " ours", "ours ", "ours\n", "ours\0", "\u200bours", "\u043eurs",
    "\uff4f\uff55\uff52\uff53", "our\u017f", "ours*", "o?rs", "*", "", "ours,other", None, 0, True,
]  # fmt: skip
KEYS = [
    "Burstd-Cluster",
    "burstd-cluster ",
    " burstd-cluster",
    "burstd_cluster",
    "burstd-cluster2",
    "aws:burstd-cluster",
]
LABELS: list[dict[str, Any]] = [
    *({TAG_CLUSTER: value, TAG_CLAIM: "c1"} for value in VALUES), *({key: OURS, TAG_CLAIM: "c1"} for key in KEYS)
]  # fmt: skip
STRANGE = pytest.mark.parametrize("labels", LABELS, ids=ascii)


@STRANGE
def test_aws(labels: Mapping[str, Any]) -> None:
    said = [{"Key": key, "Value": value} for key, value in labels.items()]
    assert _aws(said) == []


@pytest.mark.parametrize("other", ["theirs", "ours2", ""])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_aws_tags_that_are_said_twice(other: str, *, first: bool) -> None:
    both = [{"Key": TAG_CLUSTER, "Value": OURS}, {"Key": TAG_CLUSTER, "Value": other}]
    assert _aws(both if first else both[::-1]) == []
    assert _aws([both[0], both[0]]) == ["i-1"]
    assert aws_tags.from_aws([{"Key": TAG_CLAIM, "Value": one} for one in ("c1", "c2", "c1")]) == {}


def _aws(said: list[dict[str, Any]]) -> list[str]:
    ec2 = FakeEc2(describe_instances=[{"Reservations": [{"Instances": [{"InstanceId": "i-1", "Tags": said}]}]}])
    return [one.id for one in AwsListing("aws", OURS, aws_settings(page=7), ec2).instances()]


@STRANGE
def test_azure(labels: Mapping[str, Any]) -> None:
    assert not azure_resources.belongs_to_cluster({"name": "m1", "tags": labels}, OURS)


@STRANGE
def test_openstack(labels: Mapping[str, Any]) -> None:
    assert list(openstack_listing(page(server(metadata=dict(labels))))[0].instances()) == []
    words = " ".join(f"{key}={value}" for key, value in labels.items())
    assert not openstack_marks.belongs_to_cluster(openstack_marks.parse_description(words), OURS)
    name = f"burstd/{labels.get(TAG_CLUSTER, 'x')}/1/gang"
    assert not openstack_marks.belongs_to_cluster(openstack_marks.parse_group_name(name), OURS)


@pytest.mark.parametrize("claim", [None, 0, "", ["c1"], {"a": "b"}, "c1\n", "x" * 65536, "../c1", "\x1b[2J"], ids=ascii)
def test_openstack_claims_that_are_none(claim: Any) -> None:
    """The machine is ours all the same, and of no claim."""
    (one,) = openstack_listing(page(server(metadata={TAG_CLUSTER: OURS, TAG_CLAIM: claim})))[0].instances()
    assert one.claim_id == ""


@STRANGE
def test_openshift(labels: Mapping[str, Any]) -> None:
    pod = {
        "metadata": {"name": "p", "labels": dict(labels), "annotations": {"burstd/tags": '{"burstd-cluster":"ours"}'}}
    }
    assert not openshift_marks.belongs_to_cluster(pod, OURS)


@STRANGE
def test_google(labels: Mapping[str, Any]) -> None:
    """Whatever its description says."""
    machine = {"labels": dict(labels), "description": '{"burstd-cluster": "ours"}'}
    assert not google_labels.belongs_to_cluster(machine, OURS)


class _NoFilter:
    """A sandbox that shows all to everybody."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def instances(self, _tags: Mapping[str, str], size: int, marker: str) -> wire.PageView[wire.InstanceView]:
        return self._api.instances({}, size, marker)  # type: ignore[no-any-return]

    def list_resources(
        self, kind: str, _tags: Mapping[str, str], size: int, marker: str
    ) -> wire.PageView[wire.ResourceView]:
        return self._api.list_resources(kind, {}, size, marker)  # type: ignore[no-any-return]


@pytest.fixture
def sky() -> SandboxProvider:
    world = VirtualWorld()
    for number, cluster in enumerate(("our", "ours2", "OURS", "ours-", " ours", "\u043eurs")):
        launch_and_wait(world, world.provider(cluster), f"c{number}", cluster=cluster)
    return SandboxProvider("sky", OURS, cast("CloudApi", _NoFilter(DirectApi(world.cloud))), page=2)


def test_sandbox(sky: SandboxProvider) -> None:
    assert list(sky.instances()) == []
    assert list(sky.leftovers()) == []
