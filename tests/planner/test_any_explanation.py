"""What explain says holds for every world: nothing fails, and a change that is named gets the job its node."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import policies.limits
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.comment import split_comment
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.quote import UsablePartition
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.explain import explain_job
from burstd.planner.explain.job_comment import MAX_COMMENT_LENGTH, JobComments
from burstd.planner.explain.job_options import job_variants
from burstd.planner.explain.quote import quote_jobs
from burstd.planner.explain.what_if import helpful_changes
from burstd.planner.policy_chain import make_target
from burstd.testing.policy.strategies import snapshots
from tests.examples import examples

LIMITED = policies.limits.plugin.make(policies.limits.LimitsSettings(nodes=3))


def decide(snapshot: Snapshot) -> Target:
    return make_target(snapshot, (LIMITED,))


def served(snapshot: Snapshot, job: Job) -> bool:
    target = decide(snapshot)
    return any(job.id in want.jobs for want in target.wants) or bool(
        {job.id, job.het_job_id} & target.placements.keys()
    )


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_in_any_situation(snapshot: Snapshot) -> None:
    target = decide(snapshot)
    plan = Plan((), target, target.remarks)
    lines = JobComments(snapshot, plan)
    for job in snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ():
        found = explain_job(snapshot, plan, job.id)
        assert found.summary
        line = lines.comment_for(job, split_comment(job.comment)[1])
        assert line is None or (len(line.text) <= MAX_COMMENT_LENGTH and line.text == " ".join(line.text.split()))
    waiting = [r.subject.removeprefix("job:") for r in target.remarks if r.verdict in ("impossible", "wait")]
    for job in snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ():
        if job.id in waiting[-1:]:
            _changes_help(snapshot, plan, job)


def _changes_help(snapshot: Snapshot, plan: Plan, job: Job) -> None:
    assert isinstance(snapshot.slurm, SlurmView)
    tried = 0

    def counted(given_: Snapshot) -> Target:
        nonlocal tried
        tried += 1
        return decide(given_)

    found = helpful_changes(snapshot, plan, job.id, counted)
    assert tried <= 60
    event(f"{len(found)} changes")
    asked = {
        o.update: o.job for some in job_variants(job, snapshot, snapshot.slurm, by_time=True) for o in some if o.update
    }
    for change in found:
        assert job.state is JobState.PENDING
        assert change.where
        assert change.start_s >= 0
        if not change.command:
            continue
        updates = change.command.partition(" ")[2].split(" ", 2)[2]
        changed = replace(asked[updates], reason="" if job.reason == "BadConstraints" else job.reason)
        assert [f.name for f in fields(job) if f.name != "reason" and getattr(job, f.name) != getattr(changed, f.name)]
        # With the whole queue behind it, as it will be.
        jobs = tuple(changed if j.id == job.id else j for j in snapshot.slurm.jobs)
        assert served(replace(snapshot, slurm=replace(snapshot.slurm, jobs=jobs)), changed), change


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(snapshots(), st.integers(min_value=0))
def test_each_job_has_a_quote_in_any_situation(snapshot: Snapshot, number: int) -> None:
    if not isinstance(snapshot.slurm, SlurmView) or not snapshot.slurm.jobs:
        return
    asked = snapshot.slurm.jobs[number % len(snapshot.slurm.jobs)]
    one = replace(asked, id="", het_job_id="", het_offset=0, array_tasks="", array_job_id="", dependency="")
    usable = {UsablePartition(name) for pool in snapshot.pools.values() for name in pool.partitions}
    target = decide(snapshot)
    (found,) = quote_jobs(snapshot, Plan((), target, target.remarks), [one], usable, decide)
    event(f"{sum(way.taken for way in found.ways)} ways")
    for way in found.ways:
        assert way.taken or way.reason
        assert way.start is None or snapshot.now <= way.start.p10 <= way.start.p50 <= way.start.p90
        assert way.start is None or way.end is not None or found.run_basis == "none"
        assert way.end is None or way.end.p10 <= way.end.p50 <= way.end.p90
        assert way.worst is None or way.expected is not None
