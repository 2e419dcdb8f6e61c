"""How long a failed call pauses before it is made again."""

from __future__ import annotations


def backoff_s(failures: int, first_s: float, most_s: float) -> float:
    """``first_s`` after the first failure, doubling with each failure in a row to ``most_s``."""
    return min(first_s * 2.0 ** min(failures - 1, 30), most_s)
