"""What is expected of a pending job: when the site's own nodes would start it, and what it would be in the cloud."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one job (or one task of an array). Times in burstd's seconds since 1970, lengths in seconds."""

    local_start: float
    """When it would start on nodes of the site; infinite: never, no node of its partitions there can run it."""
    local_basis: str
    """Where that comes from: ``slurm`` (its backfill scheduler), ``queue`` (what runs and waits before it),
    ``history`` (how long like jobs waited), ``none`` (nothing explains why it waits: as long again as so far)."""
    run_s: float
    """How long it is expected to run."""
    run_basis: str
    """Which runs say so (``12 jobs of ada with 2 GPUs``), ``time limit``, or ``none``: an hour is assumed."""
    boot_s: float
    """From now until a new machine would be open to it."""
    staging_s: float
    """From now until its input is in the store; 0: it is, or there is none."""
    last_start: float = 0.0
    """Of an array: when the last of its pending tasks would start there; ``local_start`` is of the first."""

    @property
    def ready_s(self) -> float:
        """From now until it could start on a new machine: boot and upload go side by side."""
        return max(self.boot_s, self.staging_s)


LeavesForCloud = Callable[[str, Outlook], bool]
"""Asked of each pending job, of an array for each task, in the order of the queue: will it leave for the cloud?"""


class Outlooks(Mapping[str, Outlook]):
    """The outlooks of all pending jobs that wait for nodes, by job id. Worked out when first asked for."""

    @abstractmethod
    def assuming(self, leaves: LeavesForCloud) -> Mapping[str, Outlook]:
        """The same where jobs of which ``leaves`` is true take no node of the site: those behind them start sooner.

        A task that leaves is not counted in the outlook of its array; an array all of whose tasks leave, and a job
        that leaves, has the outlook by which it does.
        """
        ...
