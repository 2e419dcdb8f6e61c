"""Counting generic resources: what is there, and what a request takes of it."""

from __future__ import annotations

from collections.abc import Iterable

from burstd.domain.slurm.shape import Gres


class GresCounts(dict[tuple[str, str], int]):
    """How many there are of each (name, type); the type is empty for untyped ones."""

    def __init__(self, gres: Iterable[Gres] = ()) -> None:
        super().__init__()
        for g in gres:
            self[g.name, g.type] = self.get((g.name, g.type), 0) + g.count

    def copy(self) -> GresCounts:
        """An independent copy."""
        same = GresCounts()
        same.update(self)
        return same

    def add(self, gres: Iterable[Gres], sign: int = 1) -> None:
        """Adds (or, with -1, subtracts) exactly these types; never below zero."""
        for g in gres:
            self[g.name, g.type] = max(0, self.get((g.name, g.type), 0) + sign * g.count)


def available_gres(counts: GresCounts, name: str, kind: str) -> int:
    """How many of the name and type there are; any type where ``kind`` is empty."""
    if kind:
        return counts.get((name, kind), 0)
    return sum(count for (n, _), count in counts.items() if n == name)


def lacking_gres(counts: GresCounts, wanted: tuple[Gres, ...]) -> str:
    """The first request that cannot be met, for a person; empty: all can.

    A request without a type takes what requests with a type leave over.
    """
    for g in wanted:
        named = 0 if g.type else sum(w.count for w in wanted if w.name == g.name and w.type)
        count = available_gres(counts, g.name, g.type)
        if g.count + named > count:
            return f"{g} (a node has {count})" if count else str(g)
    return ""


def has_gres(counts: GresCounts, wanted: tuple[Gres, ...]) -> bool:
    """True where every request can be met."""
    if len(wanted) == 1:
        return available_gres(counts, wanted[0].name, wanted[0].type) >= wanted[0].count
    return not lacking_gres(counts, wanted)


def subtract_gres(counts: GresCounts, wanted: tuple[Gres, ...], times: int = 1) -> GresCounts:
    """What a request that fits leaves, taken so often: requests with a type are served first."""
    left = counts.copy()
    for g in wanted if len(wanted) == 1 else sorted(wanted, key=lambda w: not w.type):
        count = g.count * times
        for key in [(g.name, g.type)] if g.type else sorted(k for k in counts if k[0] == g.name):
            part = min(count, left.get(key, 0))
            left[key] = left.get(key, 0) - part
            count -= part
    return left


def gres_text(gres: Iterable[Gres]) -> str:
    """``gpu:v100:2, nvme:1``."""
    return ", ".join(str(g) for g in gres)
