"""What changed between two looks at things that are the very same objects where they did not change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count, islice
from operator import is_not
from typing import Generic, TypeVar

T = TypeVar("T")
_MAX_IN_PLACE = 1000


@dataclass(frozen=True, slots=True)
class SequenceChanges(Generic[T]):
    """Each with its place: in the old sequence what is gone, in the new one what has come. In order."""

    removed: tuple[tuple[int, T], ...]
    added: tuple[tuple[int, T], ...]

    def __len__(self) -> int:
        return len(self.removed) + len(self.added)


def sequence_changes(old: Sequence[T], new: Sequence[T]) -> SequenceChanges[T] | None:
    """What is to be taken out of the one and put in to have the other; None: what both have is in another order.

    Made for long sequences of which little changed: what is alike at both ends costs next to nothing.
    """
    if old is new or old == new:
        return SequenceChanges((), ())
    if len(old) == len(new):
        indexes = list(islice(compress(count(), map(is_not, old, new)), _MAX_IN_PLACE + 1))
        new_ids = {id(new[n]) for n in indexes}
        if len(indexes) <= _MAX_IN_PLACE and new_ids.isdisjoint([id(old[n]) for n in indexes]):
            # Each in its place.
            return SequenceChanges(tuple((n, old[n]) for n in indexes), tuple((n, new[n]) for n in indexes))
    shorter = min(len(old), len(new))
    first = _common_prefix_length(old, new, shorter)
    last = _common_prefix_length(reversed(old), reversed(new), shorter - first)
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    known, there = set(map(id, before)), set(map(id, after))
    if [id(x) for x in before if id(x) in there] != [id(x) for x in after if id(x) in known]:
        return None
    return SequenceChanges(
        tuple((n, x) for n, x in enumerate(before, first) if id(x) not in there),
        tuple((n, x) for n, x in enumerate(after, first) if id(x) not in known),
    )


def _common_prefix_length(some: Iterable[T], others: Iterable[T], limit: int) -> int:
    """How many of the first are the very same in both."""
    return min(limit, next(compress(count(), map(is_not, some, others)), limit))
