"""Which of Debian's releases, and so which Slurm, a test runs on."""

from __future__ import annotations

import pytest

_THOROUGH = pytest.mark.thorough


def releases(first: str, *others: str) -> list[object]:
    """Parameters: the first, and the others when all is tried. The files take turns in which they begin with."""
    return [first, *(pytest.param(other, marks=_THOROUGH) for other in others)]
