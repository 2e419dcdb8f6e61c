"""A Slurm in memory and virtual time: slurmctld, its nodes and its queue, behind the Scheduler interface."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.slurm.shape import Shape
from burstd.planner.demand.demand import task_ids
from tests.virtual.clock import VirtualClock
from tests.virtual.job import JobSpec, SimJob
from tests.virtual.jobs import Jobs
from tests.virtual.node import SimNode
from tests.virtual.power import PowerSaving, Programs, SlurmConf

UNLIMITED_S = 365 * 86400.0
"""What slurmctld makes of Duration=UNLIMITED."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Nodes of one kind, as one NodeName line has them. CLOUD nodes begin powered down, others up and answering."""

    names: tuple[str, ...]
    shape: Shape
    partitions: tuple[str, ...]
    cloud: bool = True


class SimSlurm:
    """One cluster. The Scheduler's calls are burstd's; the others are its users', its machines' and its fate's.

    Everything that takes time goes by the alarms of ``clock``: a job submitted starts when the clock is advanced.
    """

    def __init__(self, clock: VirtualClock, nodes: Iterable[NodeSpec], conf: SlurmConf | None = None) -> None:
        self.clock = clock
        self.conf = conf or SlurmConf()
        self.programs = Programs()
        self._nodes: dict[str, SimNode] = {}
        for spec in nodes:
            for name in spec.names:
                node = SimNode(name, spec.shape, spec.partitions, spec.cloud, slurmd=not spec.cloud)
                if spec.cloud:
                    node.flags.add("POWERED_DOWN")
                self._nodes[name] = node
        self._reservations: dict[str, Reservation] = {}
        self._running = True
        self._pending_registrations: list[tuple[str, str, float]] = []
        self._jobs = Jobs(clock, self.conf, self._nodes)
        self._power = PowerSaving(
            clock,
            self.conf,
            self._nodes,
            self.programs,
            lambda: self._running,
            self._jobs.kill_on,
            self._jobs.request_scheduling_pass,
        )
        self._jobs.power = self._power
        self._known_ended: tuple[Job, ...] = ()

    # What burstd asks.

    def version(self) -> tuple[int, int, int]:
        """See Scheduler."""
        self._check_running()
        return self.conf.version

    def jobs(self) -> Sequence[Job]:
        """See Scheduler."""
        self._check_running()
        self._known_ended = tuple(self._jobs.ended_views())
        return tuple(self._jobs.views())

    def ended_jobs(self) -> Sequence[Job]:
        """See Scheduler."""
        return self._known_ended

    def nodes(self) -> Sequence[Node]:
        """See Scheduler."""
        self._check_running()
        behind = self.clock.now() - self.clock.wall()
        return tuple(node.view(behind) for node in self._nodes.values())

    def reservations(self) -> Sequence[Reservation]:
        """See Scheduler."""
        self._check_running()
        return tuple(self._reservations.values())

    def licenses(self) -> Mapping[str, int]:
        """There are none."""
        return {}

    def set_gate(self, nodes: Collection[str]) -> None:
        """See Scheduler."""
        self._known(nodes)
        self._reserve(self.conf.gate, frozenset(nodes), Reservation(self.conf.gate, frozenset(), ("root",)))

    def bind(self, job_id: str, user: str, nodes: Collection[str]) -> None:
        """See Scheduler."""
        self._known(nodes)
        jobs = self._named(job_id)
        if any(job.state is not JobState.PENDING for job in jobs):
            raise SchedulerRefused(f"job {job_id} is not pending, so it cannot be moved into a reservation")
        name = self._name(job_id)
        self._reserve(name, frozenset(nodes), Reservation(name, frozenset(), (user,), frozenset({"OVERLAP"}), job_id))
        for job in jobs:
            self._jobs.reserve(job, name)

    def unbind(self, job_id: str) -> None:
        """See Scheduler."""
        self._check_running()
        name = self._name(job_id)
        for job in self._jobs.active.values():
            if job.reservation == name:
                self._jobs.reserve(job, "")
        self._reserve(name, frozenset(), Reservation(name, frozenset()))

    def power_up(self, nodes: Collection[str]) -> None:
        """See Scheduler."""
        self._known(nodes)
        self._power.power_up(nodes)

    def power_down(self, nodes: Collection[str], *, force: bool = False) -> None:
        """See Scheduler."""
        self._known(nodes)
        self._power.power_down(nodes, force=force)

    def set_address(self, addresses: Sequence[tuple[str, str]]) -> None:
        """See Scheduler."""
        self._known([name for name, _ in addresses])
        for name, address in addresses:
            self._nodes[name].address = address
            self._nodes[name].changed()

    def drain(self, nodes: Collection[str], reason: str) -> None:
        """See Scheduler."""
        self._known(nodes)
        for name in nodes:
            self._nodes[name].flags.add("DRAIN")
            self._nodes[name].reason = reason
            self._nodes[name].changed()

    def set_extra(self, nodes: Collection[str], text: str) -> None:
        """See Scheduler."""
        self._known(nodes)
        for name in nodes:
            self._nodes[name].extra = text
            self._nodes[name].changed()

    def resume(self, nodes: Collection[str]) -> None:
        """See Scheduler."""
        self._known(nodes)
        self._power.resume(nodes)

    def down(self, nodes: Collection[str], reason: str) -> None:
        """See Scheduler."""
        self._known(nodes)
        for name in nodes:
            self._power.set_down(self._nodes[name], reason)

    def requeue_jobs(self, job_ids: Collection[str]) -> None:
        """See Scheduler."""
        self._check_running()
        refused: list[str] = []
        for job_id in job_ids:
            try:
                self._jobs.begin_anew(self._jobs.named(job_id))
            except KeyError:
                refused.append(f"Invalid job id specified for job {job_id}")
            except ValueError as error:
                refused.append(f"{error} for job {job_id}")
        if refused:
            raise SchedulerRefused(refused[-1])

    def warn_jobs(self, job_ids: Collection[str]) -> None:
        """See Scheduler."""
        self._check_running()
        for job_id in job_ids:
            for job in self._named(job_id):
                if job.state is JobState.RUNNING:
                    job.warned += 1
                    if job.spec.ends_on_sigterm:
                        self._jobs.fail(job)

    def requeue_ended(self, job_id: str) -> None:
        """See Scheduler."""
        self._check_running()
        try:
            self._jobs.requeue_ended(self._jobs.named(job_id))
        except KeyError:
            raise SchedulerRefused(f"Invalid job id specified: {job_id}") from None
        except ValueError as error:
            raise SchedulerRefused(str(error)) from None

    def cancel_running(self, job_id: str) -> None:
        """See Scheduler."""
        if any(job.state is JobState.RUNNING for job in self._named(job_id)):
            self._jobs.cancel(job_id)

    def limit_time(self, job_id: str, limit_s: float) -> None:
        """See Scheduler."""
        self._check_running()
        for job in self._named(job_id):
            self._jobs.limit_time(job, max(60.0, limit_s // 60 * 60))

    def start_now(self, job_ids: Collection[str]) -> None:
        """See Scheduler."""
        for job_id in job_ids:
            self._jobs.start_now(self._named(job_id))

    def hold(self, job_id: str) -> None:
        """See Scheduler."""
        self._check_running()
        self._named(job_id)
        self._jobs.limit(job_id, "JobHeldUser")

    def update_jobs(self, job_ids: Collection[str], update: JobUpdate) -> None:
        """See Scheduler."""
        self._check_running()
        refused = ""
        for job_id in job_ids:
            array, bracket, tasks = job_id.partition("_[")
            for named in (f"{array}_{task}" for task in task_ids(tasks.rstrip("]"))) if bracket else (job_id,):
                for job in self._named(named):
                    if job.state is not JobState.PENDING:
                        refused = f"Job is no longer pending execution for job {named}"
                    else:
                        self._jobs.update(job, update)
        if refused:
            raise SchedulerRefused(refused)

    def comments(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """See Scheduler."""
        return {job.id: job.comment for job in self.jobs() if job.id in job_ids or job.array_job_id in job_ids}

    def set_comment(self, job_ids: Collection[str], text: str) -> None:
        """See Scheduler."""
        self._check_running()
        refused: SchedulerRefused | None = None
        for job_id in job_ids:
            try:
                self._comment(job_id, text)
            except SchedulerRefused as error:
                refused = error
        if refused is not None:
            raise refused

    def _comment(self, job_id: str, text: str) -> None:
        array, bracket, tasks = job_id.partition("_[")
        for named in (f"{array}_{task}" for task in task_ids(tasks.rstrip("]"))) if bracket else (job_id,):
            for job in self._named(named):
                job.comment = text
                job.changed()

    def _check_running(self) -> None:
        if not self._running:
            raise SchedulerUnavailable("slurmctld does not answer: Unable to contact slurm controller")

    def _known(self, nodes: Iterable[str]) -> None:
        self._check_running()
        for name in nodes:
            if name not in self._nodes:
                raise SchedulerRefused(f"Invalid node name specified: {name}")

    def _named(self, job_id: str) -> list[SimJob]:
        self._check_running()
        try:
            jobs = self._jobs.named(job_id)
        except KeyError:
            raise SchedulerRefused(f"Invalid job id specified: {job_id}") from None
        if all(job.number not in self._jobs.active for job in jobs):
            raise SchedulerRefused(f"Invalid job id specified: {job_id}")
        return jobs

    def _name(self, job_id: str) -> str:
        return f"{self.conf.gate}-{job_id}"

    def _reserve(self, name: str, nodes: frozenset[str], like: Reservation) -> None:
        before = self._reservations[name].nodes if name in self._reservations else frozenset()
        for node in before - nodes:
            self._nodes[node].reserved_by.discard(name)
        for node in nodes - before:
            self._nodes[node].reserved_by.add(name)
        for node in before ^ nodes:
            self._nodes[node].changed()
        if nodes:
            now = self.clock.now()
            self._reservations[name] = Reservation(
                name, nodes, like.users, like.flags | {"IGNORE_JOBS"}, like.job_id, start=now, end=now + UNLIMITED_S
            )
        else:
            self._reservations.pop(name, None)
        self._jobs.request_scheduling_pass()

    # What users and administrators do.

    def submit(self, *specs: JobSpec) -> str:
        """``sbatch``: one spec for a job or an array, several for a het job. Returns the job's id.

        Raises SchedulerRefused where the nodes could never do it.
        """
        self._check_running()
        try:
            return self._jobs.submit(specs)
        except ValueError as error:
            raise SchedulerRefused(str(error)) from error

    def cancel(self, job_id: str) -> None:
        """``scancel``; nothing for a job that is over."""
        self._check_running()
        self._jobs.cancel(job_id)

    def requeue(self, job_id: str) -> None:
        """``scontrol requeue``; nothing for a job that does not run."""
        self._check_running()
        self._jobs.requeue(job_id)

    def limit(self, job_id: str, reason: str) -> None:
        """Keeps the job pending for one of Slurm's reasons (``JobHeldUser``); empty: releases it."""
        self._check_running()
        self._jobs.limit(job_id, reason)

    def job(self, job_id: str) -> SimJob:
        """A job, over or not; of an array or a het job the first. For looking at, at any time. Raises KeyError."""
        return self._jobs.named(job_id)[0]

    def all_of(self, job_id: str) -> list[SimJob]:
        """The job, the tasks of the array or the components of the het job. Raises KeyError."""
        return self._jobs.named(job_id)

    @property
    def active(self) -> list[SimJob]:
        """Jobs that are not over."""
        return list(self._jobs.active.values())

    @property
    def ended(self) -> list[SimJob]:
        """Jobs that are over, in the order in which they ended."""
        return self._jobs.ended

    def node(self, name: str) -> SimNode:
        """A node, for looking at, at any time. Raises KeyError."""
        return self._nodes[name]

    # What machines do.

    def register(self, node: str, address: str, boot_time: float) -> None:
        """A slurmd on the machine of this address says that it is ``node``; told again while slurmctld is down."""
        if not self._running:
            self._pending_registrations.append((node, address, boot_time))
            return
        one = self._nodes[node]
        if one.slurmd and one.address != address:
            one.slurmd = False
        if boot_time > one.boot_time > 0 and one.shares:
            self._jobs.kill_on(node)  # The machine that had the jobs is not this one.
        if one.cloud:
            one.address = address  # cloud_reg_addrs
        self._power.registered(one, boot_time)
        if one.up:
            self._jobs.node_up(one)

    def silence(self, node: str, address: str) -> None:
        """The slurmd that called itself ``node`` from this address is dead."""
        self._pending_registrations = [t for t in self._pending_registrations if t[:2] != (node, address)]
        one = self._nodes[node]
        if one.slurmd and one.address == address:
            self._power.silenced(one)

    # What fate does.

    @property
    def running(self) -> bool:
        """Whether slurmctld answers."""
        return self._running

    def stop(self) -> None:
        """slurmctld ends, or cannot be reached by anybody. Jobs run on."""
        self._running = False

    def start(self) -> None:
        """slurmctld is back, with its state; nothing where it runs."""
        if self._running:
            return
        self._running = True
        told, self._pending_registrations = self._pending_registrations, []
        for node, address, boot_time in told:
            self.register(node, address, boot_time)
        self._power.restarted()
        self._jobs.restarted()

    def start_cold(self) -> None:
        """slurmctld is started anew without its state (``slurmctld -c``). Raises ValueError where jobs are active."""
        if self.active:
            raise ValueError("jobs are active")
        self.lose_reservations()
        for node in self._nodes.values():
            if node.cloud:
                self._power.forget(node)
        self.start()

    def lose_reservations(self) -> None:
        """All reservations are gone, as after ``slurmctld -c`` or an administrator's mistake."""
        for name in list(self._reservations):
            self._reserve(name, frozenset(), Reservation(name, frozenset()))
