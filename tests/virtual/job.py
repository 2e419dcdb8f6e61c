"""Jobs of the simulated Slurm: what was submitted, and what has become of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres
from tests.virtual.clock import Alarm

TOP_PRIORITY = 4_294_901_759
ACTIVE = frozenset({JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is submitted. Memory in MiB a node, times in seconds; ``run_s`` is how long it runs if it is let."""

    user: str = "ann"
    partitions: tuple[str, ...] = ("burst",)
    nodes: int = 1
    cpus_per_node: int = 1
    memory_mib: int = 0
    gres_per_node: tuple[Gres, ...] = ()
    constraint: str = ""
    exclusive: bool = False
    run_s: float = 60.0
    time_limit_s: float = 3600.0
    requeue: bool = True
    ends_on_sigterm: bool = False
    name: str = "job"
    account: str = ""
    qos: str = ""
    priority: int = 0
    """0: as priority/basic does, first come first served."""
    begin_in_s: float = 0.0
    limited_by: str = ""
    """A reason of Slurm's that keeps it pending until released (``JobHeldUser``, ``Dependency``, ``Licenses`` ...)."""
    array: int = 0
    """Number of array tasks, ids from 0; 0: no array."""
    array_limit: int = 0
    comment: str = ""
    excluded_nodes: frozenset[str] = frozenset()


Signature = tuple[object, ...]
"""Jobs with the same one fit, or do not fit, alike."""


@dataclass(slots=True)
class SimJob:
    """One job, array task or het component, over all its restarts."""

    number: int
    id: str
    spec: JobSpec
    submitted: float
    eligible: float
    priority: int
    state: JobState = JobState.PENDING
    final: JobState = JobState.PENDING
    """While COMPLETING: what it will be."""
    limited_by: str = ""
    array_job_id: str = ""
    task: int = 0
    het_job_id: str = ""
    het_offset: int = 0
    reservation: str = ""
    comment: str = ""
    nodes: tuple[str, ...] = ()
    waiting_for: set[str] = field(default_factory=set)
    """Allocated nodes that are not up yet."""
    allocated: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    restarts: int = 0
    warned: int = 0
    """How often its steps got SIGTERM for a requeue."""
    revoked: tuple[float, frozenset[str]] = (0.0, frozenset())
    """When it was last requeued by burstd, and from which nodes."""
    end_alarm: Alarm | None = None
    limit_alarm: Alarm | None = None
    behind: float = 0.0
    """How far the system's clock was behind burstd's when it was submitted; ``behind_start``: when it started."""
    behind_start: float = 0.0
    _cached_view: tuple[str, float, Job] | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the queue."""
        return (-self.priority, self.number)

    def signature(self) -> Signature:
        """See Signature."""
        s = self.spec
        array = self.array_job_id if s.array_limit else ""
        return (
            s.partitions, s.nodes, s.cpus_per_node, s.memory_mib, s.gres_per_node, s.constraint, s.exclusive,
            s.time_limit_s, self.reservation, array, self.het_job_id, s.excluded_nodes,
        )  # fmt: skip

    def changed(self) -> None:
        """Forgets the view that was made of it."""
        self._cached_view = None

    def view(self, reason: str, behind: float) -> Job:
        """As burstd sees it, alone, with the system's clock so far behind burstd's by now: jumps shift what was."""
        if self._cached_view is None or self._cached_view[:2] != (reason, behind):
            self._cached_view = (reason, behind, self._build_view(reason, behind))
        return self._cached_view[2]

    def _build_view(self, reason: str, behind: float) -> Job:
        shift = behind - self.behind
        s = self.spec
        running = self.state is not JobState.PENDING
        return Job(
            id=self.id, user=s.user, state=self.state, partitions=s.partitions,
            submitted=self.submitted + shift, name=s.name,
            account=s.account, qos=s.qos, reason=reason, priority=0 if self.limited_by.startswith("JobHeld")
            else self.priority, array_job_id=self.array_job_id, het_job_id=self.het_job_id,
            het_offset=self.het_offset, nodes=s.nodes, nodes_max=s.nodes, cpus=s.nodes * s.cpus_per_node,
            cpus_per_node=s.cpus_per_node, memory_mib=s.memory_mib, gres_per_node=s.gres_per_node,
            constraint=s.constraint, exclusive=s.exclusive, time_limit_s=s.time_limit_s,
            start=self.started + behind - self.behind_start if running and self.started else 0.0,
            run_start=int(self.started) if running else 0,
            eligible=self.eligible + shift, node_list=self.nodes,
            reservation=self.reservation, comment=self.comment, restarts=self.restarts,
            tasks_limit=s.array_limit, excluded_nodes=tuple(sorted(s.excluded_nodes)),
        )  # fmt: skip
