"""Counting generic resources: what is there, and what a request takes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from burstd.domain.slurm.shape import SHARD, Gres, SharedGpu, split_shards


class GresCounts(dict[tuple[str, str], int]):
    """How many there are of each (name, type); the type is empty for untyped ones.

    Where there are shards, ``gpus`` says what is left of each GPU, and the counts of ``gpu`` are those of untouched
    ones. ``returned`` are the shards of jobs that have been taken off in thought: Slurm does not say which GPU they are
    on, and so they count where they help least.
    """

    __slots__ = ("gpus", "left_by", "returned")

    def __init__(self, gres: Sequence[Gres] = ()) -> None:
        super().__init__()
        for g in gres:
            self[g.name, g.type] = self.get((g.name, g.type), 0) + g.count
        self.gpus: tuple[SharedGpu, ...] = split_shards(gres) if gres else ()
        self.returned: tuple[int, ...] = ()
        self.left_by: dict[tuple[tuple[Gres, ...], int], GresCounts] = {}
        """By request and times, what is left after it: many bins share these counts, and they stay as they are."""

    def copy(self) -> GresCounts:
        """An independent copy."""
        same = GresCounts()
        same.update(self)
        same.gpus, same.returned = self.gpus, self.returned
        return same

    def add(self, gres: Iterable[Gres], sign: int = 1) -> None:
        """Adds (or, with -1, subtracts) exactly these types; never below zero."""
        for g in gres:
            self[g.name, g.type] = max(0, self.get((g.name, g.type), 0) + sign * g.count)

    def give_back(self, gres: Iterable[Gres]) -> None:
        """Adds what a job had."""
        for g in gres:
            if not self.gpus or g.name not in ("gpu", SHARD):
                self.add([g])
            elif g.name == SHARD:
                self.returned += (g.count,)
            else:
                gpus = list(self.gpus)
                for n in [n for n, gpu in enumerate(gpus) if gpu.whole and g.type in ("", gpu.type)][: g.count]:
                    gpus[n] = replace(gpus[n], free=gpus[n].shards, whole=False)
                self.set_gpus(tuple(gpus))

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
        free = max([gpu.free for gpu in counts.gpus if kind in ("", gpu.type)], default=0)
        return _shards_for_sure(counts, free) if counts.returned else free
    found = counts.get((name, kind), 0) if kind else sum(count for (n, _), count in counts.items() if n == name)
    if counts.returned and name == "gpu" and all(kind in ("", gpu.type) for gpu in counts.gpus):
        found += _emptied_for_sure(counts)
    return found


def _shards_for_sure(counts: GresCounts, free: int) -> int:
    """The most shards that one GPU has with those that are returned, wherever these were; ``free``: without them."""
    returned = counts.returned
    for shards in range(max(gpu.shards for gpu in counts.gpus), free, -1):
        # What can come back on each GPU without making it that many.
        room = [min(g.shards - g.free, shards - 1 - g.free) for g in counts.gpus if not g.whole and g.free < g.shards]
        if (
            max(returned) > max(room, default=0)
            or sum(returned) > sum(room)
            or len(returned) > sum(r // min(returned) for r in room)
        ):
            return shards
    return free


def _emptied_for_sure(counts: GresCounts) -> int:
    """How many GPUs have nothing on them any more once the shards are returned, wherever these were."""
    used = [gpu.shards - gpu.free for gpu in counts.gpus if not gpu.whole and gpu.free < gpu.shards]
    # Each shard that stays may be alone on its GPU.
    emptied = max(0, len(used) - max(0, sum(used) - sum(counts.returned)))
    least = min(gpu.shards for gpu in counts.gpus)
    even = {gpu.shards for gpu in counts.gpus} == {least}
    free = max(gpu.free for gpu in counts.gpus)
    return max(emptied, int(even and free < least and _shards_for_sure(counts, free) == least))


def returns_too_much(counts: GresCounts, wanted: Iterable[Gres]) -> bool:
    """Whether the jobs that were taken off had a GPU's shards, or more, beyond what is wanted: most of them in vain."""
    of_gpu = max((gpu.shards for gpu in counts.gpus), default=1)
    asked = sum(g.count * (1 if g.name == SHARD else of_gpu) for g in wanted if g.name in ("gpu", SHARD))
    return sum(counts.returned) - asked >= of_gpu


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
            returned, left.returned = left.returned, ()
            if available_gres(left, g.name, g.type) >= g.count * times:
                # Else it has some of those that are returned, not known which: nobody else gets any.
                left.returned = returned
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
            found[place] = replace(gpu, free=gpu.free - taken, whole=whole)
            left -= fitting
    return tuple(found)


def gres_text(gres: Iterable[Gres]) -> str:
    """``gpu:v100:2, nvme:1``."""
    return ", ".join(str(g) for g in gres)
