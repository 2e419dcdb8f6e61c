"""Ways to do the same, in turn and several times over: medians, and ratios of them."""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_ROOM = 2
"""How many times the size of what is sent is memory that is ready when a contestant starts."""


@dataclass(frozen=True, slots=True)
class Way:
    """One contestant. ``begin`` and ``end`` are not timed; ``begin`` returns what is."""

    begin: Callable[[], Callable[[], object]]
    end: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Contest:
    """``bars``: contestant -> how many times as fast as it ours is to be; an empty one: for information only."""

    title: str
    ours: str
    ways: Mapping[str, Way]
    bars: Mapping[str, float]
    size_mb: float = 0.0
    before_turn: Callable[[], object] = lambda: None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def hold(self, turns: int) -> None:
        """All of them in each turn, each time another first; nothing is left to be written when one starts."""
        names = list(self.ways)
        for turn in range(turns):
            self.before_turn()
            for at in range(len(names)):
                name = names[(at + turn) % len(names)]
                way = self.ways[name]
                run = way.begin()
                os.sync()
                back_memory(int(_ROOM * self.size_mb) << 20)
                began = time.perf_counter()
                run()
                taken = time.perf_counter() - began
                way.end()
                self.seconds.setdefault(name, []).append(taken)
                sys.stderr.write(f"  {self.title}: {name}: {taken:.2f} s\n")

    def median(self, name: str) -> float:
        """Seconds."""
        return statistics.median(self.seconds[name])

    def rows(self) -> Sequence[Sequence[str]]:
        """Of the table: what, who, median, slowest to quickest, rate, how many times as fast ours is, the bar."""
        ours = self.median(self.ours)
        made = []
        for name in self.ways:
            all_of = sorted(self.seconds[name])
            rate = f"{self.size_mb / self.median(name):.0f}" if self.size_mb else ""
            ratio = "" if name == self.ours else f"{self.median(name) / ours:.2f}"
            bar = self.bars.get(name)
            shown = "" if bar is None else f"{bar:g}{'' if self.median(name) / ours >= bar else ' MISSED'}"
            spread = f"{all_of[0]:.2f}-{all_of[-1]:.2f}"
            made.append((self.title, name, f"{self.median(name):.2f}", spread, rate, ratio, shown))
        return made


def back_memory(size: int) -> None:
    """Takes so many bytes and gives them back, so that whoever comes next finds memory that the machine really has.

    A virtual machine gives what has been free for 2 s back to its host, and a gigabyte had anew costs 2 s: without this
    the contestant that follows a quick one is quick.
    """
    if not size:
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


HEAD = ("what", "who", "median s", "min-max s", "MB/s", "ours is x times as fast", "bar")


def table(rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
