"""Fuzz targets: Hypothesis tests that run for a moment in every run, and for as long as wanted on demand.

``BURSTD_FUZZ_SECONDS=600 pytest tests/security -k fuzz`` runs each for ten minutes, with new values all the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import pytest

P = ParamSpec("P")
SECONDS = float(os.environ.get("BURSTD_FUZZ_SECONDS", "0"))
"""How long each target runs at least; 0: once."""


def fuzzed(test: Callable[P, None]) -> Callable[P, None]:
    """Stands above ``@given``. Name the test ``test_fuzz_...``."""
    if not SECONDS:
        return test

    @pytest.mark.timeout(SECONDS + 600)
    @wraps(test)
    def again(*args: P.args, **kwargs: P.kwargs) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            test(*args, **kwargs)

    return again
