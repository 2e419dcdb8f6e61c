"""The versions of the images that pools name, asked of the clouds that have versions (``Images``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BadRequest, BurstdError
from burstd.domain.plugins.provider import Images, Provider
from burstd.planner.offers.named_images import words_named
from burstd.reconciler.observer import Pace
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

_Key = tuple[str, str]


@dataclass(slots=True)
class _Known:
    versions: tuple[str, ...] = ()
    due: float = float("-inf")
    asking: bool = False
    failures: int = 0
    error: str = ""


class ImageDesk:
    """What cannot be read now stays as it was. Used in the deciding thread; calls are made in the lanes of listings."""

    def __init__(self, providers: Mapping[str, Provider], workers: Workers, clock: Clock, pace: Pace) -> None:
        self._sources = {name: p for name, p in providers.items() if isinstance(p, Images)}
        self._workers = workers
        self._clock = clock
        self._pace = pace
        self._known: dict[_Key, _Known] = {}

    def look(self, pools: Iterable[Pool]) -> None:
        """Asks for what is due; answers come with ``drain``."""
        if not self._sources:
            return
        pools = tuple(pools)
        keys = {(name, word) for name in self._sources for word in words_named(name, pools)}
        self._known = {key: self._known.get(key, _Known()) for key in sorted(keys)}
        now = self._clock.now()
        for key, known in self._known.items():
            if not known.asking and now >= known.due:
                self._ask(key, known)

    def due(self) -> float:
        """When the next asking is due, in burstd's time."""
        return min((known.due for known in self._known.values() if not known.asking), default=float("inf"))

    def known(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By provider and word, the versions, newest first; none: they were never read so far."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for (name, word), known in self._known.items():
            found.setdefault(name, {})[word] = known.versions
        return found

    def alarms(self) -> list[str]:
        """Images that are not to be had."""
        return [
            f"image {word or 'of the settings'} of {name}: {k.error}"
            for (name, word), k in self._known.items()
            if k.error
        ]

    def _ask(self, key: _Key, known: _Known) -> None:
        name, word = key
        source = self._sources[name]
        known.asking, known.due = True, self._clock.now() + self._pace.image_polls * self._pace.cloud_poll_s

        def done(result: Sequence[str] | Exception) -> None:
            known.asking = False
            if not result:
                result = BadRequest(f"{name} knows no version of image {word!r}")
            if isinstance(result, Exception):
                self._failed(name, word, known, result)
                return
            if known.versions and known.versions[0] != result[0]:
                log.info("image has a new version", provider=name, image=word, version=result[0])
            known.versions, known.failures, known.error = tuple(result), 0, ""

        def quiet(result: Sequence[str]) -> bool:
            return tuple(result) == known.versions

        self._workers.submit(f"{name}:list", lambda: source.images(word), done, quiet)

    def _failed(self, name: str, word: str, known: _Known, error: Exception) -> None:
        text = str(error) or type(error).__name__
        pause = self._pace.call_retry_s * 2.0 ** min(known.failures, 10)
        known.failures, known.due = known.failures + 1, min(known.due, self._clock.now() + pause)
        if not isinstance(error, BurstdError):
            log.error("provider broke while telling an image's versions", provider=name, image=word, exc_info=error)
        elif text != known.error:
            log.warning("an image's versions cannot be read", provider=name, image=word, error=text)
        known.error = text
