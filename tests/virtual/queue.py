"""The queue of the simulated Slurm, and its scheduling pass: by priority, all nodes of a job at once, backfill."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from burstd.domain.slurm.job import JobState
from tests.virtual.job import JobSpec, Signature, SimJob
from tests.virtual.node import SimNode

_Heap = list[tuple[tuple[int, int], int]]


@dataclass(frozen=True, slots=True)
class Shadow:
    """What the first blocked job of a partition is promised: these nodes, at that moment."""

    nodes: frozenset[str]
    start: float


@dataclass(slots=True)
class Queue:
    """Pending jobs that may start, grouped by what they ask for: of one group only the first need be tried."""

    jobs: Mapping[int, SimJob]
    _groups: dict[Signature, _Heap] = field(default_factory=dict)
    _signatures: dict[int, Signature] = field(default_factory=dict)
    _reasons: dict[Signature, str] = field(default_factory=dict)

    def add(self, job: SimJob) -> None:
        """The job may be considered from now on; again, where what it asks for has changed."""
        signature = job.signature()
        if self._signatures.get(job.number) != signature:
            self._signatures[job.number] = signature
            heapq.heappush(self._groups.setdefault(signature, []), (job.order, job.number))

    def remove(self, job: SimJob) -> None:
        """It started, ended or is held."""
        self._signatures.pop(job.number, None)

    def reason(self, job: SimJob) -> str:
        """Why a job of the queue does not start: what was found for the first of its group."""
        return self._reasons.get(self._signatures.get(job.number, ()), "None")

    def _head(self, signature: Signature) -> tuple[tuple[int, int], int] | None:
        heap = self._groups[signature]
        while heap:
            number = heap[0][1]
            job = self.jobs.get(number)
            if job is not None and job.state is JobState.PENDING and self._signatures.get(number) == signature:
                return heap[0]
            heapq.heappop(heap)
        del self._groups[signature]
        self._reasons.pop(signature, None)
        return None

    def scheduling_pass(self, start: Callable[[SimJob], str]) -> int:
        """One pass. ``start`` starts a job and returns "", or returns why it cannot. Returns how many started."""
        heads = []
        for signature in list(self._groups):
            head = self._head(signature)
            if head is not None:
                heads.append((*head, signature))
        # Signatures do not compare, but the job's number before them is never the same twice.
        heapq.heapify(heads)
        started = 0
        while heads:
            _, number, signature = heads[0]
            reason = start(self.jobs[number])
            if reason:
                self._reasons[signature] = reason
                heapq.heappop(heads)
                continue
            started += 1
            self._signatures.pop(number, None)
            head = self._head(signature)
            if head is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (*head, signature))
        return started


def choose_nodes(spec: JobSpec, seen: Sequence[SimNode], shadow: Shadow | None, ends: float) -> list[SimNode] | None:
    """As many nodes as the job needs, without keeping ``shadow``'s job waiting longer; None: not now."""
    chosen: list[SimNode] = []
    for node in seen:
        if shadow is not None and node.name in shadow.nodes and ends > shadow.start:
            continue
        if node.fits(spec):
            chosen.append(node)
            if len(chosen) == spec.nodes:
                return chosen
    return None


def cast_shadow(spec: JobSpec, seen: Sequence[SimNode], jobs: Mapping[int, SimJob], now: float) -> Shadow:
    """When and where a blocked job will start at the latest: each node once all its jobs have ended."""
    free = []
    for node in seen:
        ends = [now]
        if not node.fits(spec):
            ends += [(jobs[n].started or now) + jobs[n].spec.time_limit_s for n in node.shares]
        free.append((max(ends), node.name))
    free.sort()
    taken = free[: spec.nodes]
    return Shadow(frozenset(name for _, name in taken), taken[-1][0])
