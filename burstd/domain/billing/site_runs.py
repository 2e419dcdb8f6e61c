"""Runs of jobs on nodes of the site's own, and what they cost by the prices of the site.

A run costs its share of its nodes, times its time, times the price of an hour where every hour is used
(``HourCost.full``): what it costs hangs on nobody else's use. Idle hours are charged to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.billing.use import DAY_S, WHOLE, Charge, Kind, Payer


@dataclass(frozen=True, slots=True)
class SiteRun:
    """One run of a job on nodes that cost the same. Times in seconds since 1970 in burstd's own time."""

    group: str
    """Of ``[site.cost]``."""
    payer: Payer
    run_start: int
    """``Job.run_start``. With the job and the group it names the run."""
    started: float
    share: int
    """Of nodes, over all that it has, in millionths of one."""
    price: Decimal
    """Of an hour of all that it has, as prices were when it began."""
    currency: str
    ended: float | None = None
    """None: it runs."""
    nodes: str = ""
    """Slurm's host list of them; empty: not known."""


@dataclass(frozen=True, slots=True)
class SiteCharge:
    """A charge with what else its line in the file of a month has. Fields as of the run."""

    group: str
    nodes: str
    run_start: int
    currency: str
    charge: Charge


def site_charges(run: SiteRun, until: float) -> Iterator[Charge]:
    """What a run has cost by ``until``, or by its end, by day (UTC): what its cost grew by in it."""
    end = until if run.ended is None else min(until, run.ended)
    length = round((end - run.started) * 1000)
    at = cost = time = 0
    while at < length:
        day = int((run.started + (at + 0.5) / 1000) // DAY_S)
        at = max(at + 1, min(length, round(((day + 1) * DAY_S - run.started) * 1000)))
        cost_then, time_then = int(cost_of(run.price, at / 1000) / MICRO), at * run.share // WHOLE
        yield Charge(day, Kind.SITE, "", run.payer, cost_then - cost, time_then - time)
        cost, time = cost_then, time_then
