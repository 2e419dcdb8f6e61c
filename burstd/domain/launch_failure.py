"""Runs of jobs that did not start on their node: slurmd could not open the output, or the machine runs no job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from burstd.domain.slurm.job import Job, JobState

LAUNCH_SIGNAL = "0:53"
"""Exit code of a batch job of which slurmstepd could not start the script: SIG_NO_LAUNCH of slurm.h."""


class Blame(StrEnum):
    """Whose fault it is."""

    JOB = "job"
    """Another node would do no better: a directory that is not there."""
    UNCLEAR = "unclear"
    UNHEALTHY = "unhealthy"
    """Of the machine or its image: no job starts there."""
    UNUSABLE = "unusable"
    """Of the machine, perhaps through its jobs or the site: a full disk."""


@dataclass(frozen=True, slots=True)
class LaunchFault:
    """Why slurmd started no job, by its log."""

    cause: str
    """Without a full stop."""
    remedy: str
    blame: Blame


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """One run that did not start."""

    job_id: str
    run: int
    """``Job.restarts`` of it."""
    slot: str
    """Its node; empty: no node's log has it."""
    claim_id: str
    fault: LaunchFault
    user: str
    at: float
    """When it was seen, in burstd's time."""

    @property
    def text(self) -> str:
        """In a sentence without a full stop."""
        return f"its launch{f' on {self.slot}' if self.slot else ''} failed: {self.fault.cause}"


def failed_run(job: Job) -> int | None:
    """The number of the run (``Job.restarts``) whose launch failed, as the queue has the job; None: none did.

    Slurm lets it fail where the batch script's output cannot be opened, and holds it where no process could be started.
    """
    if job.state is JobState.PENDING and job.reason == "JobLaunchFailure" and job.restarts:
        return job.restarts - 1
    over = job.state is JobState.FAILED and job.batch and bool(job.node_list)
    return job.restarts if over and job.exit_code == LAUNCH_SIGNAL else None
