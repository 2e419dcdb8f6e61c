"""How long tests on real systems wait for what must come: the longer, the more processes ask for each processor."""

from __future__ import annotations

import os


def patience_s(quiet_s: float) -> float:
    """Seconds to wait now, at most, for what takes ``quiet_s`` at most on a machine with nothing else to do."""
    return quiet_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
