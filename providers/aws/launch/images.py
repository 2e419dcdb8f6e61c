"""Finds the images that a word of the settings means: an AMI's id, a pattern of names, a parameter of SSM.

The versions of a pattern are the AMIs that fit it; those of a parameter are the AMIs that it has named so far
(https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-versions.html).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burstd.domain.errors import BadRequest, NoSuchImage, NotAllowed, NotFound
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
        return self._cache.get(self._named(word))

    def versions(self, word: str) -> Sequence[str]:
        """Ids of the available AMIs of an image, the newest first; in calls that grow with pages, not with machines.

        Raises BadRequest where there is none.
        """
        word = self._named(word)
        kind, _, rest = word.partition(":")
        if kind == "name" and rest:
            return [one["ImageId"] for one in self._by_pattern(rest)]
        if kind == "ssm" and rest:
            return self._of_parameter(rest, word)
        return (word,)

    def _named(self, word: str) -> str:
        word = word or self._settings.image
        if not word:
            raise BadRequest(f"no image is named: set image in the provider's settings or the pool's offers ({_FORMS})")
        return word

    def _look_up(self, word: str) -> AwsImage:
        kind, _, rest = word.partition(":")
        if word.startswith("ami-"):
            return self._by_id(word, word)
        if kind == "name" and rest:
            return _image(self._by_pattern(rest)[0], word)
        if kind == "ssm" and rest:
            return self._by_id(self._parameter(rest), word)
        raise BadRequest(f"image '{word}' is none of {_FORMS}")

    def _by_id(self, image_id: str, word: str) -> AwsImage:
        try:
            found = self._calls.query("ec2", "describe_images", ImageIds=[image_id])["Images"]
        except (BadRequest, NotFound) as error:
            raise NoSuchImage(f"image '{word}' cannot be had in {self._settings.region}: {error}") from error
        if not found:
            raise NoSuchImage(
                f"image '{word}' is not in {self._settings.region}, or not shared with this account: "
                "copy it there, or name another"
            )
        return _image(found[0], word)

    def _by_pattern(self, pattern: str) -> Sequence[Mapping[str, Any]]:
        """The newest first. Of ``image_owners`` only: anybody may publish an AMI of any name."""
        owners = self._settings.image_owners
        named = [{"Name": "name", "Values": [pattern]}]
        found = sorted(self._available(named, Owners=list(owners)), key=_age, reverse=True)
        if not found:
            raise NoSuchImage(
                f"no available image with a root volume of EBS of {', '.join(owners)} in {self._settings.region} has a "
                f"name like '{pattern}': look at the pattern and at image_owners"
            )
        return found

    def _of_parameter(self, name: str, word: str) -> Sequence[str]:
        named = list(dict.fromkeys([self._parameter(name), *self._former_values(name)]))
        there = {one["ImageId"] for one in self._available([{"Name": "image-id", "Values": named}])}
        found = [image_id for image_id in named if image_id in there]
        if not found:
            raise NoSuchImage(
                f"image '{word}' ({', '.join(named)}) is not available in {self._settings.region}: name one that is"
            )
        return found

    def _parameter(self, name: str) -> str:
        try:
            value: str = self._calls.query("ssm", "get_parameter", Name=name)["Parameter"]["Value"]
        except (BadRequest, NotFound) as error:
            raise NoSuchImage(f"SSM parameter '{name}' cannot be read in {self._settings.region}: {error}") from error
        if not value.startswith("ami-"):
            raise NoSuchImage(f"SSM parameter '{name}' holds no AMI's id: name one that does")
        return value

    def _former_values(self, name: str) -> Iterable[str]:
        """AMIs that the parameter has named, the latest first; none where the account may not read its history."""
        try:
            found = list(self._calls.pages("ssm", "get_parameter_history", "Parameters", Name=name))
        except (BadRequest, NotAllowed, NotFound):  # Parameters of Amazon's own have no history.
            return ()
        values = (str(one["Value"]) for one in sorted(found, key=lambda one: int(one["Version"]), reverse=True))
        return [value for value in values if value.startswith("ami-")]

    def _available(self, filters: Sequence[Mapping[str, Any]], **words: Any) -> Iterator[Mapping[str, Any]]:
        """Those that an instance can be launched from; deregistered, disabled and failed ones are not among them."""
        ready = [{"Name": "state", "Values": ["available"]}, {"Name": "root-device-type", "Values": ["ebs"]}]
        return self._calls.pages(
            "ec2", "describe_images", "Images", limit=self._settings.page, Filters=[*filters, *ready], **words
        )


def _age(said: Mapping[str, Any]) -> tuple[str, str]:
    """Amazon's CreationDate sorts as text."""
    return said.get("CreationDate", ""), said["ImageId"]


def _image(said: Mapping[str, Any], word: str) -> AwsImage:
    state = said.get("State", "available")
    if state != "available":
        raise NoSuchImage(f"image '{word}' ({said['ImageId']}) is {state}: wait for it, or name another")
    device = said.get("RootDeviceName", "")
    if not device or said.get("RootDeviceType", "ebs") != "ebs":
        raise NoSuchImage(f"image '{word}' ({said['ImageId']}) has no root volume of EBS: name one that has")
    architecture = said.get("Architecture", "")
    return AwsImage(
        said["ImageId"], device, _root_gib(said.get("BlockDeviceMappings", ()), device),
        {"arm64": "aarch64"}.get(architecture, architecture),
    )  # fmt: skip


def _root_gib(disks: Sequence[Mapping[str, Any]], device: str) -> int:
    return next((int(d["Ebs"].get("VolumeSize", 0)) for d in disks if d.get("DeviceName") == device and "Ebs" in d), 0)
