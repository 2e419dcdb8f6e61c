"""What a word of the settings means: an image by its name, or the newest of a family.

https://cloud.google.com/compute/docs/images/image-families-best-practices
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from burstd.domain.errors import BadRequest, NoSuchImage, NotFound
from providers.google.calls import GoogleCalls
from providers.google.labels import GoogleResource
from providers.google.settings import GoogleSettings

_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_WORD = re.compile(rf"(?P<family>family:)?(?:(?P<project>(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]+)/)?(?P<name>{_NAME})")
_URL = re.compile(rf"projects/(?P<project>[^/\s]+)/global/images/(?P<family>family/)?(?P<name>{_NAME})")
_FORMS = "family:NAME, family:PROJECT/NAME, NAME or PROJECT/NAME"
_GONE = ("OBSOLETE", "DELETED", "DEPRECATED")


class GoogleImages:
    """Those of the projects that words name: a word without one means the settings' project."""

    def __init__(self, settings: GoogleSettings, calls: GoogleCalls) -> None:
        self._settings = settings
        self._calls = calls

    def versions(self, word: str) -> Sequence[str]:
        """``projects/P/global/images/NAME`` of each that a word means and that is ready, the newest first.

        Raises BadRequest where there is none.
        """
        project, family, name = _parse(self._settings, word)
        key = "family" if family else "name"
        listed = self._calls.items(
            "compute.images.list", f"list images of project {project}", project=project, filter=f'{key} = "{name}"',
            maxResults=self._settings.page,
        )  # fmt: skip
        try:
            found = [one for one in listed if one.get(key) == name and _usable(one)]
        except NotFound as error:
            raise NoSuchImage(f"there is no project '{project}' with images that burstd may see: {error}") from error
        if not found:
            raise NoSuchImage(
                f"project {project} has no image that is ready and not deprecated of the {key} '{name}': image is one "
                f"of {_FORMS}"
            )
        found.sort(key=lambda one: datetime.fromisoformat(one["creationTimestamp"]), reverse=True)
        return [f"projects/{project}/global/images/{one['name']}" for one in found]


def image_url(settings: GoogleSettings, word: str) -> str:
    """``sourceImage`` for a word, or for a version of one. Raises BadRequest where it can be neither."""
    project, family, name = _parse(settings, word)
    return f"projects/{project}/global/images/{'family/' if family else ''}{name}"


def _parse(settings: GoogleSettings, word: str) -> tuple[str, bool, str]:
    """Project, whether it is a family, and the name."""
    word = word or settings.image
    if not word:
        raise BadRequest(f"no image is named: set image in the provider's settings or the pool's offers ({_FORMS})")
    found = _URL.fullmatch(word) or _WORD.fullmatch(word)
    if found is None:
        raise NoSuchImage(f"image '{word}' is none of {_FORMS}")
    return found["project"] or settings.project, bool(found["family"]), found["name"]


def _usable(said: GoogleResource) -> bool:
    return said.get("status") == "READY" and (said.get("deprecated") or {}).get("state") not in _GONE
