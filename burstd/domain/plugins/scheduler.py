"""The interface to Slurm. burstd/slurm/ speaks it through commands or pyslurm; tests/virtual/ plays it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from burstd.domain.slurm.job import Job
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.node import Node, Reservation


class Scheduler(Protocol):
    """Slurm. Calls block and raise SchedulerUnavailable (no answer) or SchedulerRefused (answered no).

    Every call takes many nodes at once and costs one RPC or command however many they are.
    """

    def version(self) -> tuple[int, int, int]:
        """Version of slurmctld: ``(22, 5, 8)``."""
        ...

    def jobs(self) -> Sequence[Job]:
        """Jobs that are pending, running or ending; finished ones are left out."""
        ...

    def ended_jobs(self) -> Sequence[Job]:
        """Jobs that were over at the last call of ``jobs``, as long as slurmctld knows them (MinJobAge)."""
        ...

    def nodes(self) -> Sequence[Node]:
        """All nodes, powered-down CLOUD nodes included."""
        ...

    def reservations(self) -> Sequence[Reservation]:
        """All reservations."""
        ...

    def licenses(self) -> Mapping[str, int]:
        """By name, how many of each licence are free."""
        ...

    def set_gate(self, nodes: Collection[str]) -> None:
        """Makes the gate hold exactly these nodes: creates, updates, extends or (empty) deletes the reservation."""
        ...

    def bind(self, job_id: str, user: str, nodes: Collection[str]) -> None:
        """Lets one pending job, and nobody else, start on these nodes while the gate holds them.

        Makes a reservation (named after the job, flags OVERLAP and IGNORE_JOBS) and moves the job into it.
        """
        ...

    def unbind(self, job_id: str) -> None:
        """Ends what ``bind`` made, where it exists; a job still pending goes back out of the reservation first."""
        ...

    def power_up(self, nodes: Collection[str]) -> None:
        """Tells Slurm that the nodes are coming (it calls ResumeProgram and waits for slurmd)."""
        ...

    def power_down(self, nodes: Collection[str], *, force: bool = False) -> None:
        """Tells Slurm that the nodes go (it calls SuspendProgram). ``force`` requeues the jobs on them."""
        ...

    def set_address(self, addresses: Sequence[tuple[str, str]]) -> None:
        """Sets NodeAddr and NodeHostName of nodes: pairs of node name and address."""
        ...

    def set_extra(self, nodes: Collection[str], text: str) -> None:
        """Writes the field Extra of nodes."""
        ...

    def drain(self, nodes: Collection[str], reason: str) -> None:
        """Keeps new jobs off the nodes."""
        ...

    def resume(self, nodes: Collection[str]) -> None:
        """Takes DRAIN, DOWN and FAIL off the nodes."""
        ...

    def down(self, nodes: Collection[str], reason: str) -> None:
        """Says that the nodes are dead: jobs on them end as NODE_FAIL or are requeued."""
        ...

    def requeue_jobs(self, job_ids: Collection[str]) -> None:
        """Has running jobs begin anew; of a het job the id is its number. Those that can be are, also where it raises.

        Jobs that are pending, ending or over are left as they are. Raises SchedulerRefused where one is not known, or
        must not be requeued (``sbatch --no-requeue``).
        """
        ...

    def warn_jobs(self, job_ids: Collection[str]) -> None:
        """Sends SIGCONT and SIGTERM to the steps of running jobs, as slurmctld does at the beginning of GraceTime.

        Ids as ``jobs`` has them. Raises SchedulerRefused where one does not run; the others are told all the same.
        """
        ...

    def requeue_ended(self, job_id: str) -> None:
        """Has a job begin anew that has ended by itself; nothing where it waits or runs again.

        Raises SchedulerRefused where it was cancelled, or is not known any more (slurm.conf's MinJobAge).
        """
        ...

    def cancel_running(self, job_id: str) -> None:
        """Cancels a job, or one task of an array, where it runs; nothing where it waits or is over.

        Raises SchedulerRefused where it is not known.
        """
        ...

    def limit_time(self, job_id: str, limit_s: float) -> None:
        """Sets the time limit of a job, running or not, in seconds from its start; Slurm counts whole minutes."""
        ...

    def start_now(self, job_ids: Collection[str]) -> None:
        """Sets the begin time of pending jobs to now: Slurm keeps a requeued one from starting for two minutes.

        For one that is still COMPLETING it is in vain: Slurm sets the time when that is over. One that then starts on
        a node of its last run within a second of its requeue is killed by Slurm 24.11: wait longer than that.
        """
        ...

    def hold(self, job_id: str) -> None:
        """Holds a pending job as its user could, who may release it; of a het job the id is its number.

        Raises SchedulerRefused where it is not known.
        """
        ...

    def update_jobs(self, job_ids: Collection[str], update: JobUpdate) -> None:
        """Changes what pending jobs ask for; ids as ``set_comment`` has them.

        Slurm takes a list of nodes that leaves the job none: it waits with the reason ``BadConstraints`` until the
        list is changed. Raises SchedulerRefused where one does not wait or no node has what it would ask for; that one
        is left as it was, and the others are changed all the same.
        """
        ...

    def comments(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """What stands now in the Comment of those of these jobs that are in the queue, by ids as ``jobs`` has them.

        With the number of an array come all its tasks that have rows of their own. slurmctld goes through its whole
        queue for it, as for ``jobs``.
        """
        ...

    def set_comment(self, job_ids: Collection[str], text: str) -> None:
        """Sets the Comment of jobs (``squeue -o %k``), running ones too; the caller minds what users wrote there.

        ``123_[2-9]`` are tasks of an array: name all that are pending, as their row does, for Slurm makes jobs of
        their own of a part of them. Raises SchedulerRefused where one is not known; the others are set all the same.
        """
        ...
