"""What a site asked for, had and paid over time: samples of a snapshot, and how they are merged as they age.

A figure of a sample is one of four kinds, by its measure:

- a gauge (jobs, GPUs, machines, money per hour): the sum over the merged samples, and the largest;
- a sum (jobs that started, seconds that they had waited, how many of them had waited for how long): merged samples are
  added up;
- a peak (the longest wait): the largest;
- a count that only grows (money spent): the last.

All are whole numbers but gauges of GPUs, so that sums stay exact however often samples are merged. Money is in
millionths of the currency, and its measure ends in ``.CURRENCY``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

STARTED, WAIT_S, WAIT_MAX_S = "started", "wait_s", "wait_max_s"
SPENT, MONEY_PER_HOUR = "spent", "money_per_hour"
WAITS_BELOW = "waits_below_"
"""``waits_below_64``: the jobs that started after a wait of 32 to 63 seconds. Limits are powers of two."""
MICROS = 1_000_000
"""Millionths in a unit of a currency."""
DAY_S = 86400


class Part(StrEnum):
    """Figures that are read together, from one source."""

    SITE = "site"
    """What Slurm says of the whole site; waits by pool."""
    MACHINES = "machines"
    """Machines and money: of the site, by pool and by provider. Known while Slurm is not."""
    PROJECTS = "projects"
    """By project, and by Slurm account where that is no project's."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Samples of one length, in seconds, and how long they are kept."""

    step_s: int
    keep_s: float


RESOLUTIONS = (
    Resolution(60, 2 * DAY_S),
    Resolution(600, 31 * DAY_S),
    Resolution(3600, 366 * DAY_S),
    Resolution(DAY_S, float("inf")),
)
"""From fine to coarse. The coarser ones are made while the finer ones are still there."""

Gauge = Sequence[float]
"""The sum of the values of all samples, and the largest of them."""
Figure = float | Gauge
"""A gauge of one sample is its value."""
Figures = Mapping[str, Mapping[str, Figure]]
"""By subject (``site``, ``pool/gpu``, ``provider/aws``, ``project/a``, ``account/phys``), then by measure.

Zeros are left out.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one step, which begins at ``time`` (burstd's seconds since 1970)."""

    time: int
    samples: int
    """How many snapshots it was merged from."""
    figures: Figures


def step_start(time: float, step_s: int) -> int:
    """The beginning of the step in which a moment lies."""
    return int(time // step_s) * step_s


@lru_cache(maxsize=1024)
def is_gauge(measure: str) -> bool:
    """Whether a measure has a mean and a maximum."""
    return measure not in (STARTED, WAIT_S, WAIT_MAX_S) and not measure.startswith((f"{SPENT}.", WAITS_BELOW))


def gauge_values(figure: Figure) -> tuple[float, float]:
    """The sum and the largest value of a gauge."""
    return (figure, figure) if isinstance(figure, int | float) else (figure[0], figure[1])


def wait_measure(wait_s: int) -> str:
    """The measure that counts a job that has waited so long."""
    return f"{WAITS_BELOW}{1 << wait_s.bit_length()}"


def wait_percentile(measures: Mapping[str, Figure], percent: int) -> float | None:
    """Seconds that so many of a hundred jobs had waited at most; None where none has started.

    By the nearest rank. The jobs between two limits are taken to lie at equal distances, none above the longest wait.
    """
    counts = sorted(
        (int(name.removeprefix(WAITS_BELOW)), gauge_values(count)[0])
        for name, count in measures.items()
        if name.startswith(WAITS_BELOW)
    )
    rank = -(-sum(count for _, count in counts) * percent // 100)
    for limit, count in counts:
        if rank <= count:
            low, high = limit // 2, min(limit, gauge_values(measures.get(WAIT_MAX_S, 0))[0])
            return low + (high - low) * rank / count
        rank -= count
    return None


def merge_samples(time: int, samples: Sequence[Sample]) -> Sample:
    """One sample of several, given in the order of their times."""
    if len(samples) == 1:
        return Sample(time, samples[0].samples, samples[0].figures)
    merged: dict[str, dict[str, Figure]] = {}
    for sample in samples:
        for subject, measures in sample.figures.items():
            there = merged.setdefault(subject, {})
            for measure, figure in measures.items():
                there[measure] = _merge(measure, there[measure], figure) if measure in there else figure
    return Sample(time, sum(sample.samples for sample in samples), merged)


def _merge(measure: str, before: Figure, figure: Figure) -> Figure:
    if is_gauge(measure):
        (total, most), (more, other) = gauge_values(before), gauge_values(figure)
        return [total + more, max(most, other)]
    if not isinstance(before, int | float) or not isinstance(figure, int | float):
        raise TypeError(f"{measure} is no gauge and has one number")
    if measure == WAIT_MAX_S:
        return max(before, figure)
    return figure if measure.startswith(f"{SPENT}.") else before + figure
