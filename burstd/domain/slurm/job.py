"""A Slurm job as burstd sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from burstd.domain.slurm.shape import Gres


class JobState(StrEnum):
    """Slurm's base job states (job_state in slurm.h), by their long names."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CONFIGURING = "CONFIGURING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    REQUEUED = "REQUEUED"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STOPPED = "STOPPED"
    RESIZING = "RESIZING"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    REQUEUE_FED = "REQUEUE_FED"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    UNKNOWN = "UNKNOWN"


PENDING_STATES = frozenset({JobState.PENDING, JobState.REQUEUED, JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT})
"""Of jobs that have no nodes and may get some."""
RUNNING_STATES = frozenset(
    {
        JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPED, JobState.SIGNALING, JobState.RESIZING,
        JobState.COMPLETING, JobState.STAGE_OUT,
    }
)  # fmt: skip
"""Of jobs that have begun and are in the queue. In STAGE_OUT their nodes are free already; in CONFIGURING they boot."""


ENDED_STATES = frozenset(
    {
        JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, JobState.TIMEOUT, JobState.NODE_FAIL,
        JobState.PREEMPTED, JobState.OUT_OF_MEMORY, JobState.BOOT_FAIL, JobState.DEADLINE, JobState.REVOKED,
    }
)  # fmt: skip
"""Of jobs that are over. slurmctld knows them for MinJobAge (300 s) more."""


_HELD = frozenset({"JobHeldUser", "JobHeldAdmin", "JobLaunchFailure"})
_MIN_RUN_S = 0.5
"""Slurm's times are whole seconds; as burstd has them, two of the same second may differ a little."""


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the queue: a job, the pending rest of a job array, one array task, or one component of a het job.

    ``id`` is what Slurm's commands take: ``123``, ``123_7`` (one task), ``123`` for the pending rest of an array
    (then ``tasks`` > 1 or ``array_tasks`` is not empty), ``123+1`` for the second component of het job 123.
    Requests are as submitted; 0 or an empty value means not asked for. Memory in MiB, times in seconds since
    1970 in burstd's own time (the observer translates Slurm's), lengths of time in seconds.
    """

    id: str
    user: str
    state: JobState
    partitions: tuple[str, ...]
    submitted: float
    name: str = ""
    account: str = ""
    qos: str = ""
    reason: str = ""
    """Slurm's reason why it is pending, by its short name (``Resources``, ``Priority``, ``ReqNodeNotAvail`` ...)."""
    priority: int = 0
    array_job_id: str = ""
    array_tasks: str = ""
    """Pending task ids as Slurm writes them (``1-10,15``), without the ``%`` throttle."""
    tasks: int = 1
    """How many array tasks this row stands for."""
    tasks_limit: int = 0
    """The array's ``%`` throttle: how many tasks may run at once; 0: no throttle."""
    het_job_id: str = ""
    het_offset: int = 0
    nodes: int = 1
    """Fewest nodes that it can start on."""
    nodes_max: int = 0
    """Most nodes that it may be spread over; 0: no limit."""
    cpus: int = 1
    """CPUs over all nodes."""
    cpus_per_node: int = 0
    """Fewest CPUs of each node (Slurm's pn_min_cpus)."""
    memory_mib: int = 0
    memory_per_cpu: bool = False
    """True where ``memory_mib`` is for each CPU, else it is for each node; 0: the partition's default."""
    memory_whole: bool = False
    """It asked for no memory and the site has no default: Slurm gives it all the memory of its nodes."""
    gres_per_node: tuple[Gres, ...] = ()
    gres_per_job: tuple[Gres, ...] = ()
    constraint: str = ""
    """The feature expression as submitted: ``a100&nvme``, ``a|b``, ``[x*2&y*1]``."""
    exclusive: bool = False
    """Whole nodes."""
    exclusive_user: bool = False
    """Nodes without jobs of other users: ``--exclusive=user``, or ExclusiveUser=YES of its first partition."""
    time_limit_s: float = 0.0
    start: float = 0.0
    """When it started, or Slurm's estimate for a pending one; 0 where there is none."""
    run_start: int = 0
    """The same of one that has started, as Slurm has it by the system's clock; else 0. It names the run: Slurm gives
    ids again."""
    end: float = 0.0
    exit_code: str = ""
    """Of one that is over: exit status and signal (``1:0``); empty: it has none, or that is not known."""
    preempted_at: float = 0.0
    """Since when slurmctld preempts it, whose partition has a GraceTime; 0: it does not."""
    eligible: float = 0.0
    node_list: tuple[str, ...] = ()
    """Nodes it has (running) or asks for (pending)."""
    excluded_nodes: tuple[str, ...] = ()
    reservation: str = ""
    licenses: str = ""
    dependency: str = ""
    comment: str = ""
    restarts: int = 0
    number: str = ""
    """Slurm's own, which an array task has beside its ``id``; empty: that is its number."""
    requeue: bool = True
    """Slurm may run it again where a node fails (``--no-requeue`` forbids it)."""
    batch: bool = True
    """False: of srun or salloc, which Slurm never requeues."""
    work_dir: str = ""
    output_dir: str = ""
    """Where its output is to lie, absolute; below its working directory: that one. Empty: nowhere, or not known."""

    @property
    def ran(self) -> bool:
        """Of one that is over, whether it ran, for a second at least.

        Of one that was cancelled while it waited Slurm has a start and an end too, in the same second, and nodes where
        it was requeued before.
        """
        return bool(self.node_list and self.run_start) and self.end - self.start > _MIN_RUN_S

    @property
    def held(self) -> bool:
        """Whether it waits until somebody releases it (``scontrol release``)."""
        return self.state is JobState.PENDING and self.reason in _HELD


def users_and_accounts(jobs: Iterable[Job]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The users and the projects (Slurm accounts) of these jobs, each once, in the jobs' order."""
    jobs = tuple(jobs)
    return tuple(dict.fromkeys([job.user for job in jobs])), tuple(
        dict.fromkeys([job.account for job in jobs if job.account])
    )
