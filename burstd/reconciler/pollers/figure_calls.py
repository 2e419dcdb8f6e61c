"""Which machine is to be asked for figures next: what that costs grows with what is due, not with what there is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count


class Rank(IntEnum):
    """Of a call: the lowest comes first."""

    ENDING = 0
    """Its machine owes the last figures of a job, and is to end."""
    OWING = 1
    """Its machine owes the last figures of a job."""
    CHANGE = 2
    """A sampler is to begin or to end there."""
    ROUTINE = 3
    """Its jobs run on."""


_NONE = (-1, Rank.ROUTINE, 0.0)


class FigureCalls:
    """One call at most is kept for each machine. Times in burstd's time."""

    def __init__(self) -> None:
        self._heaps: dict[Rank, list[tuple[float, int, str]]] = {rank: [] for rank in Rank}
        self._valid: dict[str, tuple[int, Rank, float]] = {}
        """By machine the number of its call, with what it was put by; a call of another number was replaced."""
        self._numbers = count()

    def put(self, machine: str, rank: Rank, due: float) -> None:
        """In place of the call that was kept for this machine."""
        known = self._valid.get(machine)
        if known is not None and known[1:] == (rank, due):
            return
        number = next(self._numbers)
        self._valid[machine] = number, rank, due
        heappush(self._heaps[rank], (due, number, machine))

    def drop(self, machine: str) -> None:
        """Nothing is to be asked there."""
        self._valid.pop(machine, None)

    def next_due(self, ranks: Iterable[Rank]) -> float:
        """When the first call of these ranks is due; infinite: there is none."""
        return min((heap[0][0] for rank in ranks if (heap := self._heap(rank))), default=float("inf"))

    def pop(self, ranks: Iterable[Rank], now: float) -> tuple[str, Rank] | None:
        """Takes out the first call of these ranks that is due: of the lowest rank, and of these the longest due."""
        for rank in ranks:
            heap = self._heap(rank)
            if heap and heap[0][0] <= now:
                _, _, machine = heappop(heap)
                del self._valid[machine]
                return machine, rank
        return None

    def _heap(self, rank: Rank) -> list[tuple[float, int, str]]:
        """Without calls that were replaced, as far as its first goes."""
        heap = self._heaps[rank]
        while heap and self._valid.get(heap[0][2], _NONE)[0] != heap[0][1]:
            heappop(heap)
        return heap
