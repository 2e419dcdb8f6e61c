"""Work of the staging controller in other threads: blocking work on the bytes of one job, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError
from burstd.domain.staging import Staging, Tree
from burstd.slurm.commands.job_facts import JobFacts
from burstd.staging.movement.progress import Meter


class StageFailed(BurstdError):
    """A transfer did not come to its end. The message is a sentence for the job's owner.

    ``again``: trying again later makes sense; False: it needs the owner or an administrator. ``retry_after_s``: not
    before. ``resend``: not before the input was sent again, of which objects are damaged or gone. ``full``: the store
    had no space.
    """

    def __init__(
        self, message: str, *, retryable: bool, retry_after_s: float = 0.0, resend: bool = False, full: bool = False
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.resend = resend
        self.full = full


@dataclass(frozen=True, slots=True)
class InputSize:
    """What a look at a job's sources found: at least so many bytes and entries."""

    size: int
    entries: int
    complete: bool
    """False: the look was cut short, there is more."""
    sources: tuple[str, ...] = ()
    """What was looked at, as absolute paths or URLs."""


@dataclass(frozen=True, slots=True)
class UploadedInput:
    """Input that is in the store now. Bytes."""

    trees: Mapping[str, Tree]
    size: int
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CollectedOutput:
    """Output of one node that is in the store now: ``INDEX`` of the stage_out line, or ``files`` -> tree."""

    trees: Mapping[str, Tree]
    sent: int
    seconds: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobSummary:
    """How the job's story ended, for its manifest."""

    lost_nodes: tuple[str, ...] = ()
    """Nodes that were gone before their output was fetched."""
    cost: str = ""
    """What its nodes cost while they were the job's, in the site's currency; empty: not known."""
    on_premises: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagingTask:
    """What every piece of work gets: its job as recorded, a meter, and whether it shall stop."""

    job: Staging
    meter: Meter
    cancelled: threading.Event = field(default_factory=threading.Event)


class Transfers(Protocol):
    """Moves the bytes. Every method blocks and may be called from several threads.

    Raises StageFailed, TransferCancelled.
    """

    def query_job(self, job_id: str) -> JobFacts | None:
        """What Slurm knows of the job now; None: nothing (any more)."""
        ...

    def nudge_scheduler(self, job_id: str) -> None:
        """Has Slurm see at once that the job may start, a moment after its data_in was answered.

        Nothing where this version of Slurm sees it by itself.
        """
        ...

    def release_hold(self, job_id: str) -> None:
        """Takes the hold away that Slurm puts on a job whose input was refused; nothing where there is none."""
        ...

    def measure_sources(self, task: StagingTask) -> InputSize:
        """How much the job's sources are."""
        ...

    def upload_input(self, task: StagingTask) -> UploadedInput:
        """Sources to the store, with the owner's rights."""
        ...

    def fetch_input(self, task: StagingTask, claim: Claim) -> None:
        """From the store to the disk of one node."""
        ...

    def link_on_premises(self, task: StagingTask) -> None:
        """For nodes on premises: links to the sources, folders for the output."""
        ...

    def collect_output(self, task: StagingTask, claim: Claim, files: Sequence[str]) -> CollectedOutput:
        """From the disk of one node to the store; ``files``: the job's own output files, by absolute path."""
        ...

    def deliver_output(self, task: StagingTask, summary: JobSummary) -> int:
        """From the store (or the job's folder on premises) to the destinations; writes the manifest. Bytes."""
        ...

    def remove_job_data(self, task: StagingTask, claims: Sequence[Claim]) -> None:
        """Removes what is left of the job in the store, on these nodes and on premises."""
        ...
