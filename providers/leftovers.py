"""Removes leftovers, whatever a cloud calls them: all are looked at first, and nothing goes that is not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from burstd.domain.cloud.instance import Leftover
from burstd.domain.errors import BadRequest, ProviderError

Thing = Mapping[str, Any]


def remove_leftovers(
    leftovers: Sequence[Leftover],
    kinds: Iterable[str],
    cloud: str,
    mark: str,
    find: Callable[[str, list[str]], Iterable[Thing]],
    name_if_strange: Callable[[str, Thing], str],
    delete: Callable[[str, list[Thing]], Iterable[object]],
) -> None:
    """``kinds`` in the order in which they go. ``find``: things of a kind by their ids, whoever's they are.

    ``name_if_strange``: the name of a thing that is not ours. ``delete``: what came of each, errors included. Raises
    BadRequest, and removes nothing, where one is not ours; else the first error when all were tried.
    """
    wanted: dict[str, set[str]] = {kind: set() for kind in kinds}
    if unknown := sorted({left.kind for left in leftovers} - wanted.keys()):
        raise BadRequest(f"no such kind of thing in {cloud}: {', '.join(unknown)}")
    for left in leftovers:
        wanted[left.kind].add(left.id)
    found = {kind: list(find(kind, sorted(ids))) for kind, ids in wanted.items() if ids}
    strange = [f"{kind} {name}" for kind in found for one in found[kind] if (name := name_if_strange(kind, one))]
    if strange:
        raise BadRequest(f"this does not bear the {mark}: {', '.join(strange)}")
    errors: list[ProviderError] = []
    for kind, things in found.items():
        try:
            errors += [one for one in (delete(kind, things) if things else ()) if isinstance(one, ProviderError)]
        except ProviderError as error:
            errors.append(error)
    if errors:
        raise errors[0]
