"""What a machine runs to learn by itself that it will be taken back (watch.sh)."""

from __future__ import annotations

from pathlib import Path


def script() -> str:
    """The script that watches for an interruption notice."""
    return Path(__file__).with_name("watch.sh").read_text(encoding="ascii")
