"""The versions of the images that pools name, asked of the clouds that have versions (``Images``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BadRequest, BurstdError
from burstd.domain.plugins.provider import Provider, VersionedImages
from burstd.planner.offers.named_images import rule_images
from burstd.reconciler.observer import PollIntervals
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

_Key = tuple[str, str]


@dataclass(slots=True)
class _ImageVersions:
    versions: tuple[str, ...] = ()
    due: float = float("-inf")
    reading: bool = False
    failures: int = 0
    error: str = ""


class ImageVersionPoller:
    """What cannot be read now stays as it was. Used in the deciding thread; calls are made in the lanes of listings."""

    def __init__(
        self, providers: Mapping[str, Provider], workers: Workers, clock: Clock, intervals: PollIntervals
    ) -> None:
        self._sources = {name: p for name, p in providers.items() if isinstance(p, VersionedImages)}
        self._workers = workers
        self._clock = clock
        self._intervals = intervals
        self._versions: dict[_Key, _ImageVersions] = {}

    def poll(self, pools: Iterable[Pool]) -> None:
        """Asks for what is due; answers come with ``drain``."""
        if not self._sources:
            return
        pools = tuple(pools)
        keys = {(name, image) for name in self._sources for image in rule_images(name, pools)}
        self._versions = {key: self._versions.get(key, _ImageVersions()) for key in sorted(keys)}
        now = self._clock.now()
        for key, known in self._versions.items():
            if not known.reading and now >= known.due:
                self._read(key, known)

    def next_poll(self) -> float:
        """When the next asking is due, in burstd's time."""
        return min((known.due for known in self._versions.values() if not known.reading), default=float("inf"))

    def versions(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By provider and word, the versions, newest first; none: they were never read so far."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for (name, image), known in self._versions.items():
            found.setdefault(name, {})[image] = known.versions
        return found

    def alarms(self) -> list[str]:
        """Images that are not to be had."""
        return [
            f"image {image or 'of the settings'} of {name}: {k.error}"
            for (name, image), k in self._versions.items()
            if k.error
        ]

    def _read(self, key: _Key, known: _ImageVersions) -> None:
        name, image = key
        source = self._sources[name]
        known.reading, known.due = True, self._clock.now() + self._intervals.image_polls * self._intervals.cloud_poll_s

        def done(result: Sequence[str] | Exception) -> None:
            known.reading = False
            if not result:
                result = BadRequest(f"{name} knows no version of image {image!r}")
            if isinstance(result, Exception):
                self._failed(name, image, known, result)
                return
            if known.versions and known.versions[0] != result[0]:
                log.info("image has a new version", provider=name, image=image, version=result[0])
            known.versions, known.failures, known.error = tuple(result), 0, ""

        def quiet(result: Sequence[str]) -> bool:
            return tuple(result) == known.versions

        self._workers.submit(f"{name}:list", lambda: source.images(image), done, quiet)

    def _failed(self, name: str, image: str, known: _ImageVersions, error: Exception) -> None:
        text = str(error) or type(error).__name__
        pause = self._intervals.call_retry_s * 2.0 ** min(known.failures, 10)
        known.failures, known.due = known.failures + 1, min(known.due, self._clock.now() + pause)
        if not isinstance(error, BurstdError):
            log.error("provider broke while telling an image's versions", provider=name, image=image, exc_info=error)
        elif text != known.error:
            log.warning("an image's versions cannot be read", provider=name, image=image, error=text)
        known.error = text
