"""Slurm through pyslurm, where it is built for the libslurm of this host: the queue and the nodes in one RPC each.

pyslurm does not tell all that a job asks for (--gpus, --mem-per-gpu ...) nor which GRES of a node are in use, so what
does not change is taken from squeue once for each new job, GRES in use from scontrol for busy nodes, and all changes
are made through the commands.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.slurm.job import ENDED_STATES, PENDING_STATES, Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.slurm.commands.jobs import unreadable_job
from burstd.slurm.commands.nodes import parse_state, unreadable_node
from burstd.slurm.commands.parsing import MAX_DURATION_S, expand_hosts, parse_node_gres
from burstd.slurm.commands.reasons import short_reason
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import task_count
from burstd.slurm.scheduler import CommandScheduler

REQUEST_REFRESH_S = 30.0
"""After so long what jobs ask for is read anew: it can be changed by ``scontrol update``."""

_STATES = {state.value: state for state in JobState}
_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
# pyslurm must not look for slurm.conf when it is imported: without one it ends the process.
_PROBE = """\
import os
os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
import pyslurm
pyslurm.slurm_init()
"""


def pyslurm_unusable_because(commands: SlurmCommands) -> str:
    """Why pyslurm cannot be used here, in a sentence; empty: it can. Tried in a process of its own, which may die."""
    configured = os.environ.get("SLURM_CONF", "")
    if not any(Path(p).is_file() for p in ((configured,) if configured else _CONF)):
        return "there is no slurm.conf on this host"
    try:
        probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "pyslurm gave no answer within 30 s"
    if probe.returncode != 0:
        said = probe.stderr.strip().splitlines()
        return f"pyslurm does not work here: {said[-1] if said else f'exit code {probe.returncode}'}"
    try:
        theirs = [f"{n:02}" for n in commands.version()[:2]]
    except SchedulerUnavailable:
        return ""  # It will be said when the queue is read.
    ours = commands("scontrol", "--version").split()[-1].split(".")[:2]
    return "" if ours == theirs else f"Slurm's library here is {'.'.join(ours)}, slurmctld is {'.'.join(theirs)}"


def _load_pyslurm() -> Any:
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
    # As for squeue: else long lists of array tasks are cut off.
    os.environ["SLURM_BITSTR_LEN"] = "0"
    module = importlib.import_module("pyslurm")
    module.slurm_init()
    return module


class PyslurmScheduler(CommandScheduler):
    """``burstd.domain.plugins.scheduler.Scheduler`` on pyslurm for reading; see ``why_not`` before it is made."""

    def __init__(
        self,
        commands: SlurmCommands | None = None,
        translate: Callable[[float], float] = lambda wall: wall,
        gate_name: str = "burstd",
        request_refresh_s: float = REQUEST_REFRESH_S,
    ) -> None:
        super().__init__(commands, translate, gate_name)
        self._pyslurm = _load_pyslurm()
        self._requests_s = request_refresh_s
        self._requests: Mapping[str, Job] = {}
        self._requests_read = float("-inf")

    def jobs(self) -> Sequence[Job]:
        """Jobs that are pending, running or completing."""
        every = [_PyslurmJob(job) for job in self._load("Jobs")]
        rows = [row for row in every if row.state not in ENDED_STATES]
        known = self._requests
        stale = time.monotonic() - self._requests_read > self._requests_s
        if stale or any(row.id not in known and row.array not in known for row in rows):
            read = (*super().jobs(), *super().ended_jobs())
            # Any task stands for the others: squeue shows no row for those that it counts to the array's.
            known = self._requests = {job.array_job_id: job for job in read if job.array_job_id} | {
                job.id: job for job in read
            }
            self._requests_read = time.monotonic()
        # One that ended between two calls of squeue is known at the next one.
        self._ended_jobs = tuple(self._merged_jobs((row for row in every if row.state in ENDED_STATES), known))
        # One that squeue did not show, and was asked later, has ended meanwhile.
        return self._merged_jobs(rows, known)

    def _merged_jobs(self, rows: Iterable[_PyslurmJob], known: Mapping[str, Job]) -> list[Job]:
        found = ((row, known.get(row.id) or known.get(row.array)) for row in rows)
        return [self._merged_job(row, asked) for row, asked in found if asked is not None]

    def _merged_job(self, row: _PyslurmJob, asked: Job) -> Job:
        try:
            return row.merged_with(asked, self._translate)
        except (ValueError, ArithmeticError) as error:
            return unreadable_job(row.id, asked.user, error)

    def nodes(self) -> Sequence[Node]:
        """All nodes, powered-down CLOUD nodes included."""
        found = [self._node_or_unreadable(node) for node in self._load("Nodes")]
        busy = [node.name for node in found if node.busy and node.gres]
        if not busy:
            return found
        detailed = {node.name: node for node in self._node_reader.read_named(busy)}
        return [
            replace(
                node, gres_used=said.gres_used, shared_gpus=said.shared_gpus, unreliable_because=said.unreliable_because
            )
            if (said := detailed.get(node.name))
            else node
            for node in found
        ]

    def _node_or_unreadable(self, node: Any) -> Node:
        try:
            return self._node(node)
        except (ValueError, ArithmeticError) as error:
            return unreadable_node(node.name, error)

    def _node(self, node: Any) -> Node:
        state, flags = parse_state(node.state or "UNKNOWN")
        return Node(
            name=node.name,
            state=state,
            flags=flags,
            partitions=tuple(node.partitions or ()),
            cpus=node.effective_cpus or node.total_cpus,
            cpus_allocated=node.allocated_cpus or 0,
            memory_mib=node.real_memory or 0,
            memory_allocated_mib=node.allocated_memory or 0,
            gres=_gres(node.configured_gres),
            features=frozenset(node.active_features or ()),
            reason=node.reason or "",
            comment=node.comment or "",
            extra=node.extra or "",
            address=node.address or "",
            hostname=node.hostname or "",
            version=node.slurm_version or "",
            boot_time=self._time(node.boot_time),
            slurmd_start=self._time(node.slurmd_start_time),
            last_busy=self._time(node.last_busy_time),
        )

    def _time(self, wall: float | None) -> float:
        return self._translate(float(wall)) if wall else 0.0

    def _load(self, what: str) -> Sequence[Any]:
        try:
            return list(getattr(self._pyslurm, what).load().values())
        except self._pyslurm.RPCError as error:
            raise SchedulerUnavailable(f"slurmctld does not answer pyslurm: {error}") from error


class _PyslurmJob:
    """One job as pyslurm shows it."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self.state = _STATES.get(job.state, JobState.UNKNOWN)
        self.array = str(job.array_id) if job.array_id else ""
        self._waiting: str = job.array_tasks_waiting or ""
        if self.array:
            # pyslurm takes task 0 for none.
            self.id = self.array if self._waiting else f"{self.array}_{job.array_task_id or 0}"
        elif job.heterogeneous_id:
            self.id = f"{job.heterogeneous_id}+{job.heterogeneous_offset or 0}"
        else:
            self.id = str(job.id)

    def merged_with(self, asked: Job, translate: Callable[[float], float]) -> Job:
        """What the job asks for, with what became of it."""
        job = self._job
        waiting = self.state in PENDING_STATES
        # None: unlimited, or, while it waits, its partition's limit, which only squeue shows.
        limit_s = (
            min(60.0 * job.time_limit, MAX_DURATION_S) if job.time_limit else asked.time_limit_s if waiting else 0.0
        )
        return replace(
            asked,
            id=self.id,
            number=str(job.id),
            state=self.state,
            partitions=tuple((job.partition or "").split(",")),
            reason=short_reason(job.state_reason or "").removeprefix("None"),
            priority=job.priority or 0,
            array_tasks=self._waiting,
            tasks=task_count(self._waiting) if self._waiting else 1,
            tasks_limit=(job.array_tasks_parallel or 0) if self._waiting else 0,
            start=translate(float(job.start_time)) if job.start_time else 0.0,
            run_start=0 if waiting else int(job.start_time or 0),
            end=translate(float(job.end_time)) if job.end_time else 0.0,
            exit_code=f"{job.exit_code or 0}:{job.exit_code_signal or 0}" if self.state in ENDED_STATES else "",
            eligible=translate(float(job.eligible_time)) if job.eligible_time else 0.0,
            node_list=expand_hosts((job.required_nodes if waiting else job.allocated_nodes) or ""),
            reservation=job.reservation or "",
            dependency=(asked.dependency or "unknown") if job.dependencies else "",
            comment=job.comment or "",
            restarts=job.requeue_count or 0,
            preempted_at=asked.preempted_at if (job.requeue_count or 0) == asked.restarts else 0.0,
            time_limit_s=limit_s,
        )


def _gres(said: Mapping[str, object]) -> tuple[Gres, ...]:
    """pyslurm's ``{"gpu:v100": 4}``."""
    return parse_node_gres(",".join(f"{name}:{count}" for name, count in (said or {}).items()))


def open_scheduler(
    kind: str,
    commands: SlurmCommands | None = None,
    translate: Callable[[float], float] = lambda wall: wall,
    gate_name: str = "burstd",
) -> tuple[CommandScheduler, str]:
    """A Scheduler of the kind ``commands``, ``pyslurm`` or ``auto``, and why ``auto`` did not take pyslurm.

    slurmctld need not be up. Raises SchedulerUnavailable where pyslurm was asked for and cannot be used.
    """
    commands = commands or SlurmCommands()
    if kind == "commands":
        return CommandScheduler(commands, translate, gate_name), ""
    reason = pyslurm_unusable_because(commands)
    if not reason:
        return PyslurmScheduler(commands, translate, gate_name), ""
    if kind == "pyslurm":
        raise SchedulerUnavailable(f"[slurm] interface is 'pyslurm', but {reason}; set it to 'commands' or 'auto'")
    return CommandScheduler(commands, translate, gate_name), reason
