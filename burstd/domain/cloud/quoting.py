"""What nodes, clouds and stores say, made fit for a log line, a reason in Slurm, and a terminal."""

from __future__ import annotations

MOST = 1000
"""Characters of a sentence that repeats what others said."""


def one_line(text: str, most: int = MOST) -> str:
    """In one line without control characters, cut where it is longer than ``most`` characters."""
    some = text[: 4 * most]
    words = " ".join("".join(c if c.isprintable() else " " for c in some).split())
    return words if len(words) <= most and len(text) == len(some) else f"{words[:most]} ..."
