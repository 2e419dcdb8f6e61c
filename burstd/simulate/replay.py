"""Replays several chains over one window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burstd.domain.slurm.job_history import EndedJob, JobHistory
from burstd.simulate.policy_chains import PolicyChain
from burstd.simulate.report.figures import compute_figures
from burstd.simulate.report.result import ChainResult
from burstd.simulate.run import ReplayRun, Scenario
from burstd.simulate.traces.window import ReplayJob, Workload


def replay_chains(
    workload: Workload,
    world: Scenario,
    chains: Sequence[PolicyChain],
    on_result: Callable[[ChainResult], None] = lambda _: None,
) -> tuple[ChainResult, ...]:
    """One result for each chain, in their order; ``tell`` hears of each. Raises ReplayError."""
    results: list[ChainResult] = []
    for chain in chains:
        policies = chain.policies() if chain.policies is not None else None
        course = ReplayRun(workload, world, policies, history_before(workload)).run()
        result = ChainResult(chain.name, compute_figures(course, workload, world), course.timeline, course.jobs)
        results.append(result)
        on_result(result)
    return tuple(results)


def history_before(workload: Workload) -> JobHistory:
    """What a site knows at the beginning of the window: jobs of the trace that had ended by then."""
    return JobHistory.from_jobs(_ended_job(job, workload) for job in workload.before)


def _ended_job(job: ReplayJob, workload: Workload) -> EndedJob:
    # How long it waited is not in the trace: that is not asked of jobs of the cloud.
    gpus = job.total_units if workload.unit == "gpu" else 0
    end = job.submitted + job.run_s
    return EndedJob(
        f"before-{job.id}", job.user, job.account, job.name, (), job.nodes, job.total_units, gpus, job.limit_s,
        job.submitted, job.submitted, end, burst=True,
    )  # fmt: skip
