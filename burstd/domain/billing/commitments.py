"""What machines that are not gone may still cost: the part of a budget that is promised, not yet spent."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from burstd.domain.billing.costs import SHUTDOWN_S, worst_case
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.slurm.job import RUNNING_STATES, Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot

_RUNNING = (RUNNING_STATES - {JobState.STAGE_OUT}) | {JobState.CONFIGURING}
_ENDING = frozenset({ClaimState.FAILED, ClaimState.LOST, ClaimState.TERMINATING})
_STARTING = frozenset({ClaimState.PLANNED, ClaimState.LAUNCHING, ClaimState.BOOTING, ClaimState.VALIDATING})


class Commitments:
    """Reads a snapshot once. ``unlimited_s`` stands in for the time limit of jobs without one, in seconds.

    ``overhead_s`` is how long a machine may be paid for around its jobs.
    """

    def __init__(self, snapshot: Snapshot, overhead_s: float, unlimited_s: float = 0.0) -> None:
        self._now = snapshot.now
        self._overhead_s = overhead_s
        self._unlimited_s = unlimited_s
        self._still_paid = snapshot.still_billed()
        self._waiting: dict[str, Job] = {}
        self._until: dict[str, float] = {}
        claims = (*snapshot.claims, *snapshot.storage_claims)
        slots = {claim.slot for claim in claims}
        wanted = {job for claim in claims for job in claim.jobs} | set(snapshot.bound)
        self._bound: dict[str, list[str]] = {}
        for job_id, names in snapshot.bound.items():
            for name in names:
                self._bound.setdefault(name, []).append(job_id)
        self._read(snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) and slots else (), slots, wanted)

    def _read(self, jobs: Iterable[Job], slots: set[str], wanted: set[str]) -> None:
        for job in jobs:
            if job.state in _RUNNING:
                end = self._end(job)
                for slot in slots.intersection(job.node_list):
                    self._until[slot] = max(self._until.get(slot, 0.0), end)
            elif job.id in wanted:
                self._waiting[job.id] = job

    def _end(self, job: Job) -> float:
        """When Slurm ends a job that runs, at the latest."""
        began = job.start or self._now
        return max(began + (job.time_limit_s or self._unlimited_s), self._now)

    def remaining_s(self, claim: Claim) -> float:
        """How long it may be paid for from now on."""
        if claim.billed_until is not None and claim.id not in self._still_paid:
            return 0.0
        running = max(0.0, self._until.get(claim.slot, 0.0) - self._now)
        if claim.state in _ENDING:
            return running + SHUTDOWN_S
        due = [self._waiting[j] for j in (*claim.jobs, *self._bound.get(claim.slot, ())) if j in self._waiting]
        limit = max((job.time_limit_s or self._unlimited_s for job in due), default=0.0)
        # What is reserved holds the time of its boot; where nothing is, it is to be counted here.
        boot = self._overhead_s if claim.state in _STARTING and not claim.reserved else 0.0
        return max(running, limit) + boot + SHUTDOWN_S

    def committed_cost(self, claim: Claim) -> Decimal:
        """What it will have cost at most when it is gone, in the offer's currency."""
        cost = claim.cost(self._now)
        return max(claim.reserved, cost + worst_case(claim.offer.price, self.remaining_s(claim), claim.egress))
