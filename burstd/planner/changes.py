"""What changed between two looks at things that are the very same objects where they did not change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count, islice
from operator import is_not
from typing import Generic, TypeVar

T = TypeVar("T")
_MANY = 1000


@dataclass(frozen=True, slots=True)
class Changes(Generic[T]):
    """Each with its place: in the old sequence what is gone, in the new one what has come. In order."""

    gone: tuple[tuple[int, T], ...]
    come: tuple[tuple[int, T], ...]

    def __len__(self) -> int:
        return len(self.gone) + len(self.come)


def changed(old: Sequence[T], new: Sequence[T]) -> Changes[T] | None:
    """What is to be taken out of the one and put in to have the other; None: what both have is in another order.

    Made for long sequences of which little changed: what is alike at both ends costs next to nothing.
    """
    if old is new or old == new:
        return Changes((), ())
    if len(old) == len(new):
        at = list(islice(compress(count(), map(is_not, old, new)), _MANY + 1))
        come = {id(new[n]) for n in at}
        if len(at) <= _MANY and come.isdisjoint([id(old[n]) for n in at]):
            # Each in its place.
            return Changes(tuple((n, old[n]) for n in at), tuple((n, new[n]) for n in at))
    least = min(len(old), len(new))
    first = _alike(old, new, least)
    last = _alike(reversed(old), reversed(new), least - first)
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    known, there = set(map(id, before)), set(map(id, after))
    if [id(x) for x in before if id(x) in there] != [id(x) for x in after if id(x) in known]:
        return None
    return Changes(
        tuple((n, x) for n, x in enumerate(before, first) if id(x) not in there),
        tuple((n, x) for n, x in enumerate(after, first) if id(x) not in known),
    )


def _alike(some: Iterable[T], others: Iterable[T], most: int) -> int:
    """How many of the first are the very same in both."""
    return min(most, next(compress(count(), map(is_not, some, others)), most))
