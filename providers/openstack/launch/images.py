"""Finds the images that a word of the settings means: an id, a name, a family of names, given properties.

Images and their properties: https://docs.openstack.org/api-ref/image/v2/
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from burstd.domain.errors import BadRequest, NoSuchImage, NotFound
from providers.cache import CachedByKey
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings

_CACHE_S = 300.0
_GIB = 1 << 30
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_FORMS = "an id, a name, newest:PATTERN or property:KEY=VALUE"


@dataclass(frozen=True, slots=True)
class OpenStackImage:
    """What a launch needs to know of an image."""

    id: str
    name: str
    min_disk_gib: int
    """The least that a disk made from it must have."""
    architecture: str
    """As ``uname -m`` has it; empty: the image does not say."""
    created: str
    """As Glance has it: text that sorts by time."""


class OpenStackImages:
    """Those that the project sees. What was found is kept for five minutes: a new image is used soon after.

    Where Glance does not answer then, it is kept a minute more.
    """

    def __init__(
        self, settings: OpenStackSettings, calls: OpenStackCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._cache = CachedByKey(self._look_up, _CACHE_S, clock)

    def find_image(self, word: str) -> OpenStackImage:
        """The image that ``word`` means, or the settings' own where it is empty: the newest of several.

        Raises BadRequest with the remedy.
        """
        return self._cache.get(self._named(word))

    def versions(self, word: str) -> Sequence[str]:
        """Ids of the active images that a word means, the newest first; in calls that grow with pages only.

        Raises BadRequest where there is none.
        """
        word = self._named(word)
        return (word,) if _UUID.fullmatch(word) else [one["id"] for one in self._versions(word)]

    def _named(self, word: str) -> str:
        word = word or self._settings.image
        if not word:
            raise BadRequest(f"no image is named: set image in the provider's settings or the pool's offers ({_FORMS})")
        return word

    def _look_up(self, word: str) -> OpenStackImage:
        return self._by_id(word) if _UUID.fullmatch(word) else _image(self._versions(word)[0])

    def _by_id(self, image_id: str) -> OpenStackImage:
        try:
            said = self._calls.query("image", f"/images/{image_id}", f"read image {image_id}")
        except NotFound as error:
            raise NoSuchImage(
                f"image {image_id} is not there, or not shared with this project: name another"
            ) from error
        if said.get("status") != "active":
            raise NoSuchImage(f"image {image_id} is {said.get('status')}: wait until it is active, or name another")
        return _image(said)

    def _versions(self, word: str) -> Sequence[Mapping[str, Any]]:
        kind, _, rest = word.partition(":")
        if kind == "newest" and rest:
            found = self._newest_first(lambda said: fnmatchcase(str(said.get("name") or ""), rest))
        elif kind == "property" and rest:
            wanted = _properties(word, rest)
            found = self._newest_first(lambda said: all(str(said.get(k)) == v for k, v in wanted.items()))
        else:
            found = self._newest_first(lambda said: said.get("name") == word, name=word)
        for owner in self._settings.image_owners:
            if versions := [said for said in found if self._is_of(said, owner)]:
                return versions
        if found:
            owners, theirs = ", ".join(self._settings.image_owners), sorted({str(said.get("owner")) for said in found})
            raise NoSuchImage(
                f"'{word}' means images of project {', '.join(theirs)} only: add it to image_owners (now {owners}), or "
                "name an id"
            )
        raise NoSuchImage(f"no active image that this project sees is '{word}': image is one of {_FORMS}")

    def _newest_first(self, fits: Callable[[Mapping[str, Any]], bool], **query: Any) -> list[Mapping[str, Any]]:
        return list(filter(fits, self._active(sort="created_at:desc,id:desc", **query)))

    def _is_of(self, said: Mapping[str, Any], owner: str) -> bool:
        """Any project may share an image of any name with this one: whose it is must be among the settings."""
        if owner == "public":
            return said.get("visibility") == "public"
        return said.get("owner") == (self._calls.project_id() if owner == "self" else owner)

    def _active(self, **query: Any) -> Iterator[Mapping[str, Any]]:
        """Page by page. Their properties stand among Glance's own words."""
        page = self._settings.page
        return self._calls.pages("image", "/images", "images", "list images", status="active", limit=page, **query)


def _properties(word: str, text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(key and sign for key, sign, _ in pairs):
        raise BadRequest(f"image '{word}' is not written property:KEY=VALUE[,KEY=VALUE]")
    return {key: value for key, _, value in pairs}


def _image(said: Mapping[str, Any]) -> OpenStackImage:
    size = said.get("virtual_size") or said.get("size") or 0
    return OpenStackImage(
        said["id"], said.get("name") or "", max(said.get("min_disk") or 0, -(-size // _GIB)),
        said.get("architecture") or "", said.get("created_at") or "",
    )  # fmt: skip
