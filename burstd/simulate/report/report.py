"""What a replay has come to, ready to be shown: the JSON, and the figures of the table and the page, are this.

The same replay gives the same report, byte for byte: what the real clock said is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from burstd.simulate.report.result import ChainResult, Figures, ReplayResult, TimelineSample

BASELINES = ("never", "immediate", "aged")
"""Chains to compare others with, by the word before their colon."""
_SAMPLES = 240
"""Of a timeline, at most; more than a plot can show."""
_SHARES = tuple(step / 200 for step in range(201))
_WAITS = ("mean_wait_s", "p50_wait_s", "p95_wait_s", "max_wait_s", "bounded_slowdown")
_PAID = ("cloud_gpu_hours", "cloud_node_hours", "cost", "waste", "launches", "interruptions", "stockouts")


class _ReportModel(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class ComparisonToImmediate(_ReportModel):
    """A chain beside ``immediate``."""

    cloud_gpu_hours: float | None
    """Share by which it used more (or less: negative); null where ``immediate`` used none."""
    mean_wait_s: float
    p95_wait_s: float


class WaitDistribution(_ReportModel):
    """How many of the jobs waited at most how long. A null wait: the job never started."""

    share: tuple[float, ...]
    wait_s: tuple[float | None, ...]


class ChainTimeline(_ReportModel):
    """How things went, in slices of time: the most that a slice saw. Each list has an entry for each slice."""

    time: tuple[float, ...]
    """When the slice begins, in seconds since 1970."""
    pending_jobs: tuple[int, ...]
    site_busy: tuple[int, ...]
    cloud_nodes: tuple[int, ...]
    cloud_busy: tuple[int, ...]


class ChainReport(_ReportModel):
    """One chain. Figures are as result.Figures has them; lengths of time in seconds, null: it never came."""

    chain: str
    baseline: bool
    best: tuple[str, ...]
    """The figures in which no chain is better; of those about the cloud, no chain that used it."""
    pareto: bool
    """No other chain is better in mean wait and cloud GPU-hours (node-hours where there are no GPUs)."""
    against_immediate: ComparisonToImmediate | None
    jobs: int
    mean_wait_s: float | None
    p50_wait_s: float | None
    p95_wait_s: float | None
    max_wait_s: float | None
    bounded_slowdown: float | None
    cloud_gpu_hours: float
    cloud_node_hours: float
    cloud_busy_gpu_hours: float
    cost: Decimal
    currency: str
    waste: float
    launches: int
    interruptions: int
    stockouts: int
    cloud_jobs: int
    unfinished: int
    impossible: int
    used_site: float
    decisions: int
    waits: WaitDistribution
    course: ChainTimeline


class ReportWindow(_ReportModel):
    """The part of the trace that was replayed."""

    start: datetime
    end: datetime


class SimulationReport(_ReportModel):
    """All of it."""

    version: Literal[1] = 1
    """It changes where a key goes or changes its meaning; new keys may come at any time."""
    title: str
    trace: str
    site: str
    site_size: int
    """The most that ``site_busy`` can be; 0: not known."""
    site_unit: str
    """What ``site_busy`` counts: GPUs or CPUs."""
    cloud: str
    window: ReportWindow
    seed: int
    notes: tuple[str, ...]
    chains: tuple[ChainReport, ...] = Field(description="in the order asked for")

    def json_text(self) -> str:
        """For programs; ends with a line end."""
        return self.model_dump_json(indent=1) + "\n"


def build_report(replay: ReplayResult) -> SimulationReport:
    """The report of a replay."""
    results = replay.results
    immediate = next((r.figures for r in results if r.chain == "immediate"), None)
    front = pareto_front([(_used(r.figures), r.figures.mean_wait_s) for r in results])
    best = _best([r.figures for r in results])
    return SimulationReport(
        title=replay.title, trace=replay.trace, site=replay.site, site_size=replay.site_size,
        site_unit=replay.site_unit, cloud=replay.cloud, seed=replay.seed,
        window=ReportWindow(start=_date(replay.window.start), end=_date(replay.window.end)), notes=replay.notes,
        chains=tuple(map(_chain, results, best, front, [immediate] * len(results))),
    )  # fmt: skip


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which of the points no other one beats: less or equal in both, and less in one."""
    return [
        all(math.isfinite(part) for part in one)
        and not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points)
        for one in points
    ]


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _used(figures: Figures) -> float:
    return figures.cloud_gpu_hours or figures.cloud_node_hours


def _best(all_figures: Sequence[Figures]) -> list[tuple[str, ...]]:
    found: list[list[str]] = [[] for _ in all_figures]
    for names, counts in ((_WAITS, _any), (_PAID, _used)):
        for name in names:
            values = [(float(getattr(f, name)), place) for place, f in enumerate(all_figures) if counts(f)]
            least = min(values, default=(math.inf, 0))[0]
            for value, place in values:
                if value == least < max(values)[0]:
                    found[place].append(name)
    return [tuple(names) for names in found]


def _any(_: Figures) -> bool:
    return True


def _chain(result: ChainResult, best: tuple[str, ...], front: bool, immediate: Figures | None) -> ChainReport:
    figures = result.figures
    values = {
        name: _rounded(getattr(figures, name))
        for name in Figures.__dataclass_fields__
        if name not in {"elapsed_s", "currency"}
    }
    return ChainReport.model_validate(values | {
        "chain": result.chain, "baseline": result.chain.partition(":")[0] in BASELINES, "best": best, "pareto": front,
        "against_immediate": None if immediate is None or result.chain == "immediate" else _against(figures, immediate),
        "currency": figures.currency, "waits": _waits(sorted(job.wait_s for job in result.jobs)),
        "course": build_timeline(result.timeline),
    })  # fmt: skip


def _rounded(value: float | Decimal) -> float | Decimal | None:
    if isinstance(value, Decimal):
        return value.quantize(Decimal("0.01"))
    if not math.isfinite(value):
        return None
    return round(value, 4)


def _against(figures: Figures, immediate: Figures) -> ComparisonToImmediate | None:
    waits = (figures.mean_wait_s - immediate.mean_wait_s, figures.p95_wait_s - immediate.p95_wait_s)
    if not all(map(math.isfinite, waits)):
        return None
    share = _used(figures) / _used(immediate) - 1 if _used(immediate) else None
    return ComparisonToImmediate(
        cloud_gpu_hours=share if share is None else round(share, 4),
        mean_wait_s=round(waits[0], 4), p95_wait_s=round(waits[1], 4),
    )  # fmt: skip


def _waits(ordered: Sequence[float]) -> WaitDistribution:
    if not ordered:
        return WaitDistribution(share=(), wait_s=())
    places = [max(0, math.ceil(share * len(ordered)) - 1) for share in _SHARES]
    return WaitDistribution(share=_SHARES, wait_s=tuple(_limited(ordered[place]) for place in places))


def _limited(wait_s: float) -> float | None:
    return round(wait_s, 1) if math.isfinite(wait_s) else None


def build_timeline(samples: Sequence[TimelineSample]) -> ChainTimeline:
    """Samples joined to slices of equal length, few enough to be drawn; peaks stay."""
    size = max(1, math.ceil(len(samples) / _SAMPLES))
    slices = [samples[at : at + size] for at in range(0, len(samples), size)]

    def most(value: Callable[[TimelineSample], int]) -> tuple[int, ...]:
        return tuple(max(map(value, part)) for part in slices)

    return ChainTimeline(
        time=tuple(part[0].time for part in slices),
        pending_jobs=most(lambda s: s.pending_jobs), site_busy=most(lambda s: s.site_busy),
        cloud_nodes=most(lambda s: s.cloud_nodes), cloud_busy=most(lambda s: s.cloud_busy),
    )  # fmt: skip
