"""Which of many keys a store has, asked by pages of its list where the keys lie close together, singly where not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from burstd.domain.plugins.stager import StoredObject

PAGE_SIZE = 1000
_FEW = 20
_SINGLY = 200

ListPage = Callable[[str], tuple[Sequence[StoredObject], bool]]
"""Up to PAGE objects whose keys come after this one in order, and whether there are more."""
HeadSizes = Callable[[Sequence[str]], Iterable[tuple[str, int | None]]]
"""Sizes in bytes of objects, asked one by one; None for those that are not there."""


def present(keys: Sequence[str], list_page: ListPage | None, head_sizes: HeadSizes) -> Mapping[str, int]:
    """Those that are there, with their sizes in bytes. ``page``: None where the store lists from no key on."""
    wanted = sorted(set(keys))
    found: dict[str, int] = {}

    def head_some(some: Sequence[str]) -> None:
        found.update((key, size) for key, size in head_sizes(some) if size is not None)

    while list_page is not None and len(wanted) > _FEW:
        after = wanted[0][:-1]
        listed, more = list_page(after)
        if (more and not listed) or any(one.key >= next_.key for one, next_ in pairwise(listed)):
            # Keys that are not on this page, which tells of no order, may be on any other.
            break
        settled = wanted
        if more:
            last = listed[-1].key
            settled = [key for key in wanted if key <= last]
        sizes = {o.key: o.size for o in listed}
        found.update((key, sizes[key]) for key in settled if key in sizes)
        wanted = wanted[len(settled) :]
        if more and len(settled) < _FEW:
            # A page for each of the next would be slower than asking for them.
            head_some(wanted[:_SINGLY])
            wanted = wanted[_SINGLY:]
    head_some(wanted)
    return found
