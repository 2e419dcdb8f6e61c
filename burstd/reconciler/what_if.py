"""What would start a job, and what one would meet, asked by users: as much as the deciding thread has time for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import ceil
from time import monotonic, process_time

from burstd.domain.billing.site_cost import SiteCosts
from burstd.domain.errors import NoAnswer
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import PolicyFailed, Target
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.quote import Quote, UsablePartition
from burstd.domain.snapshot import Snapshot
from burstd.planner.explain.quote import quote_jobs
from burstd.planner.explain.what_if import helpful_changes

MAX_CPU_S = 1.0
"""Of the processor, for one answer; what was found by then is the answer."""
UNTHROTTLED_CPU_S = 0.1
"""Answers that take no longer may be had at any time."""
PAUSE_FACTOR = 10.0
"""So many times as long as an answer took no other one is made."""
_NO_COSTS = SiteCosts()
_NO_TIME = Target(failed_policies=(PolicyFailed("explain", "there is no time for more"),))


class ThrottledWhatIf:
    """Used in the deciding thread."""

    def __init__(self) -> None:
        self._paused_until = float("-inf")
        self._last: tuple[str, tuple[OptionChange, ...]] = ("", ())

    def smallest_changes(
        self, snapshot: Snapshot, plan: Plan, job_id: str, decide: Callable[[Snapshot], Target]
    ) -> tuple[OptionChange, ...]:
        """As what_if; while it rests the last answer for the same job, none for others."""
        began = process_time()
        if monotonic() < self._paused_until:
            return self._last[1] if job_id == self._last[0] else ()
        found = helpful_changes(
            snapshot, plan, job_id, lambda seen: decide(seen) if process_time() - began < MAX_CPU_S else _NO_TIME
        )
        took = process_time() - began
        self._last = job_id, found
        self._paused_until = monotonic() + took * PAUSE_FACTOR if took > UNTHROTTLED_CPU_S else float("-inf")
        return found


class ThrottledQuotes:
    """Used in the deciding thread. Each answer makes the next wait, short ones once they are many."""

    def __init__(self) -> None:
        self._rested_at = float("-inf")

    def quote_jobs(
        self,
        snapshot: Snapshot,
        plan: Plan,
        jobs: Sequence[Job],
        usable: Collection[UsablePartition],
        decide: Callable[[Snapshot], Target],
        site_costs: SiteCosts = _NO_COSTS,
    ) -> tuple[Quote, ...]:
        """As quote_jobs. Raises NoAnswer while it rests."""
        left_s = self._rested_at - monotonic() - UNTHROTTLED_CPU_S * PAUSE_FACTOR
        if left_s > 0:
            raise NoAnswer(f"burstd has just worked out other quotes; try again in {ceil(left_s)} s")
        began = process_time()

        def in_time() -> bool:
            return process_time() - began < MAX_CPU_S

        def decide_in_time(seen: Snapshot) -> Target:
            return decide(seen) if in_time() else _NO_TIME

        try:
            return quote_jobs(snapshot, plan, jobs, usable, decide_in_time, site_costs, in_time)
        finally:
            self._rested_at = max(self._rested_at, monotonic()) + (process_time() - began) * PAUSE_FACTOR
