"""Jobs for whose input a storage node may be paid: those for which the rules would let a machine be started."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from burstd.domain.plugins.policy import Policy
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StageState
from burstd.planner.policy_chain import make_target
from burstd.planner.staging.input_deadlines import data_of_job

_INPUT_STATES = frozenset({StageState.WAITING, StageState.UPLOADING, StageState.STAGED})


def jobs_with_affordable_input(
    previous: AbstractSet[str], snapshot: Snapshot, policies: Sequence[Policy]
) -> frozenset[str]:
    """The ids, as in ``snapshot.data``, of all data but of jobs that would get no machine if their input were there.

    Those are jobs that can never start in the cloud, and jobs that a hard policy refuses (a budget). Hard policies
    that count machines (Policy.last) are not asked: what they refuse comes as soon as others are done. ``known``, the
    answer before, where Slurm could not be read.
    """
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView):
        return frozenset(previous)
    every = frozenset(snapshot.data)
    before = (
        {word for word, view in snapshot.data.items() if view.state in _INPUT_STATES} if snapshot.storage_nodes else ()
    )
    if not before:
        return every
    with_input_staged = {word: replace(snapshot.data[word], state=StageState.STAGED, ready_at=0.0) for word in before}
    jobs_by_data_id: dict[str, list[str]] = {}
    for job in slurm.jobs:
        if job.state is JobState.PENDING and data_of_job(with_input_staged, job) is not None:
            data_id = next(word for word in (job.id, job.array_job_id, job.het_job_id) if word in with_input_staged)
            jobs_by_data_id.setdefault(data_id, []).append(job.id)
    asked = {job for some in jobs_by_data_id.values() for job in some}
    jobs = tuple(job for job in slurm.jobs if job.state is not JobState.PENDING or job.id in asked)
    rules = [policy for policy in policies if getattr(policy, "hard", False) and not getattr(policy, "last", 0)]
    target = make_target(replace(snapshot, slurm=replace(slurm, jobs=jobs), data=with_input_staged), rules)
    refused_jobs = {job for refused in target.dropped_wants for job in refused.want.jobs}
    refused_jobs |= {remark.subject.removeprefix("job:") for remark in target.remarks if remark.verdict == "impossible"}
    refused_jobs -= {job for want in target.wants for job in want.jobs}
    refused_jobs -= {word.partition("_")[0] for word in target.placements} | target.placements.keys()
    return every - {word for word, some in jobs_by_data_id.items() if refused_jobs.issuperset(some)}
