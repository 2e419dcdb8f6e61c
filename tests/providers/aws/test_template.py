from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.errors import OutcomeUnknown, RateLimited
from providers.aws import tags
from providers.aws.errors import AwsAlreadyExists
from providers.aws.launch import template
from providers.aws.launch.template import LaunchTemplates
from tests.providers.aws.ec2 import CLUSTER, IMAGE, FakeEc2, settings

USER_DATA = "#cloud-config\n# \u00e9 $x\n"
CONTENT = template.template_data(settings(), IMAGE, network=template.network_interfaces(settings()))
NAME = template.template_name(CLUSTER, CONTENT, USER_DATA)


def test_what_every_machine_is() -> None:
    """Token-bound metadata, an encrypted disk of the image's size, and an end when it switches off."""
    root = {"gib": 20, "iops": 4000, "throughput_mib_s": 200, "kms_key": "alias/x"}
    found = template.template_data(settings(root=root, instance_profile="node"), replace(IMAGE, root_gib=50))
    assert found["MetadataOptions"]["HttpTokens"] == "required"
    assert found["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert found["MetadataOptions"]["InstanceMetadataTags"] == "disabled"
    assert found["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert found["BlockDeviceMappings"] == [
        {
            "DeviceName": "/dev/xvda",
            "Ebs": {
                "VolumeSize": 50, "VolumeType": "gp3", "Iops": 4000, "Throughput": 200, "KmsKeyId": "alias/x",
                "Encrypted": True, "DeleteOnTermination": True,
            },
        }
    ]  # fmt: skip
    assert found["IamInstanceProfile"] == {"Name": "node"}
    arn = "arn:aws:iam::1:instance-profile/node"
    assert template.template_data(settings(instance_profile=arn), IMAGE)["IamInstanceProfile"] == {"Arn": arn}


def test_the_name_is_the_content() -> None:
    assert template.template_name(CLUSTER, dict(reversed(CONTENT.items())), USER_DATA) == NAME
    assert NAME.startswith("burstd-ours-")
    assert (
        len(
            {
                NAME,
                template.template_name(CLUSTER, CONTENT, "x"),
                template.template_name(CLUSTER, {**CONTENT, "ImageId": "b"}, ""),
            }
        )
        == 3
    )


def test_one_is_made_once_with_its_tag_and_user_data() -> None:
    ec2 = FakeEc2()
    templates = LaunchTemplates(CLUSTER, settings(tags={"project": "x"}), ec2)
    templates.ensure(NAME, CONTENT, USER_DATA)
    templates.ensure(NAME, CONTENT, USER_DATA)
    ((_, words),) = ec2.said
    assert words["LaunchTemplateName"] == NAME
    assert base64.b64decode(words["LaunchTemplateData"]["UserData"]).decode() == USER_DATA
    (tagged,) = words["TagSpecifications"]
    assert tags.from_aws(tagged["Tags"]) == {TAG_CLUSTER: CLUSTER, "project": "x"}
    templates.forget(NAME)
    templates.ensure(NAME, CONTENT, USER_DATA)
    assert ec2.count("create_launch_template") == 2


def test_one_that_is_there_is_used() -> None:
    ec2 = FakeEc2(create_launch_template=[AwsAlreadyExists("there")])
    templates = LaunchTemplates(CLUSTER, settings(), ec2)
    templates.ensure(NAME, CONTENT, USER_DATA)
    assert templates.used_lately(NAME)


def test_one_that_could_not_be_made_is_tried_again() -> None:
    ec2 = FakeEc2(create_launch_template=[RateLimited("slow down"), {}])
    templates = LaunchTemplates(CLUSTER, settings(), ec2)
    with pytest.raises(RateLimited):
        templates.ensure(NAME, CONTENT, USER_DATA)
    assert not templates.used_lately(NAME)
    templates.ensure(NAME, CONTENT, USER_DATA)
    assert templates.used_lately(NAME)


def test_other_content_is_not_put_under_a_name() -> None:
    ec2 = FakeEc2()
    with pytest.raises(OutcomeUnknown, match=NAME):
        LaunchTemplates(CLUSTER, settings(), ec2).ensure(NAME, CONTENT, "another")
    assert ec2.said == []


def test_after_a_while_it_may_be_removed_and_is_looked_for_again() -> None:
    now = 0.0
    ec2 = FakeEc2()
    templates = LaunchTemplates(CLUSTER, settings(unused_s=10), ec2, lambda: now)
    templates.ensure(NAME, CONTENT, USER_DATA)
    now = 9.0
    templates.ensure(NAME, CONTENT, USER_DATA)
    now = 18.0
    assert templates.used_lately(NAME)
    now = 19.0
    assert not templates.used_lately(NAME)
    templates.ensure(NAME, CONTENT, USER_DATA)
    assert ec2.count("create_launch_template") == 2


@pytest.mark.parametrize("root", [{"type": "io2"}, {"type": "io2", "iops": 3000, "throughput_mib_s": 125}])
def test_a_root_volume_that_ec2_would_refuse(root: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"needs iops|gp3 only"):
        settings(root=root)
