"""The nodes of the site: how many GPUs (or CPUs) are free on each, and when more will be by the time limits."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest

_FREE_NOW = float("-inf")


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """What EASY keeps for the head of the queue: when it will start, and on which nodes."""

    shadow_time: float
    spare: dict[int, int]
    """By node of the head's, the units that will be free there beyond what the head takes. Jobs that run on past ``at``
    use them up."""


class OnPremSite:
    """Nodes of one size. Units are GPUs or CPUs."""

    def __init__(self, nodes: int, size: int) -> None:
        self.nodes = nodes
        self.size = size
        self.free = [size] * nodes
        self.changed: set[int] = set(range(nodes))
        """Nodes that have changed since somebody looked and emptied this."""
        self._by_free: list[dict[int, None]] = [{} for _ in range(size + 1)]
        self._by_free[size] = dict.fromkeys(range(nodes))
        self._running: list[list[tuple[float, int]]] = [[] for _ in range(nodes)]
        self._free_at: list[list[float] | None] = [None] * nodes

    @property
    def busy(self) -> int:
        """Units in use."""
        return self.nodes * self.size - sum(self.free)

    def fits_when_empty(self, nodes: int, units: int) -> bool:
        """Whether such a job could run here when all else is gone."""
        return nodes <= self.nodes and units <= self.size

    def find_nodes(
        self, nodes: int, units: int, until: float, reservation: BackfillReservation | None
    ) -> tuple[int, ...]:
        """Nodes for a job that ends at ``until`` at the latest, the fullest first; empty: there are none.

        It delays nobody for whom ``hold`` is.
        """
        found: list[int] = []
        binding = reservation.spare if reservation is not None and until > reservation.shadow_time else {}
        for free in range(units, self.size + 1):
            for node in self._by_free[free]:
                if binding.get(node, units) >= units:
                    found.append(node)
                    if len(found) == nodes:
                        return tuple(found)
        return ()

    def allocate(
        self, nodes: tuple[int, ...], units: int, until: float, reservation: BackfillReservation | None
    ) -> None:
        """Puts a job there."""
        for node in nodes:
            self._set_free(node, self.free[node] - units)
            self._running[node].append((until, units))
            if reservation is not None and until > reservation.shadow_time and node in reservation.spare:
                reservation.spare[node] -= units

    def deallocate(self, nodes: tuple[int, ...], units: int, until: float) -> None:
        """Takes it away again."""
        for node in nodes:
            self._set_free(node, self.free[node] + units)
            self._running[node].remove((until, units))

    def reserve(self, nodes: int, units: int) -> BackfillReservation:
        """Where and when such a job will start, going by the time limits of what runs. It must fit the site."""
        soonest = nsmallest(nodes, ((self._free_times(node)[units], node) for node in range(self.nodes)))
        at = soonest[-1][0]
        spare: dict[int, int] = {}
        for _, node in soonest:
            times = self._free_times(node)
            spare[node] = max(free for free in range(units, self.size + 1) if times[free] <= at) - units
        return BackfillReservation(at, spare)

    def _free_times(self, node: int) -> list[float]:
        """For each number of units, when so many will be free on the node."""
        times = self._free_at[node]
        if times is None:
            free = self.free[node]
            times = [_FREE_NOW] * (free + 1)
            for until, units in sorted(self._running[node]):
                free += units
                times += [until] * (free + 1 - len(times))
            self._free_at[node] = times
        return times

    def _set_free(self, node: int, free: int) -> None:
        del self._by_free[self.free[node]][node]
        self._by_free[free][node] = None
        self.free[node] = free
        self._free_at[node] = None
        self.changed.add(node)
