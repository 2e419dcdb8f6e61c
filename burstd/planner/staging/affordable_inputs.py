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
from burstd.planner.staging.input_deadlines import data_of

_BEFORE = frozenset({StageState.WAITING, StageState.SENDING, StageState.STAGED})


def payable_inputs(known: AbstractSet[str], snapshot: Snapshot, policies: Sequence[Policy]) -> frozenset[str]:
    """The ids, as in ``snapshot.data``, of all data but of jobs that would get no machine if their input were there.

    Those are jobs that can never start in the cloud, and jobs that a hard policy refuses (a budget). Hard policies
    that count machines (Policy.last) are not asked: what they refuse comes as soon as others are done. ``known``, the
    answer before, where Slurm could not be read.
    """
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView):
        return frozenset(known)
    every = frozenset(snapshot.data)
    before = {word for word, view in snapshot.data.items() if view.state in _BEFORE} if snapshot.store_nodes else ()
    if not before:
        return every
    there = {word: replace(snapshot.data[word], state=StageState.STAGED, ready_at=0.0) for word in before}
    words: dict[str, list[str]] = {}
    for job in slurm.jobs:
        if job.state is JobState.PENDING and data_of(there, job) is not None:
            word = next(word for word in (job.id, job.array_job_id, job.het_job_id) if word in there)
            words.setdefault(word, []).append(job.id)
    asked = {job for some in words.values() for job in some}
    jobs = tuple(job for job in slurm.jobs if job.state is not JobState.PENDING or job.id in asked)
    rules = [policy for policy in policies if getattr(policy, "hard", False) and not getattr(policy, "last", 0)]
    target = make_target(replace(snapshot, slurm=replace(slurm, jobs=jobs), data=there), rules)
    out = {job for refused in target.refused for job in refused.want.jobs}
    out |= {said.subject.removeprefix("job:") for said in target.remarks if said.verdict == "impossible"}
    out -= {job for want in target.wants for job in want.jobs}
    out -= {word.partition("_")[0] for word in target.placed} | target.placed.keys()
    return every - {word for word, some in words.items() if out.issuperset(some)}
