"""The versions that an image's word stands for: those that an ImageStream's tag had, or a reference that is its own.

https://docs.openshift.com/container-platform/latest/openshift_images/image-streams-manage.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burstd.domain.errors import BadRequest, NotFound
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import NoSuchApi
from providers.openshift.settings import OpenShiftSettings

_API = "image.openshift.io/v1"
_WORD = re.compile(r"imagestream:(?P<name>[a-z0-9][a-z0-9.-]*):(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]*)")
_STREAM = "imagestream:"


class ImageVersions:
    """Those that the namespace's ImageStreams have. Nothing is kept: a new image is used at once."""

    def __init__(self, settings: OpenShiftSettings, calls: OpenShiftCalls) -> None:
        self._settings = settings
        self._calls = calls

    def versions(self, word: str) -> Sequence[str]:
        """Versions of an image, newest first. One call where it is an ImageStream's; else none."""
        word = word or self._settings.image
        if not word:
            raise BadRequest(
                "no image is named: set image in the provider's settings or the pool's offers (a reference, or "
                "imagestream:NAME:TAG)"
            )
        if not word.startswith(_STREAM):
            return (word,)
        found = _WORD.fullmatch(word)
        if found is None:
            raise BadRequest(f"image '{word}' is not written imagestream:NAME:TAG")
        return self._history(found["name"], found["tag"])

    def newest_version(self, word: str) -> str:
        """The newest."""
        return self.versions(word)[0]

    def _history(self, name: str, tag: str) -> Sequence[str]:
        space = self._settings.namespace
        try:
            said = self._calls.request_json(
                "GET", self._calls.path_of("imagestreams", name, api=_API), what=f"read ImageStream {name}"
            )
        except NoSuchApi as error:
            raise BadRequest(
                "this cluster has no ImageStreams (they are OpenShift's): set image to a reference in a registry, best "
                "with its digest, REGISTRY/NAME@sha256:..."
            ) from error
        except NotFound as error:
            raise BadRequest(
                f"namespace {space} has no ImageStream {name}: make it with 'oc apply -n {space} -f "
                f"config/openshift/image.yaml', or set image to one of 'oc get imagestreams -n {space}'"
            ) from error
        tags: Mapping[str, Any] = {one["tag"]: one for one in (said.get("status") or {}).get("tags") or ()}
        items = tags.get(tag, {}).get("items") or ()
        # A tag that went back to an earlier image has that twice.
        versions = tuple(dict.fromkeys(one["dockerImageReference"] for one in items))
        if not versions:
            raise BadRequest(_empty(name, tag, tags, space))
        return versions


def _empty(name: str, tag: str, tags: Mapping[str, Any], space: str) -> str:
    """Why a tag has no image."""
    failed = [one for one in tags.get(tag, {}).get("conditions") or () if one.get("status") == "False"]
    if failed:
        return f"ImageStream {name} could not import its tag {tag}: {failed[0].get('message') or failed[0]['type']}"
    there = ", ".join(sorted(one for one, said in tags.items() if said.get("items"))) or "none"
    return (
        f"ImageStream {name} has no image under the tag {tag} (tags with one: {there}): wait for its build "
        f"('oc get builds -n {space}'), or start one with 'oc start-build'"
    )
