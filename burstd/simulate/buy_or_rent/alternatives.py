"""What each way to have more GPUs (or CPUs) costs and brings, by replays of one trace. Units are GPUs or CPUs.

Added units are nodes of the site in the replay. They are paid for in all hours of the window, and after it in those in
which its jobs still use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf

from burstd.domain.billing.site_cost import HourCost
from burstd.simulate.buy_or_rent.prices import Prices, Way
from burstd.simulate.report.figures import percentile
from burstd.simulate.report.result import ChainResult, SimulatedJobRun, TraceWindow
from burstd.simulate.traces.window import HOUR_S


@dataclass(frozen=True, slots=True)
class AddedReplay:
    """One replay with so many units added, with or without a cloud. Waits infinite: jobs never started."""

    units: int
    burst: bool
    jobs: int
    unfinished: int
    p50_wait_s: float
    p90_wait_s: float
    mean_completion_s: float
    """From submission to end; infinite where a job did not end."""
    inside_h: float
    """Hours of added units in which jobs ran, within the window ..."""
    after_h: float
    """... and after it."""
    cloud_used_h: float
    """Hours of the clouds' units in which jobs ran."""
    cloud_cost: Decimal
    """Of its machines, boot and idle time included, in their currency."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """So many units added in one way, with or without bursting. Money in one currency."""

    replay: AddedReplay
    way: Way | None
    """None: none are added."""
    cost: Decimal
    """Full: all hours of the added units that are paid for, what their use adds, and machines of clouds."""
    marginal: Decimal | None
    """What use adds, and machines of clouds; None: it is not known of the added units."""
    utilisation: float | None
    """Of the added units, within the window."""
    paid_h: float
    """Hours of added units that are paid for."""
    replaced: float | None
    """Hours that clouds' units worked less than with none added, as a part of these."""

    @property
    def used_h(self) -> float:
        """Of added and of clouds' units, in which jobs ran."""
        return self.replay.inside_h + self.replay.after_h + self.replay.cloud_used_h

    @property
    def cost_per_used(self) -> Decimal | None:
        """Full, of an hour of use."""
        return self.cost / Decimal(self.used_h) if self.used_h else None

    @property
    def marginal_per_used(self) -> Decimal | None:
        """The same of what use adds."""
        return None if self.marginal is None or not self.used_h else self.marginal / Decimal(self.used_h)


def added_replay(units: int, result: ChainResult, first_added: int, window: TraceWindow, *, burst: bool) -> AddedReplay:
    """The figures of a replay. ``first_added``: number of the first node that was added."""
    waits = sorted(job.wait_s for job in result.jobs)
    inside_s = after_s = 0.0
    for job in result.jobs:
        inside, after = _use(job, first_added, window)
        inside_s, after_s = inside_s + inside, after_s + after
    count = len(result.jobs)
    completions = sum(job.ended - job.submitted for job in result.jobs)
    return AddedReplay(
        units, burst, count, sum(job.ended == inf for job in result.jobs), percentile(waits, 50),
        percentile(waits, 90), completions / count if count else 0.0, inside_s / HOUR_S, after_s / HOUR_S,
        result.figures.cloud_busy_gpu_hours, result.figures.cost,
    )  # fmt: skip


def _use(job: SimulatedJobRun, first_added: int, window: TraceWindow) -> tuple[float, float]:
    """Unit seconds of a job on added nodes within the window and after it."""
    units = job.gpus // job.nodes * sum(node >= first_added for node in job.site_nodes)
    if not units:
        return 0.0, 0.0
    inside = max(0.0, min(job.ended, window.end) - job.started)
    return units * inside, units * (job.ended - job.started - inside)


def alternatives_of(replays: Sequence[AddedReplay], prices: Prices, window: TraceWindow) -> tuple[Alternative, ...]:
    """All, by number of units, way, and without bursting first; one replay serves each way."""
    hours = (window.end - window.start) / HOUR_S
    alone = burst_alone(replays)
    found: list[Alternative] = []
    for units in sorted({one.units for one in replays}):
        pair = sorted((one for one in replays if one.units == units), key=lambda one: one.burst)
        ways: Sequence[Way | None] = prices.ways if units else [None]
        found += [_alternative(one, way, prices.cloud_worth, hours, alone) for way in ways for one in pair]
    return tuple(found)


def burst_alone(replays: Sequence[AddedReplay]) -> AddedReplay:
    """Bursting with none added."""
    return next(one for one in replays if one.burst and not one.units)


def _alternative(replay: AddedReplay, way: Way | None, worth: Decimal, hours: float, alone: AddedReplay) -> Alternative:
    cloud, window_h = replay.cloud_cost * worth, replay.units * hours
    if way is None:
        return Alternative(replay, None, cloud, cloud, None, 0.0, None)
    paid_h = window_h + replay.after_h
    used = Decimal(replay.inside_h + replay.after_h)
    owned = way.hour.owned * Decimal(paid_h)
    added = None if way.hour.marginal is None else way.hour.marginal * used
    replaced = (alone.cloud_used_h - replay.cloud_used_h) / paid_h if replay.burst else None
    return Alternative(
        replay, way, owned + (added or 0) + cloud, None if added is None else added + cloud,
        replay.inside_h / window_h, paid_h, replaced,
    )  # fmt: skip


def cheapest(alternatives: Sequence[Alternative]) -> Alternative:
    """Of those whose waits (median, 90 %) are not longer than with bursting alone, and in which as many jobs end."""
    alone = burst_alone([one.replay for one in alternatives])
    good = [
        one
        for one in alternatives
        if one.replay.p50_wait_s <= alone.p50_wait_s
        and one.replay.p90_wait_s <= alone.p90_wait_s
        and one.replay.unfinished <= alone.unfinished
    ]
    return min(good, key=lambda one: (one.cost, one.replay.units))


def cloud_hour(alone: AddedReplay, worth: Decimal) -> Decimal | None:
    """What an hour came to in which a job ran on a cloud's unit, boot and idle time included; None: none did."""
    return alone.cloud_cost * worth / Decimal(alone.cloud_used_h) if alone.cloud_used_h else None


def break_even(hour: HourCost, cloud: Decimal | None) -> Decimal | None:
    """The part of all hours that must be used in place of the clouds' for a way to pay; None: it never does."""
    return None if cloud is None else hour.break_even(cloud)
