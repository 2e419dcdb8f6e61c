"""What is expected of a pending job: when the site's own nodes would start it, and what it would be in the cloud."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one job (or one task of an array). Times in burstd's seconds since 1970, lengths in seconds."""

    local_start: float
    """When it would start on nodes of the site; infinite: never, no node of its partitions there can run it."""
    local_basis: str
    """Where that comes from: ``slurm`` (its backfill scheduler), ``queue`` (what runs and waits before it),
    ``history`` (how long like jobs waited), ``none``."""
    run_s: float
    """How long it is expected to run."""
    run_basis: str
    """``history``, with how many like jobs (``history of 12 jobs of ada``), or ``time limit``."""
    boot_s: float
    """From now until a new machine would be open to it."""
    staging_s: float
    """From now until its input is in the store; 0: it is, or there is none."""

    @property
    def ready_s(self) -> float:
        """From now until it could start on a new machine: boot and upload go side by side."""
        return max(self.boot_s, self.staging_s)
