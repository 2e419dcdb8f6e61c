"""Finds the image that a word of the settings means: an AMI's id, a pattern of names, a parameter of SSM."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burstd.domain.errors import BadRequest, NotFound
from providers.aws.calls import AwsCalls
from providers.aws.settings import AwsSettings
from providers.cache import CachedByKey

_CACHE_S = 300.0
_FORMS = "ami-..., name:PATTERN or ssm:PARAMETER"


@dataclass(frozen=True, slots=True)
class AwsImage:
    """What a launch needs to know of an AMI. ``root_gib``: the least that its root volume may have."""

    id: str
    root_device: str
    root_gib: int
    architecture: str
    """As ``uname -m`` has it."""


class AwsImages:
    """Of one account and region. What was found is kept for five minutes: a new AMI is used soon after."""

    def __init__(self, settings: AwsSettings, calls: AwsCalls, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._calls = calls
        self._cache = CachedByKey(self._look_up, _CACHE_S, clock)

    def find_image(self, word: str) -> AwsImage:
        """The image that ``word`` means, or the settings' own where it is empty. Raises BadRequest with the remedy."""
        word = word or self._settings.image
        if not word:
            raise BadRequest(f"no image is named: set image in the provider's settings or the pool's offers ({_FORMS})")
        return self._cache.get(word)

    def _look_up(self, word: str) -> AwsImage:
        kind, _, rest = word.partition(":")
        if word.startswith("ami-"):
            return self._by_id(word, word)
        if kind == "name" and rest:
            return self._by_name(rest)
        if kind == "ssm" and rest:
            return self._by_id(self._parameter(rest), word)
        raise BadRequest(f"image '{word}' is none of {_FORMS}")

    def _by_id(self, image_id: str, word: str) -> AwsImage:
        try:
            found = self._calls.query("ec2", "describe_images", ImageIds=[image_id])["Images"]
        except (BadRequest, NotFound) as error:
            raise BadRequest(f"image '{word}' cannot be had in {self._settings.region}: {error}") from error
        if not found:
            raise BadRequest(
                f"image '{word}' is not in {self._settings.region}, or not shared with this account: "
                "copy it there, or name another"
            )
        return _image(found[0], word)

    def _by_name(self, pattern: str) -> AwsImage:
        owners = self._settings.image_owners
        filters = [{"Name": "name", "Values": [pattern]}, {"Name": "state", "Values": ["available"]}]
        found = list(
            self._calls.pages(
                "ec2", "describe_images", "Images", limit=self._settings.page, Owners=list(owners), Filters=filters
            )
        )
        if not found:
            raise BadRequest(
                f"no available image of {', '.join(owners)} in {self._settings.region} has a name like '{pattern}': "
                "look at the pattern and at image_owners"
            )
        newest = max(found, key=lambda one: (one.get("CreationDate", ""), one["ImageId"]))
        return _image(newest, f"name:{pattern}")

    def _parameter(self, name: str) -> str:
        try:
            value: str = self._calls.query("ssm", "get_parameter", Name=name)["Parameter"]["Value"]
        except (BadRequest, NotFound) as error:
            raise BadRequest(f"SSM parameter '{name}' cannot be read in {self._settings.region}: {error}") from error
        if not value.startswith("ami-"):
            raise BadRequest(f"SSM parameter '{name}' holds no AMI's id: name one that does")
        return value


def _image(said: Mapping[str, Any], word: str) -> AwsImage:
    state = said.get("State", "available")
    if state != "available":
        raise BadRequest(f"image '{word}' ({said['ImageId']}) is {state}: wait for it, or name another")
    device = said.get("RootDeviceName", "")
    if not device or said.get("RootDeviceType", "ebs") != "ebs":
        raise BadRequest(f"image '{word}' ({said['ImageId']}) has no root volume of EBS: name one that has")
    architecture = said.get("Architecture", "")
    return AwsImage(
        said["ImageId"], device, _root_gib(said.get("BlockDeviceMappings", ()), device),
        {"arm64": "aarch64"}.get(architecture, architecture),
    )  # fmt: skip


def _root_gib(disks: Sequence[Mapping[str, Any]], device: str) -> int:
    return next((int(d["Ebs"].get("VolumeSize", 0)) for d in disks if d.get("DeviceName") == device and "Ebs" in d), 0)
