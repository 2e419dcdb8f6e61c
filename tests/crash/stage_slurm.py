"""A Slurm that stages jobs' data through the hooks of burst_buffer/lua, as the real ones were seen to do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from tests.virtual.clock import VirtualClock

AGAIN_S = 20.0
"""A server that has no answer for so long says "again"."""
PAUSE_S = 1.0
"""A client's pause while burstd is away."""
MIN_JOB_AGE_S = 60.0
REQUEUE_S = 120.0
RESTART_S = 60.0
REFUSALS = 3
"""After so many errors of pre_run the job is held."""
_BASE = {"COMPLETED": 3, "CANCELLED": 4, "FAILED": 5, "TIMEOUT": 6, "NODE_FAIL": 7}
_STAGE_OUT = 8388608


@dataclass(slots=True)
class BurstJob:
    """A job with data. ``phase``: new, setup, data_in, ready, pre_run, cleaning (its nodes are gone, pre_run has not
    ended), running, post_run, data_out, teardown, held, stuck (no hook comes any more), gone."""

    id: str
    queue_id: str
    user: str
    uid: int
    script: str
    size: int
    """Nodes."""
    run_s: float
    partition: str
    end_as: str = "COMPLETED"
    phase: str = "new"
    state: str = "PENDING"
    life: int = 0
    """How often it was set up."""
    runs: int = 0
    nodes: tuple[str, ...] = ()
    """Since it was allocated, until it starts over."""
    shown: bool = True
    """Its nodes are told: not once it was requeued."""
    gone_at: float = 0.0
    requeued: bool = False
    refused: int = 0
    alarms: int = 0
    """Of the phase: what was to happen in one that is over is void."""
    clients: list[Client] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Client:
    """One ``burstd-stage``: asks until it is answered, or killed."""

    call: StageCall
    then: Callable[[StageReply], None]
    answered: bool = False
    """Or killed."""
    tries: int = 0
    over: bool = False
    """Slurm has heard its answer, or has killed it."""


class StagingSite(Protocol):
    """What surrounds Slurm."""

    def send_call(self, call: StageCall, deliver: Callable[[StageReply], None]) -> bool:
        """Puts a question to burstd; False: it does not run."""
        ...

    def available_nodes(self, partition: str) -> tuple[str, ...]:
        """Nodes of a partition that are up."""
        ...

    def allocated(self, job: BurstJob) -> None:
        """Slurm has given nodes to a job."""
        ...

    def started(self, job: BurstJob) -> None:
        """A job runs and writes output."""
        ...

    def output_discarded(self, job: BurstJob) -> None:
        """Its owner does not want the output."""
        ...


class BurstSlurm:
    """slurmctld with burst_buffer.lua, Flags=TeardownFailure."""

    def __init__(self, clock: VirtualClock, site: StagingSite) -> None:
        self._clock = clock
        self._site = site
        self.jobs: dict[str, BurstJob] = {}
        self.loses_teardowns = False
        """Of jobs that are cancelled while a hook is under way: they are cancelled, and stay on its record."""
        self.scripts = True
        """burstd-stage can read them."""
        self.silent = False
        """It does not answer commands."""
        self.reasons: dict[str, str] = {}
        """Of drained nodes."""
        self.hook_replies: list[tuple[str, str, str]] = []
        """(job, hook, result), as burstd said it."""

    # Users.

    def submit(self, job: BurstJob) -> str:
        """Takes a job."""
        self.jobs[job.id] = job
        self._after(job, 0.2, self._setup)
        return job.id

    def cancel(self, job_id: str, *, hurry: bool = False) -> None:
        """scancel, with --hurry."""
        job = self.jobs[job_id]
        match job.phase:
            case "new":
                job.state = "CANCELLED"
                self._gone(job)
            case "setup" | "data_in" | "ready" | "pre_run" | "cleaning" | "held":
                hooked = any(not client.over for client in job.clients)
                self._kill(job)
                job.state = "CANCELLED"
                if hooked and self.loses_teardowns:
                    job.phase, job.gone_at = "gone", float("inf")
                else:
                    self._teardown(job, hurry=True)
            case "running":
                job.state = job.end_as = "CANCELLED"
                job.requeued = False
                if hurry:
                    self._site.output_discarded(job)
                    self._post_run(job, lambda: self._teardown(job, hurry=True))
                else:
                    self._post_run(job, lambda: self._data_out(job))
            case "data_out" if hurry:
                # data_out goes on, and its end brings a second teardown.
                self._site.output_discarded(job)
                job.requeued, job.end_as = False, "CANCELLED"
                self._client(job, "teardown", lambda _reply: None, hurry=True)
            case _:
                pass

    def requeue(self, job_id: str) -> None:
        """scontrol requeue."""
        job = self.jobs[job_id]
        if job.phase == "running":
            self._end(job, "PENDING", requeued=True)
        elif job.phase == "pre_run":
            self._lose_nodes(job, requeue=True)

    def release(self, job_id: str) -> None:
        """scontrol release, by SlurmUser."""
        job = self.jobs.get(job_id)
        if job is not None and job.phase == "held":
            self._after(job, 0.1, self._setup)

    def fail_node(self, node: str, *, requeue: bool) -> None:
        """A node is lost under its jobs."""
        for job in list(self.jobs.values()):
            if node not in job.nodes:
                continue
            if job.phase == "running":
                self._end(job, "PENDING" if requeue else "NODE_FAIL", requeued=requeue)
            elif job.phase == "pre_run":
                self._lose_nodes(job, requeue=requeue)

    # slurmctld itself.

    def restart(self, *, recent: bool, other_nodes: bool = False) -> None:
        """kill -9 and start. ``recent``: what has been saved is older than the phases that jobs are in."""
        for job in list(self.jobs.values()):
            phase = job.phase
            if phase in ("gone", "new", "ready", "held", "stuck"):
                continue
            if phase == "running" and not recent:
                continue
            self._kill(job)
            match phase:
                case "setup" | "data_in" if recent:
                    self._after(job, 0.2, self._setup)
                case "setup" | "data_in" | "cleaning" if job.state == "PENDING":
                    self._teardown(job, hurry=True, then=partial(self._wait, job, RESTART_S))
                case "pre_run" | "running":
                    # Its start is forgotten: it is staged in and gets nodes once more.
                    job.state, job.phase = "PENDING", "ready"
                    nodes, job.nodes = job.nodes, ()
                    self._allocate(job, avoid=nodes if other_nodes else ())
                case "post_run" | "data_out" if recent:
                    job.phase = "stuck"
                    self._after(job, 5 * MIN_JOB_AGE_S, self._gone)
                case "post_run" | "data_out":
                    self._post_run(job, partial(self._data_out, job))
                case "teardown" if recent:
                    self._gone(job)
                case _:
                    self._teardown(job, hurry=False)

    def lose(self, job_id: str) -> None:
        """The job is forgotten in a crash; no hook comes any more."""
        job = self.jobs[job_id]
        self._kill(job)
        job.phase, job.gone_at = "gone", -1e12

    # What burstd asks.

    def view(self) -> SlurmView:
        """The queue."""
        rows = []
        for job in self.jobs.values():
            if job.phase != "gone":
                state = self._state(job)
                rows.append(Job(job.queue_id, job.user, JobState(state), (job.partition,), 0.0, node_list=job.nodes))
        nodes = {name: Node(name, "MIXED", frozenset({"DRAIN"}), reason=why) for name, why in self.reasons.items()}
        return SlurmView(tuple(rows), nodes, (), self._clock.now(), "24.11.5")

    def facts(self, job_id: str) -> JobFacts | None:
        """scontrol show job. Raises SchedulerUnavailable."""
        if self.silent:
            raise SchedulerUnavailable("slurm_load_jobs: Unable to contact slurm controller")
        job = self.jobs.get(job_id)
        if job is None or (job.phase == "gone" and self._clock.now() - job.gone_at > MIN_JOB_AGE_S):
            return None
        return JobFacts(
            job_id, job.queue_id, job.user, job.uid, job.uid, "", (job.partition,), self._state(job), "0:0",
            job.nodes if job.shown else (), f"/home/{job.user}", f"/home/{job.user}/slurm-{job_id}.out", "",
            restarts=job.runs - (job.phase == "running"), run_seconds=job.run_s,
        )  # fmt: skip

    def _state(self, job: BurstJob) -> str:
        if job.phase in ("post_run", "data_out", "teardown", "stuck") and job.runs and not job.requeued:
            return "STAGE_OUT" if job.phase != "post_run" else "COMPLETING"
        return job.state

    # The life of a job.

    def _setup(self, job: BurstJob) -> None:
        job.phase, job.state, job.nodes, job.shown, job.requeued = "setup", "PENDING", (), True, False
        job.life += 1
        self._client(job, "setup", lambda reply: self._data_in(job) if reply.result == "ok" else self._hold(job))

    def _data_in(self, job: BurstJob) -> None:
        job.phase = "data_in"

        def answered(reply: StageReply) -> None:
            if reply.result == "ok":
                job.phase = "ready"
                self._after(job, 0.5, self._allocate)
            else:
                self._hold(job)

        self._client(job, "data_in", answered)

    def _hold(self, job: BurstJob) -> None:
        self._teardown(job, hurry=True, then=lambda: setattr(job, "phase", "held"))

    def _allocate(self, job: BurstJob, avoid: tuple[str, ...] = ()) -> None:
        taken = {n for j in self.jobs.values() if j is not job and j.phase in ("pre_run", "running") for n in j.nodes}
        free = [n for n in self._site.available_nodes(job.partition) if n not in taken]
        free.sort(key=lambda n: n in avoid)
        if len(free) < job.size:
            self._after(job, 5.0, self._allocate)
            return
        job.nodes, job.phase, job.state, job.shown = tuple(sorted(free[: job.size])), "pre_run", "CONFIGURING", True
        self._site.allocated(job)
        self._client(job, "pre_run", lambda reply: self._run(job) if reply.result == "ok" else self._start_over(job))

    def _lose_nodes(self, job: BurstJob, *, requeue: bool) -> None:
        """It is torn down at once, but Slurm ends no pre_run: the job is cleaned up until that is answered."""
        (pre_run,) = [client for client in job.clients if not client.over]
        if requeue:
            job.state, job.nodes, job.shown, after = "PENDING", (), False, partial(self._wait, job, REQUEUE_S)
        else:
            job.state, job.end_as, after = "NODE_FAIL", "NODE_FAIL", partial(self._gone, job)

        def ended(reply: StageReply) -> None:
            if reply.result != "ok":
                self._teardown(job, hurry=True, then=after)
            elif requeue:
                # Its data counts as that of a job that runs, for good.
                job.phase = "stuck"
            else:
                after()

        pre_run.then = ended
        job.phase = "cleaning"
        self._client(job, "teardown", lambda _reply: None, hurry=True)

    def _start_over(self, job: BurstJob) -> None:
        job.refused += 1
        job.state = "PENDING"
        after = self._wait if job.refused < REFUSALS else lambda job, _s: setattr(job, "phase", "held")
        self._teardown(job, hurry=True, then=lambda: after(job, REQUEUE_S))

    def _run(self, job: BurstJob) -> None:
        job.phase, job.state = "running", "RUNNING"
        job.runs += 1
        job.refused = 0
        self._site.started(job)
        self._after(job, job.run_s, lambda job: self._end(job, job.end_as))

    def _end(self, job: BurstJob, state: str, *, requeued: bool = False) -> None:
        job.requeued, job.shown = requeued, not requeued
        if not requeued:
            job.end_as = state
        self._post_run(job, lambda: self._data_out(job))
        job.state = state

    def _post_run(self, job: BurstJob, then: Callable[[], None]) -> None:
        job.phase = "post_run"
        self._client(job, "post_run", lambda _reply: then())

    def _data_out(self, job: BurstJob) -> None:
        job.phase = "data_out"
        self._client(job, "data_out", lambda _reply: self._teardown(job, hurry=False))

    def _teardown(self, job: BurstJob, *, hurry: bool, then: Callable[[], None] | None = None) -> None:
        job.phase = "teardown"
        last = then or (lambda: self._wait(job, REQUEUE_S) if job.requeued else self._gone(job))
        self._client(job, "teardown", lambda _reply: last(), hurry=hurry)

    def _wait(self, job: BurstJob, seconds: float) -> None:
        job.phase, job.state, job.nodes, job.requeued = "new", "PENDING", (), False
        self._after(job, seconds, self._setup)

    def _gone(self, job: BurstJob) -> None:
        job.alarms += 1
        if job.state != "NODE_FAIL":
            job.state = job.end_as if job.runs and job.state != "CANCELLED" else "CANCELLED"
        job.phase, job.gone_at = "gone", self._clock.now()

    def _after(self, job: BurstJob, seconds: float, what: Callable[[BurstJob], None]) -> None:
        job.alarms += 1
        number = job.alarms
        self._clock.at(self._clock.now() + seconds, lambda: what(job) if job.alarms == number else None)

    # Clients.

    def _client(self, job: BurstJob, hook: str, then: Callable[[StageReply], None], *, hurry: bool = False) -> None:
        job.alarms += 1
        info = {}
        if hook in ("post_run", "data_out"):
            info["job_state"] = str(_STAGE_OUT + (0 if job.requeued else _BASE[job.end_as]))
        text = job.script if hook in ("setup", "data_in", "data_out") and self.scripts else ""
        call = StageCall(hook, job.id, job.uid, job.uid, f"/spool/job.{job.id}/script", hurry, info, text)
        client = Client(call, then)
        job.clients = [*(c for c in job.clients if not c.over), client]
        self._send_call(client)

    def _send_call(self, client: Client) -> None:
        if client.answered:
            return
        client.tries += 1
        number = client.tries

        def tell(reply: StageReply) -> None:
            # Who has been told to ask again does not hear what comes later.
            if client.answered or client.tries != number:
                return
            client.answered = True
            self.hook_replies.append((client.call.job_id, client.call.hook, reply.result))
            self._clock.at(self._clock.now() + 0.02, lambda: hear(reply))

        def hear(reply: StageReply) -> None:
            if not client.over:
                client.over = True
                client.then(reply)

        there = self._site.send_call(client.call, tell)
        if not client.answered:
            self._clock.at(
                self._clock.now() + (AGAIN_S if there else PAUSE_S),
                lambda: self._send_call(client) if client.tries == number else None,
            )

    def burstd_died(self) -> None:
        """Connections break: clients ask again."""
        for job in self.jobs.values():
            for client in job.clients:
                if not client.answered:
                    client.tries += 1
                    number = client.tries
                    self._clock.at(
                        self._clock.now() + PAUSE_S,
                        lambda c=client, n=number: self._send_call(c) if c.tries == n else None,  # type: ignore[misc]
                    )

    def _kill(self, job: BurstJob) -> None:
        job.alarms += 1
        for client in job.clients:
            client.answered = client.over = True
