"""Answers of clouds and stores, read up to a limit: what goes on for ever, or unpacks to ever more, is no answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from burstd.domain.errors import CloudUnavailable

ANSWER_BYTES = 8 << 20
"""Of one answer, unpacked: providers ask for pages of a few MiB at most."""
ANSWER_PARTS = 1 << 19
"""Of one answer: elements, members and brackets. Each costs some hundred bytes, and time in which no thread runs."""
ANSWER_S = 300.0
"""Seconds for one answer from its first byte on."""
LIST_BYTES = 128 << 20
"""Of all pages of one list: some 5,000 nodes of Kubernetes, whose descriptions are the longest."""
LIST_PARTS = 8 * ANSWER_PARTS
LIST_THINGS = 200_000
"""Beyond any pool; the largest clusters of Kubernetes have 150,000 pods."""
LIST_PAGES = 10_000
LIST_S = 600.0
"""Seconds from the first page of a list to its end."""
_BEGINNINGS = b"<,[{"
"""Of parts, in XML and JSON."""


class AnswerTooLarge(ValueError):
    """It goes on beyond the limit. The message tells the limit, and nothing of what was said."""


class BoundedList:
    """One list while its pages are read: it ends within the bounds, or it is none.

    ``what``, in the infinitive, is for people. ``kept``: False where whoever reads it keeps nothing of a thing but
    what it adds up to, so that bytes and parts cost nothing.
    """

    def __init__(self, what: str, *, keeps_items: bool = True) -> None:
        self._what = what
        self._keeps_items = keeps_items
        self._until = time.monotonic() + LIST_S
        self._pages = self._items = self._bytes = self._parts = 0

    @contextmanager
    def page(self) -> Iterator[None]:
        """One page is asked for within. Raises CloudUnavailable beyond the bounds."""
        self._in_time()
        token = _reading.set(self)
        try:
            yield
        finally:
            _reading.reset(token)
        self._pages += 1
        self._within(self._pages, LIST_PAGES, "pages")
        if self._keeps_items:
            self._within(self._bytes, LIST_BYTES, "bytes")
            self._within(self._parts, LIST_PARTS, "parts")
        self._in_time()

    def items(self, said: object) -> list[dict[str, Any]]:
        """Those of a page. Raises CloudUnavailable beyond the bounds, and where they are no JSON objects."""
        if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
            raise CloudUnavailable(
                f"cannot {self._what}: the answer is no list of objects: is there a proxy in between?"
            )
        self._items += len(said)
        self._within(self._items, LIST_THINGS, "things")
        return said

    @property
    def left_s(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()

    def count(self, size: int, parts: int) -> None:
        """What one answer within ``page`` had."""
        self._bytes += size
        self._parts += parts

    def _in_time(self) -> None:
        if self.left_s < 0:
            raise CloudUnavailable(f"cannot {self._what}: the list has no end within {LIST_S:.0f} s")

    def _within(self, count: int, most: int, of: str) -> None:
        if count > most:
            raise CloudUnavailable(
                f"cannot {self._what}: the list has more than {most} {of}: is there a proxy in between?"
            )


_reading: ContextVar[BoundedList | None] = ContextVar("reading", default=None)


def read_bounded(pieces: Iterable[bytes], most: int = ANSWER_BYTES, seconds: float = ANSWER_S) -> bytes:
    """All pieces in one. Raises AnswerTooLarge."""
    reading = _reading.get()
    if reading is not None:
        seconds = min(seconds, reading.left_s)
    until = time.monotonic() + seconds
    got: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise AnswerTooLarge(f"the answer has more than {most} bytes: if it is a page of a list, set page lower")
        if time.monotonic() > until:
            raise AnswerTooLarge(f"the answer takes more than {seconds:.0f} s")
        got.append(piece)
    answer = b"".join(got)
    parts = sum(map(answer.count, _BEGINNINGS))
    if parts > ANSWER_PARTS:
        raise AnswerTooLarge(
            f"the answer has more than {ANSWER_PARTS} parts: if it is a page of a list, set page lower"
        )
    if reading is not None:
        reading.count(size, parts)
    return answer
