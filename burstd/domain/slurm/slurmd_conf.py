"""What slurm.conf asks of every host of a slurmd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SlurmdConf:
    """What a host must reach and have, so that its slurmd is taken and keeps its jobs."""

    controllers: tuple[str, ...] = ()
    """``head:6817`` of each SlurmctldHost, the first one's first."""
    prologs: Mapping[str, str] = field(default_factory=dict)
    """Files that slurmd runs for each job, or patterns of their paths -> the setting: Prolog, Epilog, TaskProlog."""
    pam: bool = False
    """UsePAM: slurmd opens a session of PAM for each job, which may make or mount its user's home directory."""
