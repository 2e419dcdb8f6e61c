"""Takes a sample of the site each minute, in a worker's thread; writes it in the deciding one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from burstd.domain.plan import Plan
from burstd.domain.site_history import RESOLUTIONS, Figures, Part, step_start
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.site_history import site_figures
from burstd.reconciler.context import LoopContext

QUEUE = "site history"
"""The lane of the workers."""


class SiteHistoryRecorder:
    """Used in the deciding thread."""

    def __init__(self, context: LoopContext, take_started: Callable[[], Sequence[Job]]) -> None:
        """``take_started``: the jobs that have started since its last call."""
        self._context = context
        self._take_started = take_started
        self._sampled = self._thinned = -1

    def step(self, snapshot: Snapshot, plan: Plan) -> None:
        """Begins a sample of this minute where none is begun. Its figures are written by a later ``run_callbacks``."""
        minute = step_start(snapshot.now, RESOLUTIONS[0].step_s)
        if minute == self._sampled:
            return
        self._sampled = minute
        # A sample without Slurm's figures has no place for them: the next one has.
        started = tuple(self._take_started()) if isinstance(snapshot.slurm, SlurmView) else ()
        work = partial(site_figures, snapshot, plan, started)
        # It is no news to a decision: no loop runs for it.
        self._context.workers.submit(QUEUE, work, partial(self._write, snapshot.now), quiet=lambda _: True)

    def _write(self, time: float, figures: Mapping[Part, Figures] | Exception) -> None:
        """Raises what taking the sample raised, and StoreError."""
        if isinstance(figures, Exception):
            raise figures
        due = step_start(time, RESOLUTIONS[1].step_s)
        self._context.store.record_site_figures(time, figures, thin=due != self._thinned)
        self._thinned = due
