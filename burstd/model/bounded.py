"""Answers of clouds and stores, read up to a limit: what goes on for ever, or unpacks to ever more, is no answer."""

from __future__ import annotations

import time
from collections.abc import Iterable

ANSWER_BYTES = 128 << 20
"""Of one answer, unpacked: a page of a list has some MiB."""
ANSWER_S = 300.0
"""Seconds for one answer from its first byte on."""
PAGES = 10_000
"""Of one list."""


class TooMuch(ValueError):
    """It goes on beyond the limit. The message tells the limit, and nothing of what was said."""


def whole(pieces: Iterable[bytes], most: int = ANSWER_BYTES, seconds: float = ANSWER_S) -> bytes:
    """All pieces in one. Raises TooMuch."""
    until = time.monotonic() + seconds
    got: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise TooMuch(f"the answer has more than {most} bytes")
        if time.monotonic() > until:
            raise TooMuch(f"the answer takes more than {seconds:.0f} s")
        got.append(piece)
    return b"".join(got)
