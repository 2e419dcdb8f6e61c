"""The pending jobs in the order in which Slurm will look at them, with what is known of each since the last look."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeVar

from burstd.domain.slurm.job import PENDING_STATES, Job
from burstd.planner.changes import SequenceChanges, sequence_changes

_MAX_CHANGES = 1000
"""So many changes are not put in one by one."""
T = TypeVar("T")


def _priority_key(job: Job) -> tuple[int, float]:
    return -job.priority, job.submitted


def _by_position(some: Iterable[tuple[int, Job]]) -> dict[int, list[Job]]:
    """By where each stands among the jobs that stayed."""
    found: dict[int, list[Job]] = {}
    for before, (n, job) in enumerate(some):
        found.setdefault(n - before, []).append(job)
    return found


def pending_in_order(jobs: tuple[Job, ...]) -> list[Job]:
    """Those that are pending, by priority, then by time, then as Slurm lists them."""
    pending = [job for job in jobs if job.state in PENDING_STATES]
    # Two sorts by one field each take half the time of one by both.
    pending.sort(key=attrgetter("submitted"))
    pending.sort(key=attrgetter("priority"), reverse=True)
    return pending


@dataclass(slots=True)
class PendingQueue(Generic[T]):
    """``notes`` has what somebody noted of each of ``pending``; None: nothing, or what does not hold any more."""

    jobs: tuple[Job, ...] = ()
    pending: list[Job] = field(default_factory=list)
    notes: list[T | None] = field(default_factory=list)
    former_notes: dict[str, T] = field(default_factory=dict)
    """By the job's id, what had been noted of those that the last look found changed, and in their old place."""
    context: Hashable = None
    """What the notes hold for besides the jobs."""

    def update(self, jobs: tuple[Job, ...], context: Hashable) -> bool:
        """Brings it up to date. Notes of jobs that are the very same stay, as long as the context is the same.

        True where nothing changed.
        """
        same = context == self.context
        self.former_notes = {}
        if not same:
            self.notes, self.context = [None] * len(self.pending), context
        found = sequence_changes(self.jobs, jobs) if self.jobs else None
        if found is None or len(found) > _MAX_CHANGES or not self._apply_changes(found):
            known_notes = dict(zip(map(id, self.pending), self.notes, strict=True))
            fresh = pending_in_order(jobs)
            self.notes = list(map(known_notes.get, map(id, fresh)))
            self.pending = fresh
        if found is None or len(found):
            # Else they may be equal and yet others: those in ``pending`` must be these very ones.
            self.jobs = jobs
        return same and found is not None and not len(found)

    def _apply_changes(self, found: SequenceChanges[Job]) -> bool:
        """Puts a few changes in; False, and all is to be sorted anew, where the jobs' fields do not tell where to."""
        gone = _by_position((n, job) for n, job in found.removed if job.state in PENDING_STATES)
        come = _by_position((n, job) for n, job in found.added if job.state in PENDING_STATES)
        for position, jobs in come.items():
            before = gone.get(position, ())
            if len(jobs) == len(before) == 1 and _priority_key(jobs[0]) == _priority_key(before[0]):
                # Most often the same job with another reason.
                at = self._index(before[0])
                note = self.notes[at]
                if note is not None and before[0].id == jobs[0].id:
                    self.former_notes[jobs[0].id] = note
                self.pending[at], self.notes[at] = jobs[0], None
                gone.pop(position)
                jobs.clear()
        for job in chain.from_iterable(gone.values()):
            at = self._index(job)
            del self.pending[at], self.notes[at]
        for job in chain.from_iterable(come.values()):
            at = bisect_right(self.pending, _priority_key(job), key=_priority_key)
            if at and _priority_key(self.pending[at - 1]) == _priority_key(job):
                return False
            self.pending.insert(at, job)
            self.notes.insert(at, None)
        return True

    def _index(self, job: Job) -> int:
        at = bisect_left(self.pending, _priority_key(job), key=_priority_key)
        while self.pending[at] is not job:
            at += 1
        return at
