"""The head's clock beside those of clouds: munge takes no credential that is five minutes old, or from the future."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

from burstd.domain.errors import BurstdError
from burstd.domain.plugins.provider import CloudClock
from burstd.runtime.clock import duration_text
from burstd.settings import PluginRegistry, Settings, resolve_provider
from burstd.slurm.config.check import SlurmConfFinding


def clock_findings(offsets: Mapping[str, float], tolerance_s: float) -> Iterator[SlurmConfFinding]:
    """``offsets``: by provider how far the head's clock is ahead of the cloud's (negative: behind), in seconds."""
    for name, off in offsets.items():
        if abs(off) > tolerance_s:
            yield SlurmConfFinding(
                "clock", f"the time of provider {name} within {tolerance_s:.0f} s",
                f"a clock {duration_text(off)} {'ahead' if off > 0 else 'behind'}",
                "machines whose clocks are right are refused; munge takes no credential that is 300 s old or from the "
                "future",
                "set the head's clock (timedatectl set-ntp true, chronyc makestep)",
            )  # fmt: skip


def offsets_of_clouds(
    settings: Settings, plugins: PluginRegistry, names: Sequence[str], wall: Callable[[], float] = time.time
) -> dict[str, float]:
    """By provider how far the head is ahead at least, asked of the clouds by this process.

    Clouds that do not answer are left out: what their offers say is reported.
    """
    found: dict[str, float] = {}
    for name in names:
        try:
            chosen = resolve_provider(settings, plugins, name)
            with closing(chosen.plugin.make(name, settings.cluster, chosen.settings)) as provider:
                if isinstance(provider, CloudClock):
                    asked = wall()
                    there = provider.cloud_time()
                    # It tells whole seconds, of a moment between question and answer.
                    found[name] = max(0.0, asked - there - 1.0) + min(0.0, wall() - there)
        except (BurstdError, ImportError):  # as where this user may not read the folder that burstd is installed in
            continue
    return found
