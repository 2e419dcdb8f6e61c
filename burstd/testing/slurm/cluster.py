"""A real Slurm cluster as the scheduler contract wants it, and what its tests do with one."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node

SLURM_TIMEOUT_S = 30.0
"""Nothing here takes so long on a machine that is not drowned in other work."""


class ClusterUnderTest(ABC):
    """A cluster with users ``ada`` and ``bob``, a licence ``solver:1`` and two partitions.

    ``onprem`` (default) has nodes that are up. ``burst`` has eight CLOUD slots, powered down, with 2 CPUs, 1000 MiB,
    4 GPUs of type v100 and the feature ``cloud`` each. ResumeTimeout is ``resume_timeout_s``.
    """

    slots: Sequence[str]
    resume_timeout_s: float

    @property
    @abstractmethod
    def scheduler(self) -> Scheduler:
        """What is tested."""

    @abstractmethod
    def shell(self, command: str, user: str = "root") -> str:
        """Runs a shell command on the head node; its output. Raises AssertionError where it fails."""

    @abstractmethod
    def boot(self, slots: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Starts machines for slots, without slurmd; pairs of slot and address."""

    @abstractmethod
    def start_slurmd(self, slot: str) -> None:
        """Starts slurmd on a slot's machine."""

    @abstractmethod
    def kill(self, slot: str) -> None:
        """Ends a slot's machine as a power cut would."""

    @abstractmethod
    def machines(self) -> frozenset[str]:
        """Slots that have a machine."""

    @abstractmethod
    def stop_slurmctld(self) -> None:
        """Ends slurmctld in an orderly way."""

    @abstractmethod
    def start_slurmctld(self) -> None:
        """Starts it again; returns when it answers."""

    @abstractmethod
    def power_calls(self) -> Sequence[tuple[str, frozenset[str]]]:
        """Calls of Slurm's power programs that came in so far: kind and nodes."""

    @abstractmethod
    def report(self, text: str) -> None:
        """Shows a measurement."""


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = SLURM_TIMEOUT_S) -> float:
    """Waits for a condition; the seconds it took. Fails the test when the time is over."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.1)
    return time.monotonic() - start


def submit_job(cluster: ClusterUnderTest, options: str, *, user: str = "ada", seconds: int = 300) -> str:
    """Submits a job to the partition ``burst`` (unless the options name another) and gives its id."""
    partition = "" if "-p " in options else "-p burst "
    return cluster.shell(f"sbatch --parsable -o /dev/null {partition}{options} --wrap 'sleep {seconds}'", user).strip()


def find_job(cluster: ClusterUnderTest, job_id: str) -> Job | None:
    """The row of a job; None where it is not in the queue."""
    return next((j for j in cluster.scheduler.jobs() if j.id == job_id), None)


def is_running(cluster: ClusterUnderTest, job_id: str) -> bool:
    """Whether a job is on its nodes."""
    found = find_job(cluster, job_id)
    return found is not None and found.state is JobState.RUNNING


def ended_jobs(cluster: ClusterUnderTest) -> dict[str, Job]:
    """The jobs that are over and that slurmctld still knows, by their ids."""
    cluster.scheduler.jobs()
    return {job.id: job for job in cluster.scheduler.ended_jobs()}


def find_node(cluster: ClusterUnderTest, name: str) -> Node:
    """The node of a name."""
    return next(n for n in cluster.scheduler.nodes() if n.name == name)
