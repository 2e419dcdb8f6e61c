"""The text that scrapes get: rendered apart from them, and kept as bytes, plain and compressed."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from burstd.domain.plan import Plan
from burstd.domain.snapshot import Snapshot
from burstd.metrics.families import FAMILIES, Values, bounded
from burstd.metrics.figures import snapshot_figures
from burstd.runtime.precedence import UNDISTURBED, DecisionPrecedence

_AGE = "burstd_snapshot_age_seconds"


@dataclass(frozen=True, slots=True)
class Exposition:
    """All metrics but the age of the snapshot, which is added to each answer: it grows where nothing is rendered."""

    plain: bytes = b""
    compressed: bytes = b""
    seen_at: float | None = None
    """When the snapshot was taken, in burstd's seconds since 1970; None: there is none."""

    def body(self, now: float, started: float, *, compress: bool) -> bytes:
        """What a scrape gets. Parts that are compressed apart are one gzip file (RFC 1952, 2.2)."""
        age = max(0.0, now - (started if self.seen_at is None else self.seen_at))
        help_text = FAMILIES[_AGE].help
        tail = f"# HELP {_AGE} {help_text}\n# TYPE {_AGE} gauge\n{_AGE} {age:.3f}\n".encode()
        return self.compressed + gzip.compress(tail, 1) if compress else self.plain + tail


def render(
    counters: CollectorRegistry,
    latest: tuple[Snapshot, Plan] | None,
    version: str,
    precedence: DecisionPrecedence = UNDISTURBED,
) -> Exposition:
    """The text as of now."""
    text = generate_latest(counters) + generate_latest(_Gauges(latest, version, precedence))
    return Exposition(text, gzip.compress(text, 5), latest[0].now if latest is not None else None)


class _Gauges(Collector):
    """What a snapshot and its plan say."""

    def __init__(self, latest: tuple[Snapshot, Plan] | None, version: str, precedence: DecisionPrecedence) -> None:
        self._latest = latest
        self._version = version
        self._precedence = precedence

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Each gauge."""
        yield _family("burstd_info", {(self._version,): 1.0}, max)
        yield _family("burstd_leader", {(): 1.0}, max)
        if self._latest is not None:
            for name, values, combine in snapshot_figures(*self._latest, self._precedence):
                self._precedence.wait()
                yield _family(name, values, combine)


def _family(name: str, values: Values, combine: Callable[[float, float], float]) -> GaugeMetricFamily:
    described = FAMILIES[name]
    family = GaugeMetricFamily(name, described.help, labels=described.labels)
    for labels, value in bounded(values, combine).items():
        family.add_metric(labels, value)
    return family
