"""Counting generic resources: what is there, and what a request takes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from burstd.domain.slurm.shape import SHARD, Gres, SharedGpu, split_shards


class GresCounts(dict[tuple[str, str], int]):
    """How many there are of each (name, type); the type is empty for untyped ones.

    Where there are shards, ``gpus`` says what is left of each GPU, and the counts of ``gpu`` are those of untouched
    ones.
    """

    __slots__ = ("gpus",)

    def __init__(self, gres: Sequence[Gres] = ()) -> None:
        super().__init__()
        for g in gres:
            self[g.name, g.type] = self.get((g.name, g.type), 0) + g.count
        self.gpus: tuple[SharedGpu, ...] = split_shards(gres) if gres else ()

    def copy(self) -> GresCounts:
        """An independent copy."""
        same = GresCounts()
        same.update(self)
        same.gpus = self.gpus
        return same

    def add(self, gres: Iterable[Gres], sign: int = 1) -> None:
        """Adds (or, with -1, subtracts) exactly these types; never below zero."""
        for g in gres:
            self[g.name, g.type] = max(0, self.get((g.name, g.type), 0) + sign * g.count)

    def set_gpus(self, gpus: tuple[SharedGpu, ...]) -> None:
        """This is left of each GPU."""
        self.gpus = gpus
        for key in self:
            if key[0] in ("gpu", SHARD):
                self[key] = 0
        for gpu in gpus:
            if gpu.free == gpu.shards:
                self["gpu", gpu.type] += 1
        # Of whichever type: a request has none.
        self[SHARD, ""] = sum([gpu.free for gpu in gpus])


def available_gres(counts: GresCounts, name: str, kind: str) -> int:
    """How many of the name and type a job can get; any type where ``kind`` is empty. Shards are those of one GPU."""
    if name == SHARD and counts.gpus:
        return max([gpu.free for gpu in counts.gpus if kind in ("", gpu.type)], default=0)
    if kind:
        return counts.get((name, kind), 0)
    return sum(count for (n, _), count in counts.items() if n == name)


def requests_that_fit(counts: GresCounts, wanted: Gres) -> int:
    """How many jobs that want so much can get it."""
    if wanted.name == SHARD and counts.gpus:
        return sum([gpu.free // wanted.count for gpu in counts.gpus])
    return available_gres(counts, wanted.name, wanted.type) // wanted.count


def lacking_gres(counts: GresCounts, wanted: tuple[Gres, ...]) -> str:
    """The first request that cannot be met, for a person; empty: all can.

    A request without a type takes what requests with a type leave over.
    """
    for g in wanted:
        named = 0 if g.type else sum(w.count for w in wanted if w.name == g.name and w.type)
        count = available_gres(counts, g.name, g.type)
        if g.count + named > count:
            if g.name == SHARD and counts.gpus:
                return (
                    f"{g.count} shards of one GPU (a GPU has {count}; request {_instead_of_shards(counts, g, count)})"
                )
            return f"{g} (a node has {count})" if count else str(g)
    return ""


def _instead_of_shards(counts: GresCounts, wanted: Gres, of_one: int) -> str:
    """What of an untouched node is nearest to more shards than a GPU has."""
    gpus = -(-wanted.count // of_one) if of_one else 0
    whole = f" or gpu:{gpus}" if 0 < gpus <= len(counts.gpus) else ""
    return f"shard:{of_one}{whole}"


def has_gres(counts: GresCounts, wanted: tuple[Gres, ...]) -> bool:
    """True where every request can be met."""
    if len(wanted) == 1:
        return available_gres(counts, wanted[0].name, wanted[0].type) >= wanted[0].count
    return not lacking_gres(counts, wanted)


def subtract_gres(counts: GresCounts, wanted: tuple[Gres, ...], times: int = 1) -> GresCounts:
    """What a request that fits leaves, taken so often: requests with a type are served first."""
    left = counts.copy()
    for g in wanted if len(wanted) == 1 else sorted(wanted, key=lambda w: not w.type):
        if counts.gpus and g.name in ("gpu", SHARD):
            left.set_gpus(_take_gpus(left.gpus, g, times))
            continue
        count = g.count * times
        for key in [(g.name, g.type)] if g.type else sorted(k for k in counts if k[0] == g.name):
            part = min(count, left.get(key, 0))
            left[key] = left.get(key, 0) - part
            count -= part
    return left


def _take_gpus(gpus: tuple[SharedGpu, ...], wanted: Gres, times: int) -> tuple[SharedGpu, ...]:
    """As slurmctld chooses: the first GPUs that nothing is on, or for shards the first with room for all of them.

    So it is without LL_SHARED_GRES in SelectTypeParameters, and where gres.conf names no Cores.
    """
    found = list(gpus)
    whole = wanted.name == "gpu"
    part, left = (0, wanted.count * times) if whole else (wanted.count, times)
    for place, gpu in enumerate(gpus):
        if wanted.type not in ("", gpu.type):
            continue
        if whole:
            fitting = min(left, int(gpu.free == gpu.shards))
            taken = gpu.free
        else:
            fitting = min(left, gpu.free // part)
            taken = part * fitting
        if fitting:
            found[place] = replace(gpu, free=gpu.free - taken)
            left -= fitting
    return tuple(found)


def gres_text(gres: Iterable[Gres]) -> str:
    """``gpu:v100:2, nvme:1``."""
    return ", ".join(str(g) for g in gres)
