"""What would start a job, asked for by users: as much of it as the deciding thread has time for."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, process_time

from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import PolicyFailed, Target
from burstd.domain.slurm.option_change import Change
from burstd.domain.snapshot import Snapshot
from burstd.planner.explain.what_if import what_if

MOST_S = 1.0
"""Of the processor, for one answer; what was found by then is the answer."""
SHORT_S = 0.1
"""Answers that take no longer may be had at any time."""
REST = 10.0
"""So many times as long as an answer took no other one is made."""
_OVER = Target(failed=(PolicyFailed("explain", "there is no time for more"),))


class Trials:
    """Used in the deciding thread."""

    def __init__(self) -> None:
        self._rests_until = float("-inf")
        self._last: tuple[str, tuple[Change, ...]] = ("", ())

    def changes(
        self, snapshot: Snapshot, plan: Plan, job_id: str, decide: Callable[[Snapshot], Target]
    ) -> tuple[Change, ...]:
        """As what_if; while it rests the last answer for the same job, none for others."""
        began = process_time()
        if monotonic() < self._rests_until:
            return self._last[1] if job_id == self._last[0] else ()
        found = what_if(snapshot, plan, job_id, lambda seen: decide(seen) if process_time() - began < MOST_S else _OVER)
        took = process_time() - began
        self._last = job_id, found
        self._rests_until = monotonic() + took * REST if took > SHORT_S else float("-inf")
        return found
