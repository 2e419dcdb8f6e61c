"""The versions of the images that pools name, asked of the clouds that have versions (``Images``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import structlog

from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BadRequest
from burstd.domain.plugins.provider import VersionedImages
from burstd.planner.offers.named_images import rule_images
from burstd.reconciler.context import LoopContext
from burstd.runtime.poller import Poller

log = structlog.get_logger(__name__)

_Key = tuple[str, str]


@dataclass(slots=True)
class _ImageVersions:
    poller: Poller
    versions: tuple[str, ...] = ()


class ImageVersionPoller:
    """What cannot be read now stays as it was. Used in the deciding thread; calls are made in the lanes of listings."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._sources = {name: p for name, p in context.providers.items() if isinstance(p, VersionedImages)}
        self._known: dict[_Key, _ImageVersions] = {}

    def poll(self, pools: Iterable[Pool]) -> None:
        """Asks for what is due; answers come with ``drain``."""
        if not self._sources:
            return
        pools = tuple(pools)
        keys = {(name, image) for name in self._sources for image in rule_images(name, pools)}
        self._known = {key: self._known.get(key) or _ImageVersions(self._poller(key)) for key in sorted(keys)}
        for (name, image), known in self._known.items():
            known.poller.poll(
                partial(self._read, name, image),
                partial(self._keep, name, image, known),
                quiet=lambda result, known=known: result == known.versions,  # type: ignore[misc]
            )

    def _poller(self, key: _Key) -> Poller:
        def interval_s() -> float:
            return self._context.intervals.image_polls * self._context.intervals.cloud_poll_s

        name, image = key
        return Poller(
            self._context.workers, self._context.clock, f"{name}:list", f"image {image or 'of the settings'} of {name}",
            interval_s=interval_s, retry_s=lambda: self._context.intervals.call_retry_s, most_s=interval_s,
        )  # fmt: skip

    def _read(self, name: str, image: str) -> tuple[str, ...]:
        found = tuple(self._sources[name].images(image))
        if not found:
            raise BadRequest(f"{name} knows no version of image {image!r}")
        return found

    def _keep(self, name: str, image: str, known: _ImageVersions, result: tuple[str, ...]) -> None:
        if known.versions and known.versions[0] != result[0]:
            log.info("image has a new version", provider=name, image=image, version=result[0])
        known.versions = result

    def next_poll(self) -> float:
        """When the next asking is due, in burstd's time."""
        return min((known.poller.next_due() for known in self._known.values()), default=float("inf"))

    def versions(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By provider and word, the versions, newest first; none: they were never read so far."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for (name, image), known in self._known.items():
            found.setdefault(name, {})[image] = known.versions
        return found

    def alarms(self) -> list[str]:
        """Images that are not to be had."""
        return [f"{known.poller.what}: {known.poller.error}" for known in self._known.values() if known.poller.error]
