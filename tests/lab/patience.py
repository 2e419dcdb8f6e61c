"""How long tests on real systems wait: the longer, the more processes ask for each processor, and the slower it is."""

from __future__ import annotations

import os
import time
from functools import cache

_TURNS = 1_000_000
_TURNS_S = 0.07
"""What they take on a processor of 2020 that nobody else uses."""


def patience_s(quiet_s: float) -> float:
    """Seconds to wait now, at most, for what takes ``quiet_s`` at most on a machine with nothing else to do."""
    return quiet_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) * _slowness()


def processor_s(quiet_s: float) -> float:
    """Seconds of processor time, at most, for what takes ``quiet_s`` at most there: others do not add to it."""
    return quiet_s * _slowness()


@cache
def _slowness() -> float:
    """How many times slower than that this processor is; at least 1. Virtual machines share theirs."""
    begun, turned = time.process_time(), 0
    for turn in range(_TURNS):
        turned += turn
    return max(1.0, (time.process_time() - begun) / _TURNS_S)
