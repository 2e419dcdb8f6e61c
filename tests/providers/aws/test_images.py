from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from burstd.domain.errors import BadRequest, CloudUnavailable, NoSuchImage, NotAllowed, NotFound
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
    """With these AMIs, and a parameter of Systems Manager that has had these values, the latest first."""

    def __init__(self, *images: Mapping[str, Any], parameter: str | Exception = "", former: Any = ()) -> None:
        super().__init__(describe_images=[self._describe])
        self._images = images
        self._parameter = parameter or NotFound("no such parameter")
        self._former = former

    def _describe(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        found = list(self._images)
        for one in words.get("Filters", ()):
            keys = {"image-id": "ImageId", "state": "State", "root-device-type": "RootDeviceType"}
            found = [ami for ami in found if one["Name"] == "name" or ami[keys[one["Name"]]] in one["Values"]]
        if "ImageIds" in words:
            found = [ami for ami in found if ami["ImageId"] in words["ImageIds"]]
        return {"Images": found}

    def _call(self, service: str, operation: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        if service == "ec2":
            return super()._call(service, operation, words, changes=changes)
        if isinstance(self._parameter, Exception):
            raise self._parameter
        if operation == "get_parameter":
            return {"Parameter": {"Value": self._parameter}}
        if isinstance(self._former, Exception):
            raise self._former
        values = [*reversed(self._former), self._parameter]
        return {"Parameters": [{"Version": number, "Value": value} for number, value in enumerate(values, 1)]}


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


@pytest.mark.parametrize(
    ("word", "account", "versions"),
    [
        ("", Account(), ["ami-7"]),
        ("ami-2", Account(), ["ami-2"]),
        ("name:node-*", Account(ami(1), ami(3), ami(2)), ["ami-3", "ami-2", "ami-1"]),
        (
            "name:node-*",
            Account(ami(1), ami(2, State="failed"), ami(3, State="disabled"), ami(4, RootDeviceType="instance-store")),
            ["ami-1"],
        ),
        ("ssm:/x", Account(ami(1), ami(2), parameter="ami-1", former=["ami-2", "none", "ami-1"]), ["ami-1", "ami-2"]),
        ("ssm:/x", Account(ami(1), parameter="ami-2", former=["ami-1"]), ["ami-1"]),
        ("ssm:/x", Account(ami(1), parameter="ami-1", former=NotAllowed("no right")), ["ami-1"]),
        ("ssm:/x", Account(ami(1), parameter="ami-1", former=NotFound("Amazon's own")), ["ami-1"]),
    ],
)
def test_the_versions_of_a_word_newest_first(word: str, account: Account, versions: list[str]) -> None:
    assert list(AwsImages(settings(image="ami-7"), account).versions(word)) == versions


def test_an_image_of_strangers_is_never_asked_for() -> None:
    account = Account(ami(1))
    AwsImages(settings(image_owners=["self", "123456789012"]), account).versions("name:node-*")
    ((_, words),) = account.said
    assert words["Owners"] == ["self", "123456789012"]
    for owners in ([], ["all"], ["*"]):
        with pytest.raises(ValidationError):
            settings(image_owners=owners)


@pytest.mark.parametrize("word", ["name:node-*", "ssm:/x"])
def test_no_version_is_an_error_with_what_to_do(word: str) -> None:
    with pytest.raises(NoSuchImage, match=r"image_owners|name one that is"):
        AwsImages(settings(), Account(parameter="ami-1")).versions(word)


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
