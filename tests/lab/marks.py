"""Which files have tests on real systems or of crashes, known without importing them."""

from __future__ import annotations

import re
from pathlib import Path

LONG = ("boxes", "clouds", "crash", "slurm")
"""The marks of such tests."""
_NAMED = re.compile(rf"\bmark\.(?:{'|'.join(LONG)})\b")


_THOROUGH = re.compile(r"\bmark\.thorough\b|\breleases\(")


def names_thorough(file: str) -> bool:
    """Whether a file of tests has some that are thorough, or run on further releases (tests/lab/releases.py)."""
    return bool(_THOROUGH.search(Path(file).read_text(encoding="utf-8")))


def names_long_mark(file: Path) -> bool:
    """Whether the text of a file of tests has one of these marks."""
    return bool(_NAMED.search(file.read_text(encoding="utf-8")))
