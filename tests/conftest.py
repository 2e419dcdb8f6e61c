"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=os.environ.get("CI") == "true"
)
settings.load_profile("shared")
