"""Replays several chains over one window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burstd.domain.slurm.job_history import EndedJob, History
from burstd.simulate.policy_chains import Chain
from burstd.simulate.report.figures import figures
from burstd.simulate.report.result import Result
from burstd.simulate.run import Run, World
from burstd.simulate.traces.window import ReplayJob, Workload


def replay(
    workload: Workload, world: World, chains: Sequence[Chain], tell: Callable[[Result], None] = lambda _: None
) -> tuple[Result, ...]:
    """One result for each chain, in their order; ``tell`` hears of each. Raises ReplayError."""
    results: list[Result] = []
    for chain in chains:
        policies = chain.policies() if chain.policies is not None else None
        course = Run(workload, world, policies, known_before(workload)).run()
        result = Result(chain.name, figures(course, workload, world), course.timeline, course.jobs)
        results.append(result)
        tell(result)
    return tuple(results)


def known_before(workload: Workload) -> History:
    """What a site knows at the beginning of the window: jobs of the trace that had ended by then."""
    return History.of(_ended(job, workload) for job in workload.before)


def _ended(job: ReplayJob, workload: Workload) -> EndedJob:
    # How long it waited is not in the trace: that is not asked of jobs of the cloud.
    gpus = job.total if workload.unit == "gpu" else 0
    end = job.submitted + job.run_s
    return EndedJob(
        f"before-{job.id}", job.user, job.account, job.name, (), job.nodes, job.total, gpus, job.limit_s,
        job.submitted, job.submitted, end, burst=True,
    )  # fmt: skip
