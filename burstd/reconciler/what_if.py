"""What would start a job, asked for by users: as much of it as the deciding thread has time for."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, process_time

from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import PolicyFailed, Target
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.snapshot import Snapshot
from burstd.planner.explain.what_if import helpful_changes

MAX_CPU_S = 1.0
"""Of the processor, for one answer; what was found by then is the answer."""
UNTHROTTLED_CPU_S = 0.1
"""Answers that take no longer may be had at any time."""
PAUSE_FACTOR = 10.0
"""So many times as long as an answer took no other one is made."""
_OUT_OF_TIME = Target(failed_policies=(PolicyFailed("explain", "there is no time for more"),))


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
            snapshot, plan, job_id, lambda seen: decide(seen) if process_time() - began < MAX_CPU_S else _OUT_OF_TIME
        )
        took = process_time() - began
        self._last = job_id, found
        self._paused_until = monotonic() + took * PAUSE_FACTOR if took > UNTHROTTLED_CPU_S else float("-inf")
        return found
