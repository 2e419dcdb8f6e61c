"""Finds the image that a word of the settings means: an id, a name, the newest of a family, one with given properties.

Images and their properties: https://docs.openstack.org/api-ref/image/v2/
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from burstd.domain.errors import BadRequest, NotFound
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
        """The image that ``word`` means, or the settings' own where it is empty. Raises BadRequest with the remedy."""
        word = word or self._settings.image
        if not word:
            raise BadRequest(f"no image is named: set image in the provider's settings or the pool's offers ({_FORMS})")
        return self._cache.get(word)

    def _look_up(self, word: str) -> OpenStackImage:
        if _UUID.fullmatch(word):
            return self._by_id(word)
        kind, _, rest = word.partition(":")
        if kind == "newest" and rest:
            return self._newest(word, lambda said: fnmatchcase(str(said.get("name") or ""), rest))
        if kind == "property" and rest:
            wanted = _properties(word, rest)
            return self._newest(word, lambda said: all(str(said.get(k)) == v for k, v in wanted.items()))
        return self._by_name(word)

    def _by_id(self, image_id: str) -> OpenStackImage:
        try:
            said = self._calls.query("image", f"/images/{image_id}", f"read image {image_id}")
        except NotFound as error:
            raise BadRequest(f"image {image_id} is not there, or not shared with this project: name another") from error
        if said.get("status") != "active":
            raise BadRequest(f"image {image_id} is {said.get('status')}: wait until it is active, or name another")
        return _image(said)

    def _by_name(self, name: str) -> OpenStackImage:
        found = [said for said in self._active(name=name) if said.get("name") == name]
        if not found:
            raise BadRequest(f"no active image is named '{name}' that this project sees: image is one of {_FORMS}")
        if len(found) > 1:
            raise BadRequest(f"{len(found)} active images are named '{name}': write the id of one, or newest:{name}")
        return _image(found[0])

    def _newest(self, word: str, fits: Callable[[Mapping[str, Any]], bool]) -> OpenStackImage:
        newest_first = self._active(sort="created_at:desc,id:desc")
        found = next(filter(fits, newest_first), None)
        if found is None:
            raise BadRequest(f"no active image that this project sees is '{word}': look at the name and its properties")
        return _image(found)

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
