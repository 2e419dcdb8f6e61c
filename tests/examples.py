"""How many examples a property is tried on: as many as it asks for, or in the quick loop a tenth of them."""

from __future__ import annotations

from hypothesis import settings

_FULL = 100
"""What Hypothesis takes where nothing is asked for."""


def examples(count: int) -> int:
    """``count``, scaled as the profile in force scales it (``--hypothesis-profile``); at least one."""
    return max(1, count * settings().max_examples // _FULL)
