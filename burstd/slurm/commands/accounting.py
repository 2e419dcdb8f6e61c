"""How jobs ended that slurmctld does not know any more, as slurmdbd has it (sacct)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from burstd.domain.errors import SchedulerUnavailable
from burstd.slurm.commands.run import SlurmCommands

_JOB_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """A job, one task of an array, tasks of an array that never started, or one component of a het job."""

    id: str
    """``123``, ``123_7``, ``123_[1-3]``, ``123+1``."""
    user: str
    state: str
    """Slurm's name, of the last run."""
    exit_code: str
    """``0:0``: exit status and signal."""


def read_accounted_jobs(commands: SlurmCommands, job_id: str) -> list[AccountedJob]:
    """All parts of a job; empty: it is not known. Raises SchedulerUnavailable, SchedulerRefused (no accounting)."""
    if _JOB_ID.fullmatch(job_id) is None:
        return []
    words = ("--allocations", "--noheader", "--parsable2", f"--jobs={job_id}", "--format=JobID,User,State,ExitCode")
    found = []
    for line in commands("sacct", *words).splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            raise SchedulerUnavailable(f"sacct does not tell of job {job_id} as expected: {line[:100]!r}")
        # CANCELLED by 1000
        found.append(AccountedJob(fields[0], fields[1], fields[2].partition(" ")[0], fields[3]))
    return found
