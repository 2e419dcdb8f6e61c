"""Work of the staging controller in other threads: blocking work on the bytes of one job, its progress and result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError
from burstd.domain.staging import Checkpoint, Staging, Tree
from burstd.slurm.commands.job_facts import JobFacts


class StageFailed(BurstdError):
    """A transfer did not come to its end. The message is a sentence for the job's owner.

    ``again``: trying again later makes sense; False: it needs the owner or an administrator. ``retry_after_s``: not
    before. ``resend``: not before the input was sent again, of which objects are damaged or gone. ``full``: the store
    had no space. ``waits``: for its turn, which is not counted as a failure.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        retry_after_s: float = 0.0,
        resend: bool = False,
        full: bool = False,
        waits: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.resend = resend
        self.full = full
        self.waits = waits


@dataclass(frozen=True, slots=True)
class MeterReading:
    """A meter at one moment. Bytes and bytes/s; ``total`` 0: not known so far."""

    name: str
    direction: str
    """``in``, ``place``, ``collect`` or ``home``."""
    done: int
    total: int
    sent: int
    """Of ``done``, what had to be moved."""
    hits: int
    """Of ``done``, what was there already."""
    rate: float
    eta_s: float | None
    seconds: float
    still_s: float = 0.0
    """For so long ``done`` has been what it is, as far as anybody has looked."""
    activity: str = ""
    """What is done before there are bytes to move, in a few words; empty: nothing."""


class Meter:
    """Counts the bytes of one transfer."""

    def __init__(self, name: str, direction: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.direction = direction
        self.activity = ""
        """As in a reading; set by any thread."""
        self._lock = threading.Lock()
        self._clock = clock
        self._began = self._moved = clock()
        self._before = 0
        """What had been done at that time."""
        self._done = self._total = self._sent = self._hits = 0
        self._source: Callable[[], tuple[int, int, int]] | None = None

    def expect_total(self, total: int) -> None:
        """So many bytes in all."""
        with self._lock:
            self._total = max(self._total, total)

    def follow_source(self, source: Callable[[], tuple[int, int, int]]) -> None:
        """Reads bytes done, sent and hit elsewhere from now on; called by any thread."""
        with self._lock:
            self._source = source

    def set_counts(self, *, done: int, sent: int, hits: int, total: int = 0) -> None:
        """So far."""
        with self._lock:
            self._done, self._sent, self._hits = done, sent, hits
            self._total = max(self._total, total, done)

    def add_moved(self, size: int) -> None:
        """So many more bytes have been moved."""
        with self._lock:
            self._done += size
            self._sent += size
            self._total = max(self._total, self._done)

    def current_progress(self) -> MeterReading:
        """Now."""
        with self._lock:
            if self._source is not None:
                self._done, self._sent, self._hits = self._source()
                self._total = max(self._total, self._done)
            now = self._clock()
            if self._done != self._before:
                self._before, self._moved = self._done, now
            seconds = max(now - self._began, 1e-3)
            rate = self._done / seconds
            left = self._total - self._done
            eta = left / rate if rate > 0 and self._total else None
            return MeterReading(
                self.name, self.direction, self._done, self._total, self._sent, self._hits, rate, eta, seconds,
                now - self._moved, self.activity,
            )  # fmt: skip


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
class CheckpointRequest:
    """What is asked of one node of a job. Times in seconds, sizes in bytes."""

    known: str = ""
    """Fingerprint of the one that burstd has; empty: it has none."""
    max_bytes: int = 0
    wait_s: float = 0.0
    """How long a newer one is waited for after ``tell_job``; 0: what is there is taken."""
    tell_job: bool = False
    """Send the job its signal when a newer one can be recognised."""


@dataclass(frozen=True, slots=True)
class CollectedCheckpoint:
    """What one node of a job had. Bytes."""

    path: str
    """Relative to $BURST_OUT; empty: nothing whole was there."""
    fingerprint: str
    tree: Tree | None
    """None: it is the one that was known, or none."""
    changing: str
    """What was not taken because it was being written; empty: nothing."""
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command in a job ended."""

    exit_code: int | None
    """128 and the signal's number where a signal ended it; None: it was killed when its time was over."""
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint was not taken, or cannot be put back. ``reason``: a sentence for the job's owner."""

    reason: str


@dataclass(frozen=True, slots=True)
class SharedScratchServer:
    """The sshd on a job's first node that serves its shared scratch to the others. In memory only."""

    address: str
    port: int
    host_key: str
    """Public, in OpenSSH's form."""
    client_key: str = field(repr=False)
    """Private, in OpenSSH's form: what lets in."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """How the job's story ended, for its manifest."""

    lost_nodes: tuple[str, ...] = ()
    """Nodes that were gone before their output was fetched."""
    cost: str = ""
    """What its nodes cost while they were the job's, by currency, as ``1.2500 EUR``; empty: not known."""
    on_premises: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeliveredOutput:
    """Output that is at its destinations. Bytes."""

    size: int
    beside: tuple[str, ...] = ()
    """Files of the working directory that went beside those that had changed at home: their paths in it."""
    sent: int = 0
    """Of ``size``, what came from the store, without the holes of files."""


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

    def requeue_job(self, task: StagingTask) -> bool:
        """Has Slurm start the job again, with its variables asked for anew; False: it does not."""
        ...

    def measure_sources(self, task: StagingTask) -> InputSize:
        """How much the job's sources are."""
        ...

    def upload_input(self, task: StagingTask) -> UploadedInput:
        """Sources to the store, with the owner's rights."""
        ...

    def fetch_input(self, task: StagingTask, claim: Claim, files: Sequence[str]) -> None:
        """From the store to the disk of one node; ``files``: the job's own output files, by absolute path."""
        ...

    def serve_shared_scratch(self, task: StagingTask, claim: Claim) -> SharedScratchServer | None:
        """Makes the shared scratch, empty, on the job's first node; None: it has no other node."""
        ...

    def mount_shared_scratch(self, task: StagingTask, claim: Claim, server: SharedScratchServer) -> None:
        """Mounts it on another node of the job, anew where it was."""
        ...

    def link_on_premises(self, task: StagingTask) -> None:
        """For nodes on premises: links to the sources, folders for the output."""
        ...

    def collect_output(self, task: StagingTask, claim: Claim, files: Sequence[str]) -> CollectedOutput:
        """From the disk of one node to the store; ``files``: the job's own output files, by absolute path."""
        ...

    def collect_checkpoint(self, task: StagingTask, claim: Claim, request: CheckpointRequest) -> CollectedCheckpoint:
        """From the disk of one node to the store, while the job runs."""
        ...

    def remove_other_checkpoints(self, task: StagingTask) -> None:
        """Removes from the store what is of no checkpoint on the job's record. None may be under way."""
        ...

    def run_checkpoint_command(self, task: StagingTask, claim: Claim, limit_s: float) -> CommandEnd:
        """Runs the command of the job's line in the job, on one of its nodes; it is killed after ``limit_s``."""
        ...

    def restore_checkpoint(self, task: StagingTask, claim: Claim, checkpoint: Checkpoint, part: str) -> None:
        """From the store to the disk of one node; ``part``: the key of its tree.

        StageFailed with ``resend``: the store does not have it whole.
        """
        ...

    def deliver_output(self, task: StagingTask, summary: JobSummary) -> DeliveredOutput:
        """From the store (or the job's folder on premises) to the destinations; writes the manifest."""
        ...

    def remove_job_data(self, task: StagingTask, claims: Sequence[Claim], *, checkpoints: bool = True) -> None:
        """Removes what is left of the job in the store, on these nodes and on premises; ``checkpoints``: these too."""
        ...
