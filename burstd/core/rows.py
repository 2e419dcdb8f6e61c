"""Bins in the order in which they are filled, kept so that the first with room is found without a look at each.

Bins are looked at in blocks. Of each block is known the most CPUs, memory and GRES that any of its bins may have left:
a bound that is drawn tighter whenever a look at the whole block was in vain. Room shrinks while jobs are placed, so
the bounds hold; where something is given back the block is opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from burstd.core.need import Share

if TYPE_CHECKING:
    from burstd.core.capacity import Bin

_BITS = 6
_BLOCK = 1 << _BITS
_UNKNOWN = 1 << 62


class Row:
    """A row of bins."""

    def __init__(self, bins: list[Bin]) -> None:
        self.bins: list[Bin] = []
        self._cpus: list[int] = []
        self._memory: list[int] = []
        self._gres: list[int] = []
        for found in bins:
            self.add(found)

    def add(self, found: Bin) -> None:
        """At the end."""
        found.row, found.index = self, len(self.bins)
        self.bins.append(found)
        if found.index >> _BITS == len(self._cpus):
            self._cpus.append(_UNKNOWN)
            self._memory.append(_UNKNOWN)
            self._gres.append(_UNKNOWN)
        else:
            self.reopen(found.index)

    def reopen(self, index: int) -> None:
        """The bin may have more room than before."""
        block = index >> _BITS
        self._cpus[block] = self._memory[block] = self._gres[block] = _UNKNOWN

    def find(self, start: int, share: Share, right: Callable[[Bin], bool]) -> int:
        """Index of the first bin, from ``start`` on, that has room for the share and is right; else that of the end."""
        bins = self.bins
        cpus, memory, gres, exclusive = share.cpus, share.memory_mib, share.gres, share.exclusive
        if start < len(bins):
            found = bins[start]
            # Most often the last one has room for the next as well.
            if cpus <= found.cpus and memory <= found.memory_mib and found.fits(share) and right(found):
                return start
        asked = sum([g.count for g in gres])
        index, last = start, len(bins)
        while index < last:
            block = index >> _BITS
            begun, end = index, min((block + 1) << _BITS, last)
            if cpus > self._cpus[block] or memory > self._memory[block] or asked > self._gres[block]:
                index = end
                continue
            for found in bins[index:end]:
                if (
                    cpus <= found.cpus
                    and memory <= found.memory_mib
                    and (not gres or asked <= sum(found.gres.values()))
                    and (found.whole or not exclusive)
                    and found.fits(share)
                    and right(found)
                ):
                    return found.index
            if begun == block << _BITS:
                self._tighten(block)
            index = end
        return last

    def _tighten(self, block: int) -> None:
        some = self.bins[block << _BITS : (block + 1) << _BITS]
        self._cpus[block] = max([found.cpus for found in some])
        self._memory[block] = max([found.memory_mib for found in some])
        self._gres[block] = max([sum(found.gres.values()) for found in some])

    def rest(self, start: int, share: Share, right: Callable[[Bin], bool]) -> Iterator[Bin]:
        """All such bins, in order."""
        index = self.find(start, share, right)
        while index < len(self.bins):
            yield self.bins[index]
            index = self.find(index + 1, share, right)
