"""The queue of Slurm as its backfill scheduler works it off: EASY (Lifka, The ANL/IBM SP Scheduling System, 1995).

In the order of submission each job starts wherever it fits first, on the site's nodes or on machines of the cloud. The
first that could run on the site and does not fit has nodes kept for it from the time at which, by the time limits of
what runs, they will be free; others start before it where that does not delay it.

Jobs that ask for the same, time limit included, form a class, those of each user where machines take jobs of one user
at a time. Within one pass room only shrinks: when the first of a
class does not fit, none of it does, so that a pass takes time by classes and not by jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from burstd.simulate.traces.window import ReplayJob
from burstd.simulate.world.site import BackfillReservation, OnPremSite

_Class = tuple[int, int, float, str]
OnJobStarted = Callable[[ReplayJob, tuple[int, ...], tuple[str, ...]], None]
"""Told of each start: the job, its nodes of the site, or its machines."""


class OpenMachines(Protocol):
    """The machines of the cloud that are open to all."""

    users_matter: bool
    """Some run jobs of one user at a time."""

    def find_slots(self, job: ReplayJob) -> tuple[str, ...]:
        """Slots with room for such a job; empty: none."""
        ...

    def allocate(self, slots: tuple[str, ...], job: ReplayJob, now: float) -> None:
        """Puts the job there."""
        ...


class BackfillQueue:
    """Pending jobs."""

    def __init__(self, site: OnPremSite, machines: OpenMachines, staging_s: float, on_started: OnJobStarted) -> None:
        """``staging_s``: how long after its submission the input of a job is in the store."""
        self.waiting: dict[int, ReplayJob] = {}
        self.head: ReplayJob | None = None
        """For whom ``hold`` is."""
        self.reservation: BackfillReservation | None = None
        self._site = site
        self._machines = machines
        self._staging_s = staging_s
        self._on_started = on_started
        self._classes: dict[_Class, list[int]] = {}
        self.wanted: Counter[int] = Counter()
        """How many nodes all of them ask for, by the units that they ask of each."""

    def add(self, job: ReplayJob) -> None:
        """A job that was submitted, or begins anew."""
        self.waiting[job.number] = job
        self.wanted[job.units] += job.nodes
        user = job.user if self._machines.users_matter else ""
        heappush(self._classes.setdefault((job.nodes, job.units, job.limit_s, user), []), job.number)

    def remove(self, job: ReplayJob) -> None:
        """It starts on machines that are kept for it alone."""
        del self.waiting[job.number]
        self.wanted[job.units] -= job.nodes
        if job is self.head:
            self.head = self.reservation = None

    def start_if_possible(self, job: ReplayJob, now: float) -> bool:
        """Starts this job if that can be. Enough where room has not grown since the last pass and the head waits."""
        if self._start(job, now):
            return True
        if self.head is None and self._site.fits_when_empty(job.nodes, job.units):
            self._reserve_for(job)
        return False

    def backfill_pass(self, now: float) -> None:
        """One pass: starts all that can be started."""
        self.head = self.reservation = None
        first = [(number, key) for key in list(self._classes) if (number := self._first(key))]
        heapify(first)
        while first:
            number, key = heappop(first)
            job = self.waiting[number]
            if self._start(job, now):
                number = self._first(key)
                if number:
                    heappush(first, (number, key))
            elif self.head is None and self._site.fits_when_empty(job.nodes, job.units):
                self._reserve_for(job)

    def _reserve_for(self, job: ReplayJob) -> None:
        self.head, self.reservation = job, self._site.reserve(job.nodes, job.units)

    def _first(self, key: _Class) -> int:
        """The first of a class that still waits; 0: none does."""
        numbers = self._classes[key]
        while numbers and numbers[0] not in self.waiting:
            heappop(numbers)
        if not numbers:
            del self._classes[key]
            return 0
        return numbers[0]

    def _start(self, job: ReplayJob, now: float) -> bool:
        until = now + job.limit_s
        site_nodes = self._site.find_nodes(job.nodes, job.units, until, self.reservation)
        slots: tuple[str, ...] = ()
        if site_nodes:
            self._site.allocate(site_nodes, job.units, until, self.reservation)
        elif now >= job.submitted + self._staging_s and (slots := self._machines.find_slots(job)):
            self._machines.allocate(slots, job, now)
        else:
            return False
        self.remove(job)
        self._on_started(job, site_nodes, slots)
        return True
