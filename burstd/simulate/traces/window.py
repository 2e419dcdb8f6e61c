"""The part of a trace that is replayed, as jobs of a site: whole nodes' shares, and the time limits users ask for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from typing import Literal

from burstd.simulate.report.result import TraceWindow
from burstd.simulate.traces.trace_job import Trace, TraceJob

Unit = Literal["gpu", "cpu"]
"""What jobs are counted by: GPUs, or CPUs where the trace has no GPUs."""
DAY_S = 86400.0
HOUR_S = 3600.0
OVERESTIMATE = 4.0
"""Of a job without a time limit: it is drawn evenly from once to five times its run time, as users' estimates are
modelled in Mu'alem and Feitelson, Utilization, Predictability, Workloads, and User Runtime Estimates (2001)."""
COMMON_LIMITS_S = tuple(HOUR_S * h for h in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 120, 168, 240, 336, 720, 1440))
"""Such a limit is rounded up to one of these, as users do (Tsafrir et al., Modeling User Runtime Estimates, 2005)."""


class WindowError(ValueError):
    """There is nothing to replay, or no site to do it on; the message says why."""


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """One job to be replayed. Times in seconds since 1970, lengths in seconds."""

    number: int
    """Its place in the queue: by submission, then as in the trace; from 1. Also its id in Slurm."""
    id: str
    """As in the trace."""
    submitted: float
    run_s: float
    """The decision code never sees it."""
    limit_s: float
    nodes: int
    units: int
    """GPUs (or CPUs) on each node."""
    user: str
    account: str
    name: str

    @property
    def total_units(self) -> int:
        """GPUs (or CPUs) on all nodes."""
        return self.nodes * self.units


@dataclass(frozen=True, slots=True)
class Workload:
    """What is replayed, by submission, and what is known of it."""

    jobs: tuple[ReplayJob, ...]
    unit: Unit
    window: TraceWindow
    before: tuple[ReplayJob, ...]
    """Jobs of the trace that had ended when the window began, by their end: what a site knows then."""
    notes: tuple[str, ...]

    @property
    def work_s(self) -> float:
        """GPU (or CPU) seconds of all jobs."""
        return sum(job.run_s * job.total_units for job in self.jobs)


def unit_of(trace: Trace) -> Unit:
    """GPUs where any job has some."""
    return "gpu" if any(job.gpus for job in trace.jobs) else "cpu"


def cut_window(trace: Trace, start: float | None, days: float | None, size: int, unit: Unit, seed: int) -> Workload:
    """The jobs submitted within ``days`` from ``start`` (None: from the trace's first to its last job).

    ``size`` is how many GPUs (or CPUs) a node has: larger jobs take several nodes. Raises WindowError.
    """
    jobs = sorted(trace.jobs, key=lambda job: job.submitted)
    if not jobs:
        raise WindowError("the trace has no jobs")
    begin = jobs[0].submitted if start is None else start
    end = jobs[-1].submitted + 1.0 if days is None else begin + days * DAY_S
    last = bisect_left(jobs, end, key=lambda job: job.submitted)
    notes: list[str] = []
    made = _replay_jobs(jobs[:last], begin, size, unit, seed, notes)
    first = bisect_left(made, begin, key=lambda job: job.submitted)
    if first == len(made):
        raise WindowError(
            f"no job of the trace was submitted in the window of {_day(begin)} to {_day(end)}; it has jobs from"
            f" {_day(jobs[0].submitted)} to {_day(jobs[-1].submitted)}"
        )
    before = sorted((j for j in made[:first] if j.submitted + j.run_s <= begin), key=lambda j: j.submitted + j.run_s)
    inside = tuple(replace(job, number=number) for number, job in enumerate(made[first:], 1))
    return Workload(inside, unit, TraceWindow(begin, end), tuple(before), tuple(notes))


def _replay_jobs(
    jobs: Sequence[TraceJob], begin: float, size: int, unit: Unit, seed: int, notes: list[str]
) -> list[ReplayJob]:
    """``notes`` gets what was assumed of the jobs from ``begin`` on."""
    made: list[ReplayJob] = []
    random = seeded_random(seed, "limits")
    left_out = guessed = raised = 0
    for job in jobs:
        # One draw for each job, used or not: what comes later in a trace changes nothing before it.
        factor = 1.0 + OVERESTIMATE * random.random()
        amount = job.gpus if unit == "gpu" else max(job.cpus, 1)
        counts = job.submitted >= begin
        if not amount:
            left_out += counts
            continue
        limit = job.time_limit_s
        if not limit:
            limit, guessed = common_limit(job.run_s * factor), guessed + counts
        elif limit < job.run_s:
            limit, raised = job.run_s, raised + counts
        nodes = max(1, job.nodes, -(-amount // size))
        made.append(
            ReplayJob(
                len(made) + 1, job.id, job.submitted, job.run_s, limit, nodes, -(-amount // nodes),
                job.user or job.account, job.account, job.name,
            )
        )  # fmt: skip
    if left_out:
        notes.append(f"{left_out} jobs without GPUs are left out")
    if guessed:
        notes.append(
            f"{guessed} jobs have no time limit in the trace: one to {1 + OVERESTIMATE:g} times their run time,"
            " drawn evenly, rounded up to a common limit (15 min, 30 min, 1 h, 2 h ... 60 days)"
        )
    if raised:
        notes.append(f"{raised} jobs ran longer than their time limit: it is raised to their run time")
    return made


def seeded_random(seed: int, what: str) -> Random:
    """Random numbers that hang on the seed and on what they are for."""
    return Random(f"{seed} {what}")  # noqa: S311  # dice, no secrets


def common_limit(seconds: float) -> float:
    """The next of the common limits; beyond the last one, full days."""
    found = bisect_left(COMMON_LIMITS_S, seconds)
    return COMMON_LIMITS_S[found] if found < len(COMMON_LIMITS_S) else -(-seconds // DAY_S) * DAY_S


def _day(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


def nodes_for_load(workload: Workload, load: float, size: int) -> int:
    """How many nodes make the window's work ``load`` times what they could do in it; at least one."""
    seconds = workload.window.end - workload.window.start
    return max(1, round(workload.work_s / (load * seconds * size)))
