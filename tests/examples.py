"""How many examples a property is tried on: half of what it asks for, or a tenth, or all (tests/conftest.py)."""

from __future__ import annotations

from hypothesis import settings

_FULL = 100
"""What Hypothesis takes where nothing is asked for."""


def examples(count: int) -> int:
    """``count``, scaled as the profile in force scales it; at least one."""
    return max(1, count * settings().max_examples // _FULL)
