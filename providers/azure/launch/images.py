"""Finds the images that a word of the settings means: in a compute gallery, managed, or of the marketplace.

The versions of a gallery's image definition are those that are whole, in our location, and not excluded from latest.
https://learn.microsoft.com/azure/virtual-machines/azure-compute-gallery
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burstd.domain.errors import BadRequest, NoSuchImage, NotFound
from providers.azure.calls import AzureCalls
from providers.azure.resources import properties_of
from providers.azure.settings import AzureSettings
from providers.cache import CachedByKey

_CACHE_S = 300.0
_COMPUTE = r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute"
_DEFINITION = re.compile(rf"{_COMPUTE}/galleries/[^/]+/images/[^/]+", re.IGNORECASE)
_FIXED = re.compile(rf"{_COMPUTE}/(galleries/[^/]+/images/[^/]+/versions/[\d.]+|images/[^/]+)", re.IGNORECASE)
_URN = re.compile(r"[^:/]+:[^:/]+:[^:/]+:[^:/]+")
_FORMS = "an id of a gallery's image definition or version, of a managed image, or PUBLISHER:OFFER:SKU:VERSION"


class AzureImages:
    """Of one location. What was found is kept for five minutes: a new version is used soon after."""

    def __init__(self, settings: AzureSettings, calls: AzureCalls, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._calls = calls
        self._newest = CachedByKey(lambda word: self.versions(word)[0], _CACHE_S, clock)

    def reference(self, word: str) -> dict[str, str]:
        """``imageReference`` of the image that ``word`` means, or the settings' own where it is empty.

        Raises BadRequest with the remedy.
        """
        image = self._newest.get(self._named(word))
        if image.startswith("/"):
            return {"id": image}
        return dict(zip(("publisher", "offer", "sku", "version"), image.split(":"), strict=True))

    def versions(self, word: str) -> Sequence[str]:
        """Those of an image, the newest first; in calls that grow with pages. Raises BadRequest where there is none."""
        word = self._named(word)
        if _FIXED.fullmatch(word) or _URN.fullmatch(word):
            return (word,)
        if not _DEFINITION.fullmatch(word):
            raise BadRequest(f"image '{word}' is not {_FORMS}")
        try:
            found = [one for one in self._calls.pages(f"{word}/versions", "list versions") if self._usable(one)]
        except NotFound as error:
            raise NoSuchImage(f"there is no image {word}: {error}") from error
        if not found:
            raise NoSuchImage(f"image {word} has no version that can be used in {self._settings.location}")
        return [one["id"] for one in sorted(found, key=_age, reverse=True)]

    def describe(self, word: str) -> Mapping[str, Any]:
        """What Azure says of the image's definition, or of the image where it has none. Raises NotFound."""
        image = self._named(word)
        if image.startswith("/"):
            return self._calls.query(re.sub(r"/versions/[^/]+$", "", image), "look at the image")
        publisher, offer, sku, version = image.split(":")
        path = (
            f"Microsoft.Compute/locations/{self._settings.location}/publishers/{publisher}/artifacttypes/vmimage"
            f"/offers/{offer}/skus/{sku}/versions"
        )
        if version == "latest":
            return {}
        return self._calls.query(f"{self._calls.in_subscription(path)}/{version}", "look at the image")

    def _named(self, word: str) -> str:
        word = word or self._settings.image
        if not word:
            raise BadRequest(f"no image is named: set image in the provider's settings or the pool's offers ({_FORMS})")
        return word

    def _usable(self, said: Mapping[str, Any]) -> bool:
        about = properties_of(said)
        profile = about.get("publishingProfile") or {}
        places = [one for one in profile.get("targetRegions") or () if _place(one["name"]) == self._settings.location]
        return (
            about.get("provisioningState", "Succeeded") == "Succeeded"
            and not profile.get("excludeFromLatest")
            and bool(places)
            and not any(one.get("excludeFromLatest") for one in places)
        )


def _place(name: str) -> str:
    """A location by either of its names: ``West Europe``."""
    return name.lower().replace(" ", "")


def _age(said: Mapping[str, Any]) -> tuple[str, list[int]]:
    published = str((properties_of(said).get("publishingProfile") or {}).get("publishedDate", ""))
    return published, [int(part) for part in said["name"].split(".")]
