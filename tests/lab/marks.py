"""Which files have tests on real systems or of crashes, known without importing them."""

from __future__ import annotations

import re
from pathlib import Path

LONG = ("boxes", "clouds", "crash", "slurm")
"""The marks of such tests."""
_NAMED = re.compile(rf"\bmark\.(?:{'|'.join(LONG)})\b")


def names_long_mark(file: Path) -> bool:
    """Whether the text of a file of tests has one of these marks."""
    return bool(_NAMED.search(file.read_text(encoding="utf-8")))
