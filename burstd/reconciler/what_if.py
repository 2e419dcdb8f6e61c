"""What would start a job, and what one would meet, asked by users: as much as the deciding thread has time for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from time import monotonic, thread_time

from burstd.domain.billing.site_cost import SiteCosts
from burstd.domain.errors import NoAnswer
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import PolicyFailed, Target
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.quote import Quote, UsablePartition
from burstd.domain.snapshot import Snapshot
from burstd.planner.explain.quote import NO_SITE_COSTS, quote_jobs
from burstd.planner.explain.what_if import helpful_changes

MAX_CPU_S = 1.0
"""Of the processor, for one answer; what was found by then is the answer."""
UNTHROTTLED_CPU_S = 0.1
"""Of the processor: so much may be had at any time after a long rest."""
PAUSE_FACTOR = 10.0
"""So many times as long as answers took is rest."""
_NO_TIME = Target(failed_policies=(PolicyFailed("explain", "there is no time for more"),))


class ThrottledQuestions:
    """Used in the deciding thread. Of its time all answers together have an eleventh, once they have had a little."""

    def __init__(self) -> None:
        self._rested_at = float("-inf")
        self._last: tuple[str, tuple[OptionChange, ...]] = ("", ())

    def smallest_changes(
        self, snapshot: Snapshot, plan: Plan, job_id: str, decide: Callable[[Snapshot], Target]
    ) -> tuple[OptionChange, ...]:
        """As helpful_changes; while it rests the last answer for the same job, none for others."""
        if self._left_s() > 0:
            return self._last[1] if job_id == self._last[0] else ()
        with self._answering() as in_time:
            found = helpful_changes(snapshot, plan, job_id, lambda seen: decide(seen) if in_time() else _NO_TIME)
        self._last = job_id, found
        return found

    def quote_jobs(
        self,
        snapshot: Snapshot,
        plan: Plan,
        jobs: Sequence[Job],
        usable: Collection[UsablePartition],
        decide: Callable[[Snapshot], Target],
        site_costs: SiteCosts = NO_SITE_COSTS,
    ) -> tuple[Quote, ...]:
        """As quote_jobs. Raises NoAnswer while it rests."""
        left_s = self._left_s()
        if left_s > 0:
            raise NoAnswer(f"burstd has just worked out other answers; try again in {ceil(left_s)} s")
        with self._answering() as in_time:
            return quote_jobs(
                snapshot, plan, jobs, usable, lambda seen: decide(seen) if in_time() else _NO_TIME, site_costs, in_time
            )

    def _left_s(self) -> float:
        return self._rested_at - monotonic() - UNTHROTTLED_CPU_S * PAUSE_FACTOR

    @contextmanager
    def _answering(self) -> Iterator[Callable[[], bool]]:
        """Gives what says whether there is time left."""
        began, cpu_began = monotonic(), thread_time()
        try:
            yield lambda: thread_time() - cpu_began < MAX_CPU_S
        finally:
            self._rested_at = max(self._rested_at, began) + (thread_time() - cpu_began) * (PAUSE_FACTOR + 1)
