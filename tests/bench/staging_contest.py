"""Ways to do the same, in turn and several times over: medians, and ratios of them."""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_MEMORY_FACTOR = 2
"""How many times the size of what is sent is memory that is ready when a contestant starts."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One contestant. ``begin`` and ``end`` are not timed; ``begin`` returns what is."""

    begin: Callable[[], Callable[[], object]]
    end: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Contest:
    """``bars``: contestant -> how many times as fast as it ours is to be; an empty one: for information only."""

    title: str
    burstd: str
    contestants: Mapping[str, Contestant]
    bars: Mapping[str, float]
    size_mb: float = 0.0
    before_turn: Callable[[], object] = lambda: None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def run_turns(self, turns: int) -> None:
        """All of them in each turn, each time another first; nothing is left to be written when one starts."""
        names = list(self.contestants)
        for turn in range(turns):
            self.before_turn()
            for at in range(len(names)):
                name = names[(at + turn) % len(names)]
                contestant = self.contestants[name]
                run = contestant.begin()
                os.sync()
                back_memory(int(_MEMORY_FACTOR * self.size_mb) << 20)
                began = time.perf_counter()
                run()
                taken = time.perf_counter() - began
                contestant.end()
                self.seconds.setdefault(name, []).append(taken)
                sys.stderr.write(f"  {self.title}: {name}: {taken:.2f} s\n")

    def median(self, name: str) -> float:
        """Seconds."""
        return statistics.median(self.seconds[name])

    def rows(self) -> Sequence[Sequence[str]]:
        """Of the table: what, who, median, slowest to quickest, rate, how many times as fast ours is, the bar."""
        ours = self.median(self.burstd)
        made = []
        for name in self.contestants:
            all_of = sorted(self.seconds[name])
            rate = f"{self.size_mb / self.median(name):.0f}" if self.size_mb else ""
            ratio = "" if name == self.burstd else f"{self.median(name) / ours:.2f}"
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
