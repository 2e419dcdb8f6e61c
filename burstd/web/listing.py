"""Long lists: the part that is shown, and addresses that keep what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Query

Row = TypeVar("Row")

ROWS = 100
"""Of one page of a list."""
PageNumber = Annotated[int, Query(alias="page", ge=1, le=1_000_000)]
Filter = Annotated[str, Query(max_length=1000)]


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """One page of a list. ``query``: filters and order in the address, without the page."""

    rows: Sequence[Row]
    total: int
    number: int
    """Of the page, from 1."""
    pages: int
    address: str
    query: Mapping[str, str]
    size: int = ROWS

    @property
    def first(self) -> int:
        """Number of the first row shown; 0 where there is none."""
        return (self.number - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """Number of the last row shown."""
        return (self.number - 1) * self.size + len(self.rows)

    def link(self, **changes: object) -> str:
        """The address with other filters, order or page; an empty value takes one away."""
        wanted = {**self.query, **{key: str(value) for key, value in changes.items()}}
        query = urlencode({key: value for key, value in wanted.items() if value}, errors="replace")
        return f"{self.address}?{query}" if query else self.address


def list_page(
    items: Sequence[Row], number: int, address: str, query: Mapping[str, str], size: int = ROWS
) -> Listing[Row]:
    """The page of this number, or the last one where there are fewer."""
    pages = max(1, -(-len(items) // size))
    number = min(number, pages)
    rows = items[(number - 1) * size : number * size]
    return Listing(rows, len(items), number, pages, address, {k: v for k, v in query.items() if v}, size)
