"""The times and limits by which claims live. From the settings; lengths of time in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from burstd.domain.billing.rates import Rates
from burstd.domain.billing.site_cost import SiteCosts
from burstd.domain.idle_gpus import IdleGpuRule


@dataclass(frozen=True, slots=True)
class Tuning:
    """Every field can be set in burstd.toml."""

    gate: str = "burstd"
    """Name of the reservation that holds every slot that is not ready."""
    boot_timeout_s: float = 600.0
    """From the launch until the machine answers."""
    validation_timeout_s: float = 180.0
    """From its first answer until Slurm sees the node."""
    gang_timeout_s: float = 900.0
    """How long ready nodes of a multi-node job wait for the last of them."""
    orphan_grace_s: float = 120.0
    """How long a resource with our tag and without a claim is left alone."""
    slurmd_restart_s: float = 20.0
    """How long a slurmd that was started has to register before it is started again."""
    node_down_grace_s: float = 60.0
    """How long a node may be DOWN in Slurm before its machine is ended."""
    launch_attempts: int = 4
    """How often a launch without an answer is asked for."""
    bind_depth: int = 50
    """A job with more pending jobs than this before it in its partition gets its nodes bound to it."""
    bind_timeout_s: float = 60.0
    """How long bound nodes wait for their job before all jobs may use them."""
    power_down_retry_s: float = 30.0
    """How often Slurm is told again to power down a slot without a machine."""
    spot_interruptions: int = 2
    """After so many interruptions a job gets on-demand machines where there are any; 0: it makes no difference."""
    output_retention_s: float = 86400.0
    """How long after a job's end a node is kept for output of the job that is not off it."""
    output_retention_cost: Decimal | None = None
    """What that may cost for each node, in its offer's currency; None: whatever it costs."""
    rates: Rates = field(default_factory=Rates)
    """By which prices in several currencies are compared."""
    site_costs: SiteCosts = field(default_factory=SiteCosts)
    """What nodes of the site's own cost."""
    idle_gpus: Mapping[str, IdleGpuRule] = field(default_factory=dict)
    """By partition, or ``*``, what follows where jobs do not use their GPUs; empty: nothing does."""
    figures_max_age_s: float = 360.0
    """For that, older figures of jobs are missing."""
