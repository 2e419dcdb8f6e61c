"""``[sampler]``: what jobs use of their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from burstd.settings.fields import AbsolutePath, Section


class SamplerSettings(Section):
    """``[sampler]``: how nodes measure, and how often their figures are fetched."""

    enabled: bool = True
    every_s: Annotated[float, Field(ge=1, le=300)] = 10.0
    idle_below_percent: Annotated[float, Field(gt=0, le=50)] = 2.0
    collect_s: Annotated[float, Field(ge=30, le=3600)] = 180.0
    """A node with jobs is asked so often."""
    calls_per_minute: Annotated[int, Field(ge=1, le=6000)] = 720
    """To all nodes together, without those for the last figures of jobs that have ended."""
    last_figures_s: Annotated[float, Field(ge=0, le=120)] = 20.0
    """So long a machine that is to end waits for the last figures of a job that has ended."""
    loading_mib_s: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] = 5.0
    """A job that reads more from disks, over five minutes, loads its data: its GPUs do not count as idle."""
    own_nodes: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Patterns, as in the shell, of nodes of the site's own that are measured too: burstd enters them by ssh."""
    known_hosts: AbsolutePath = Path("/etc/ssh/ssh_known_hosts")
    """Host keys of these."""
    jobstats: bool = False
    """Write a summary as jobstats does into AdminComment of each job that has ended."""

    @property
    def figures_max_age_s(self) -> float:
        """So long figures of running jobs are those of now."""
        return max(300.0, 2 * self.collect_s)
