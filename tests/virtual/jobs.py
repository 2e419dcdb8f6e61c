"""The lives of jobs in the simulated Slurm: submitted, placed, run, ended, requeued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_update import JobUpdate
from tests.virtual.clock import VirtualClock
from tests.virtual.job import ACTIVE, TOP_PRIORITY, JobSpec, Signature, SimJob
from tests.virtual.node import SimNode
from tests.virtual.power import PowerSaving, SlurmConf
from tests.virtual.queue import Queue, Shadow, cast_shadow, choose_nodes

MIN_JOB_AGE_S = 300.0
"""For so long slurmctld knows a job that is over."""
REVOKED_S = 2.0
"""A job that was requeued is killed on a node of its last run for so long: "Job credential revoked" (Slurm 24.11)."""


class Jobs:
    """All jobs. Ids are given as Slurm gives them; ``ended`` holds those that are over, in order."""

    def __init__(self, clock: VirtualClock, conf: SlurmConf, nodes: Mapping[str, SimNode]) -> None:
        self._clock = clock
        self._conf = conf
        self._nodes = nodes
        self._next = 1
        self.active: dict[int, SimJob] = {}
        self.ended: list[SimJob] = []
        self._by_id: dict[str, list[SimJob]] = {}
        self._queue = Queue(self.active)
        self._fitting: dict[Signature, dict[str, list[SimNode]]] = {}
        self._by_partition: dict[str, list[SimNode]] = {}
        for node in nodes.values():
            for partition in node.partitions:
                self._by_partition.setdefault(partition, []).append(node)
        self._pass_due = False
        self._shadows: dict[str, Shadow] = {}
        self._deferred: list[Callable[[], None]] = []
        self.power: PowerSaving

    # What users do.

    def submit(self, specs: Sequence[JobSpec]) -> str:
        """One spec: a job or an array; several: a het job. Returns the id. Raises ValueError where no node could do."""
        for spec in specs:
            if not any(self._could_run(spec, partition) for partition in spec.partitions):
                raise ValueError("Requested node configuration is not available")
        number = self._next
        job_id = str(number)
        if len(specs) > 1:
            made = [self._make(s, f"{job_id}+{i}", het=job_id, offset=i) for i, s in enumerate(specs)]
        elif specs[0].array:
            made = [self._make(specs[0], f"{job_id}_{i}", array=job_id, task=i) for i in range(specs[0].array)]
        else:
            made = [self._make(specs[0], job_id)]
        self._by_id[job_id] = made
        for job in made:
            self._by_id[job.id] = [job] if job.id != job_id else made
            self._wait(job)
        return job_id

    def _could_run(self, spec: JobSpec, partition: str) -> bool:
        return sum(node.could_fit(spec) for node in self._by_partition.get(partition, ())) >= spec.nodes

    def _make(
        self, spec: JobSpec, job_id: str, *, array: str = "", task: int = 0, het: str = "", offset: int = 0
    ) -> SimJob:
        now = self._clock.now()
        job = SimJob(
            number=self._next, id=job_id, spec=spec, submitted=now, eligible=now + spec.begin_in_s,
            priority=spec.priority or TOP_PRIORITY - self._next, limited_by=spec.limited_by, array_job_id=array,
            task=task, het_job_id=het, het_offset=offset, comment=spec.comment, behind=now - self._clock.wall(),
        )  # fmt: skip
        self._next += 1
        self.active[job.number] = job
        return job

    def named(self, job_id: str) -> list[SimJob]:
        """The job, the tasks of the array or the components of the het job. Raises KeyError."""
        return self._by_id[job_id]

    def cancel(self, job_id: str) -> None:
        """``scancel``. Nothing for jobs that are over. Raises KeyError."""
        for job in self.named(job_id):
            if job.state is JobState.PENDING:
                self._over(job, JobState.CANCELLED)
            elif job.state in (JobState.RUNNING, JobState.CONFIGURING):
                self._end(job, JobState.CANCELLED)

    def requeue(self, job_id: str) -> None:
        """``scontrol requeue`` of a running job. Raises KeyError."""
        for job in self.named(job_id):
            if job.state in (JobState.RUNNING, JobState.CONFIGURING):
                self._requeue(job, 0.0)

    def begin_anew(self, jobs: Sequence[SimJob]) -> None:
        """``scontrol requeue incomplete``: nothing for what does not run; ValueError for what must not begin anew."""
        jobs = [job for job in jobs if job.state in (JobState.RUNNING, JobState.CONFIGURING)]
        if not all(job.spec.requeue for job in jobs):
            raise ValueError("Requested operation is presently disabled")
        for job in jobs:
            job.revoked = (self._clock.now(), frozenset(job.nodes))
            self._requeue(job, self._conf.requeue_delay_s)

    def fail(self, job: SimJob) -> None:
        """Its processes end by themselves."""
        self._end(job, JobState.FAILED)

    def requeue_ended(self, jobs: Sequence[SimJob]) -> None:
        """``scontrol requeue`` of jobs that are over; ValueError for those that were cancelled."""
        for job in jobs:
            if job.number in self.active:
                continue
            if job.state not in (JobState.COMPLETED, JobState.FAILED):
                raise ValueError(f"it has ended as {job.state.value}")
            self.ended.remove(job)
            self.active[job.number] = job
            job.nodes = ()
            self._requeue(job, self._conf.requeue_delay_s)

    def start_now(self, jobs: Sequence[SimJob]) -> None:
        """``scontrol update StartTime=now``: nothing for jobs that do not wait."""
        for job in jobs:
            job.eligible = min(job.eligible, self._clock.now())
            job.changed()
            self._wait(job)

    def update(self, job: SimJob, update: JobUpdate) -> None:
        """``scontrol update`` of a job that waits."""
        spec = replace(job.spec, excluded_nodes=update.excluded_nodes)
        if update.gres_per_node:
            spec = replace(spec, gres_per_node=update.gres_per_node)
        if update.memory_mib:
            spec = replace(spec, memory_mib=update.memory_mib)
        if update.cpus or update.cpus_per_node:
            spec = replace(spec, cpus_per_node=update.cpus or update.cpus_per_node)
        job.spec = spec
        if update.start_now:
            job.eligible = min(job.eligible, self._clock.now())
        job.changed()
        self._wait(job)

    def limit_time(self, job: SimJob, limit_s: float) -> None:
        """``scontrol update TimeLimit=``."""
        job.spec = replace(job.spec, time_limit_s=limit_s)
        job.changed()
        if job.limit_alarm is not None:
            job.limit_alarm.cancel()
            self._limit(job)

    def limit(self, job_id: str, reason: str) -> None:
        """Keeps a pending job from starting for this reason; empty: it may start again. Raises KeyError."""
        for job in self.named(job_id):
            job.limited_by = reason
            job.changed()
            if job.state is JobState.PENDING:
                self._queue.remove(job)
                self._wait(job)

    def reserve(self, job: SimJob, reservation: str) -> None:
        """The job may use this reservation's nodes and no others; empty: those of none."""
        job.reservation = reservation
        job.changed()
        if job.state is JobState.PENDING:
            self._wait(job)

    # Placing.

    def _wait(self, job: SimJob) -> None:
        if job.state is not JobState.PENDING or job.limited_by:
            return
        if job.eligible > self._clock.now():
            self._clock.at(job.eligible, lambda: self._wait(job))
        else:
            self._queue.add(job)
            self.request_scheduling_pass()

    def request_scheduling_pass(self) -> None:
        """Something has changed: a scheduling pass is due."""
        if not self._pass_due:
            self._pass_due = True
            self._clock.at(self._clock.now() + self._conf.sched_delay_s, self._pass)

    def _pass(self) -> None:
        self._pass_due = False
        if self.power.alive():
            self._shadows = {}
            self._queue.scheduling_pass(self._try)

    def _try(self, job: SimJob) -> str:
        members = [m for m in self.named(job.het_job_id) if m.state in ACTIVE] if job.het_job_id else [job]
        if any(m.state is not JobState.PENDING or m.limited_by for m in members):
            return "Resources"
        if job.spec.array_limit:
            tasks = self.named(job.array_job_id)
            if sum(t.state in ACTIVE and t.state is not JobState.PENDING for t in tasks) >= job.spec.array_limit:
                return "JobArrayTaskLimit"
        placed: list[tuple[SimJob, list[SimNode]]] = []
        for member in members:
            found = self._find_nodes(member)
            if isinstance(found, str):
                for other, nodes in placed:
                    for node in nodes:
                        node.free(other.number, node.last_busy)
                return found
            for node in found:
                node.allocate(member.number, member.spec)
            placed.append((member, found))
        for member, nodes in placed:
            self._allocated(member, nodes)
        return ""

    def _find_nodes(self, job: SimJob) -> list[SimNode] | str:
        """Nodes for the job, or the reason why it has none now."""
        spec, now = job.spec, self._clock.now()
        reason = "Reservation" if job.reservation else "ReqNodeNotAvail"
        fitting = self._fitting_nodes(job)
        for partition in spec.partitions:
            seen = [
                node
                for node in fitting[partition]
                if (not node.reserved_by if not job.reservation else job.reservation in node.reserved_by)
                and node.open_to_jobs
            ]
            if len(seen) < spec.nodes:
                continue
            seen.sort(key=lambda node: "POWERED_DOWN" in node.flags)
            shadow = self._shadows.get(partition)
            chosen = choose_nodes(spec, seen, shadow, now + spec.time_limit_s)
            if chosen is not None:
                return chosen
            reason = "Priority" if shadow is not None else "Resources"
            if shadow is None:
                self._shadows[partition] = cast_shadow(spec, seen, self.active, now)
        return reason

    def _fitting_nodes(self, job: SimJob) -> dict[str, list[SimNode]]:
        signature = job.signature()
        found = self._fitting.get(signature)
        if found is None:
            found = self._fitting[signature] = {
                partition: [
                    node
                    for node in self._by_partition.get(partition, ())
                    if node.could_fit(job.spec) and node.name not in job.spec.excluded_nodes
                ]
                for partition in job.spec.partitions
            }
        return found

    # Running.

    def _allocated(self, job: SimJob, nodes: Iterable[SimNode]) -> None:
        job.nodes = tuple(node.name for node in nodes)
        job.allocated, job.state = self._clock.now(), JobState.CONFIGURING
        self._queue.remove(job)
        job.changed()
        job.waiting_for = {name for name in job.nodes if not self._nodes[name].up}
        for name in job.waiting_for:
            self.power.wake_for_job(name)
        self._configured(job)

    def node_up(self, node: SimNode) -> None:
        """A node has registered: jobs that were allocated on it may run."""
        for number in list(node.shares):
            job = self.active[number]
            if job.state is JobState.CONFIGURING:
                job.waiting_for.discard(node.name)
                self._configured(job)
        self.request_scheduling_pass()

    def _configured(self, job: SimJob) -> None:
        if job.waiting_for:
            return
        now = self._clock.now()
        requeued, nodes = job.revoked
        if now - requeued < REVOKED_S and not nodes.isdisjoint(job.nodes):
            self._end(job, JobState.FAILED)
            return
        job.state, job.started, job.behind_start = JobState.RUNNING, now, now - self._clock.wall()
        job.end_alarm = self._clock.at(now + job.spec.run_s, lambda: self._run_time_over(job))
        self._limit(job)
        job.changed()

    def _limit(self, job: SimJob) -> None:
        ran = self._clock.now() - job.started
        limit = self._clock.wall() + max(0.0, job.spec.time_limit_s - ran)
        job.limit_alarm = self._clock.at_wall(limit, lambda: self._when_alive(lambda: self._timed_out(job)))

    def _when_alive(self, action: Callable[[], None]) -> None:
        if self.power.alive():
            action()
        else:
            self._deferred.append(action)

    def restarted(self) -> None:
        """slurmctld is back: what the nodes had to tell it is told now."""
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            action()
        self.request_scheduling_pass()

    def _run_time_over(self, job: SimJob) -> None:
        if all(self._nodes[name].slurmd for name in job.nodes):
            self._when_alive(lambda: self._finish(job))

    def _finish(self, job: SimJob) -> None:
        if job.state is JobState.RUNNING:
            self._end(job, JobState.COMPLETED)

    def _timed_out(self, job: SimJob) -> None:
        if job.state is JobState.RUNNING and self._clock.now() >= job.started:
            self._end(job, JobState.TIMEOUT)

    def _end(self, job: SimJob, final: JobState) -> None:
        _stop_alarms(job)
        job.state, job.final, job.ended = JobState.COMPLETING, final, self._clock.now()
        for name in job.nodes:
            self._nodes[name].completing.add(job.number)
            self._nodes[name].changed()
        job.changed()
        self._clock.at(self._clock.now() + self._conf.complete_s, lambda: self._when_alive(lambda: self._left(job)))

    def _left(self, job: SimJob) -> None:
        if job.state is JobState.COMPLETING:
            self._leave_nodes(job)
            self._over(job, job.final)

    def _leave_nodes(self, job: SimJob) -> None:
        for name in job.nodes:
            node = self._nodes[name]
            node.free(job.number, self._clock.wall())
            if not node.shares:
                self.power.idle(node)
        self.request_scheduling_pass()

    def _over(self, job: SimJob, final: JobState) -> None:
        _stop_alarms(job)
        self._queue.remove(job)
        job.state, job.ended = final, self._clock.now()
        job.changed()
        del self.active[job.number]
        self.ended.append(job)

    def kill_on(self, node: str) -> None:
        """The node is gone: what runs there is requeued, or ends as NODE_FAIL. A het job stands or falls together."""
        for number in list(self._nodes[node].shares):
            hit = self.active.get(number)
            if hit is None:
                continue
            for job in self.named(hit.het_job_id) if hit.het_job_id else [hit]:
                if job.state is JobState.COMPLETING:
                    self._leave_nodes(job)
                    self._over(job, job.final)
                elif job.state in (JobState.RUNNING, JobState.CONFIGURING):
                    if job.spec.requeue:
                        self._requeue(job, self._conf.requeue_delay_s)
                    else:
                        self._leave_nodes(job)
                        self._over(job, JobState.NODE_FAIL)

    def _requeue(self, job: SimJob, delay_s: float) -> None:
        _stop_alarms(job)
        self._leave_nodes(job)
        job.state, job.nodes, job.waiting_for = JobState.PENDING, (), set()
        job.eligible, job.started, job.restarts = self._clock.now() + delay_s, 0.0, job.restarts + 1
        job.changed()
        self._wait(job)

    # What burstd sees.

    def views(self) -> Iterator[Job]:
        """Rows of the queue: tasks of an array that never started, nor are bound, are one row together."""
        arrays: dict[str, list[SimJob]] = {}
        now = self._clock.now()
        behind = now - self._clock.wall()
        for job in self.active.values():
            if job.array_job_id and job.state is JobState.PENDING and not job.restarts and not job.reservation:
                arrays.setdefault(job.array_job_id, []).append(job)
            else:
                yield job.view(self._reason(job, now), behind)
        for array, tasks in arrays.items():
            row = tasks[0].view(self._reason(tasks[0], now), behind)
            yield replace(row, id=array, tasks=len(tasks), array_tasks=_ranges([t.task for t in tasks]))

    def ended_views(self) -> Iterator[Job]:
        """Rows of jobs that are over, for MinJobAge."""
        now = self._clock.now()
        behind = now - self._clock.wall()
        for job in takewhile(lambda job: job.ended > now - MIN_JOB_AGE_S, reversed(self.ended)):
            yield replace(job.view("None", behind), end=job.ended + behind - job.behind_start)

    def _reason(self, job: SimJob, now: float) -> str:
        if job.state is not JobState.PENDING:
            return "None"
        if job.limited_by:
            return job.limited_by
        return "BeginTime" if job.eligible > now else self._queue.reason(job)


def _stop_alarms(job: SimJob) -> None:
    for alarm in (job.end_alarm, job.limit_alarm):
        if alarm is not None:
            alarm.cancel()
    job.end_alarm = job.limit_alarm = None


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as Slurm writes them: ``0-3,7``."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ",".join("-".join(str(n) for n in part) for part in parts)
