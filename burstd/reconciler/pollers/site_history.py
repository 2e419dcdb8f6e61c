"""Takes a sample of the site each minute, in a worker's thread; writes it in the deciding one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from burstd.db import StoreBroken, StoreError
from burstd.domain.billing.use import ClaimRun
from burstd.domain.plan import Plan
from burstd.domain.site_history import RESOLUTIONS, Figures, Part, step_start
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.site_history import site_figures
from burstd.reconciler.context import LoopContext

QUEUE = "site history"
"""The lane of the workers."""
SITE_HISTORY_SUBJECT = "the history of the site"
"""What an alarm names."""
_MAX_UNWRITTEN = 60
"""So many samples wait for a database that cannot be written; then the oldest are lost."""


class SiteHistoryRecorder:
    """Used in the deciding thread."""

    def __init__(
        self,
        context: LoopContext,
        take_started: Callable[[], Sequence[Job]],
        running: Callable[[], Sequence[ClaimRun]],
    ) -> None:
        """``take_started``: the jobs that have started since its last call. ``running``: runs on machines now."""
        self._context = context
        self._take_started, self._running = take_started, running
        self._sampled = self._thinned = -1
        self._unwritten: deque[tuple[float, Mapping[Part, Figures]]] = deque(maxlen=_MAX_UNWRITTEN)

    def step(self, snapshot: Snapshot, plan: Plan) -> None:
        """Begins a sample of this minute where none is begun. Its figures are written by a later ``run_callbacks``."""
        minute = step_start(snapshot.now, RESOLUTIONS[0].step_s)
        if minute == self._sampled:
            return
        self._sampled = minute
        # A sample without Slurm's figures has no place for them: the next one has.
        started = tuple(self._take_started()) if isinstance(snapshot.slurm, SlurmView) else ()
        idle = self._context.store.idle_mode
        work = partial(site_figures, snapshot, plan, started, self._running(), idle)
        # It is no news to a decision: no loop runs for it.
        self._context.workers.submit(QUEUE, work, partial(self._write, snapshot.now), quiet=lambda _: True)

    def _write(self, time: float, figures: Mapping[Part, Figures] | Exception) -> None:
        """What goes wrong is an alarm: no decision depends on history. Written with the next sample where it can be."""
        quarantine = self._context.quarantine
        with quarantine.contain_errors("a sample", SITE_HISTORY_SUBJECT):
            if isinstance(figures, Exception):
                raise figures
            self._unwritten.append((time, figures))
            while self._unwritten:
                sample = self._unwritten.popleft()
                try:
                    self._record(*sample)
                except StoreError as error:
                    self._unwritten.appendleft(sample)
                    quarantine.add_subject(SITE_HISTORY_SUBJECT, "writing", error)
                    return

    def _record(self, time: float, figures: Mapping[Part, Figures]) -> None:
        due = step_start(time, RESOLUTIONS[1].step_s)
        thin, self._thinned = due != self._thinned, due
        unread = self._context.store.record_site_figures(time, figures, thin=thin)
        if unread:
            error = StoreBroken(f"{unread} of its samples cannot be read, and longer ones are made without them")
            self._context.quarantine.add_subject(SITE_HISTORY_SUBJECT, "thinning", error)
