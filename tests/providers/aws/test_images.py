from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from burstd.domain.errors import BadRequest, CloudUnavailable, NotFound
from providers.aws.launch.images import AwsImage, AwsImages
from tests.providers.aws.ec2 import FakeEc2, settings


def ami(number: int, **more: Any) -> dict[str, Any]:
    return {
        "ImageId": f"ami-{number}", "State": "available", "RootDeviceName": "/dev/xvda", "RootDeviceType": "ebs",
        "Architecture": "arm64", "CreationDate": f"2026-01-0{number}T00:00:00.000Z",
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 8}},
        ], **more,
    }  # fmt: skip


class Account(FakeEc2):
    def __init__(self, *images: Mapping[str, Any], parameter: Any = None) -> None:
        super().__init__(describe_images=[{"Images": list(images)}])
        self._parameter = parameter or NotFound("no such parameter")

    def _call(self, service: str, operation: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        if service == "ec2":
            return super()._call(service, operation, words, changes=changes)
        if isinstance(self._parameter, Exception):
            raise self._parameter
        return {"Parameter": {"Value": self._parameter}}


@pytest.mark.parametrize("word", ["ami-2", "name:node-*", "ssm:/node/image"])
def test_found(word: str) -> None:
    """By a pattern the newest; kept for a while."""
    now = 0.0
    account = Account(ami(2), ami(1), parameter="ami-2")
    images = AwsImages(settings(), account, lambda: now)
    assert images.find_image(word) == AwsImage("ami-2", "/dev/xvda", 8, "aarch64")
    calls = len(account.said)
    now = 299.0
    images.find_image(word)
    assert len(account.said) == calls
    now = 300.0
    images.find_image(word)
    assert len(account.said) > calls


def test_the_settings_name_one_for_pools_that_do_not() -> None:
    assert AwsImages(settings(image="ami-1"), Account(ami(1))).find_image("").id == "ami-1"


@pytest.mark.parametrize(
    ("word", "account", "remedy"),
    [
        ("", Account(), "set image"),
        ("debian", Account(), "name:PATTERN"),
        ("ami-9", Account(), "copy it there"),
        ("name:node-*", Account(), "image_owners"),
        ("ssm:/x", Account(), "cannot be read"),
        ("ssm:/x", Account(parameter="debian"), "holds no AMI"),
        ("ami-1", Account(ami(1, State="pending")), "wait for it"),
        ("ami-1", Account(ami(1, RootDeviceType="instance-store")), "root volume"),
    ],
)
def test_not_found_with_what_to_do(word: str, account: Account, remedy: str) -> None:
    with pytest.raises(BadRequest, match=remedy):
        AwsImages(settings(), account).find_image(word)


def test_an_account_that_does_not_answer_has_no_less_images() -> None:
    account = Account(parameter=CloudUnavailable("down"))
    with pytest.raises(CloudUnavailable):
        AwsImages(settings(), account).find_image("ssm:/x")
