"""Counts what a run has come to."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import ceil, inf

from burstd.simulate.report.result import Figures, SimulatedJobRun
from burstd.simulate.run import ReplayOutcome, Scenario
from burstd.simulate.traces.window import HOUR_S, Workload

SHORTEST_S = 10.0
"""Of a bounded slowdown: shorter jobs count as so long."""


def compute_figures(course: ReplayOutcome, workload: Workload, world: Scenario) -> Figures:
    """The figures of a chain."""
    started = [job for job in course.jobs if job.started < inf]
    waits = sorted(job.wait_s for job in started)
    bill, window = course.fleet.bill, workload.window
    capacity_s = world.nodes * world.node_size * (window.end - window.start)
    return Figures(
        jobs=len(course.jobs),
        mean_wait_s=_mean(waits),
        p50_wait_s=percentile(waits, 50),
        p95_wait_s=percentile(waits, 95),
        max_wait_s=waits[-1] if waits else 0.0,
        bounded_slowdown=_mean([_slowdown(job) for job in started if job.ended < inf]),
        cloud_gpu_hours=bill.unit_s / HOUR_S,
        cloud_node_hours=bill.machine_s / HOUR_S,
        cloud_busy_gpu_hours=bill.busy_unit_s / HOUR_S,
        cost=bill.cost.quantize(Decimal("0.01")),
        currency=world.market.currency,
        waste=1.0 - bill.busy_machine_s / bill.machine_s if bill.machine_s else 0.0,
        launches=bill.launches,
        interruptions=bill.interruptions,
        stockouts=bill.stockouts,
        cloud_jobs=sum(1 for job in course.jobs if job.burst),
        unfinished=sum(1 for job in course.jobs if job.ended == inf),
        impossible=course.impossible,
        used_site=course.site_unit_s / capacity_s,
        decisions=course.decisions,
        elapsed_s=course.elapsed_s,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the sorted values that is not below ``percent`` of them (nearest rank); 0 of none."""
    return values[max(1, ceil(len(values) * percent / 100)) - 1] if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _slowdown(job: SimulatedJobRun) -> float:
    run_s = job.ended - job.started
    return max(1.0, (job.wait_s + run_s) / max(run_s, SHORTEST_S))
