"""Jobs whose output goes to a home directory that their nodes do not have: held, as their launch would fail.

A machine is asked for the homes of the users that it is made for, before it opens. What it lacks, and no machine of
its pool had in the last hour, holds for the pool until another has it, an hour is over, or the settings are reloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from burstd.domain.missing_home import HOMES, REMEDY, MissingHome
from burstd.domain.mounts import contains
from burstd.domain.plan import HoldJob
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.demand.request import RequestIndex
from burstd.planner.placement.equivalence_class import pool_fit
from burstd.planner.snapshot_view import SnapshotView
from burstd.planner.staging.input_deadlines import STAGE_IN_REASONS, data_of_job

HOLDS_AT_ONCE = 50
"""A loop holds no more: each takes a command of Slurm's."""
_NOT_LOOKED_AT = frozenset({"", "None", "Priority", "SchedDefer"})
"""Reasons with which slurmctld has not looked so far whether a job has data, which may bring its output home."""


def home_holds(view: SnapshotView) -> list[HoldJob]:
    """Holds jobs that may start now, and that no node would launch."""
    missing = {(home.pool, home.user): home for home in view.snapshot.runtime_state.missing_homes}
    if not missing or view.slurm is None:
        return []
    users, requests, of_site = {home.user for home in missing.values()}, RequestIndex(), _partitions_of_site(view)
    holds: dict[str, HoldJob] = {}
    for job in view.slurm.jobs:
        if job.user not in users or not _may_start(job, view):
            continue
        homes = [
            missing.get((pool.name, job.user))
            for pool in view.snapshot.pools.values()
            if not set(pool.partitions).isdisjoint(job.partitions)
            and not isinstance(pool_fit(requests.request_for(job), pool), str)
        ]
        found = [home for home in homes if home is not None and contains(home.path, job.output_dir)]
        if found and len(found) == len(homes) and of_site.isdisjoint(job.partitions):
            name = job.het_job_id or job.id
            holds.setdefault(name, HoldJob(name, job.id, f"{_texts(found)}; {REMEDY}", HOMES))
            if len(holds) == HOLDS_AT_ONCE:
                break
    return list(holds.values())


def home_remarks(view: SnapshotView) -> Iterator[Remark]:
    """Why burstd holds such jobs."""
    held = view.snapshot.runtime_state.held_for_homes
    for job in view.slurm.jobs if view.slurm is not None and held else ():
        if job.id in held and job.held:
            yield Remark(HOMES, f"job:{job.id}", "wait", f"it is held: {held[job.id]}")


def home_alarms(remarks: Iterable[Remark]) -> list[str]:
    """What administrators have to mend, while jobs are held for it."""
    held = [remark for remark in remarks if remark.by == HOMES]
    if not held:
        return []
    more = f", and {len(held) - 1} more" if len(held) > 1 else ""
    return [f"{held[0].subject.replace(':', ' ')}{more}: {held[0].reason}"]


def _may_start(job: Job, view: SnapshotView) -> bool:
    return (
        job.state is JobState.PENDING and job.batch and not job.held and not job.dependency and bool(job.output_dir)
        and not job.het_offset  # the script runs on the first component's first node
        and job.reason not in STAGE_IN_REASONS and job.eligible <= view.now
        and data_of_job(view.snapshot.data, job) is None
        and not (view.snapshot.runtime_state.stages_data and job.reason in _NOT_LOOKED_AT)
    )  # fmt: skip


def _partitions_of_site(view: SnapshotView) -> set[str]:
    """Partitions with nodes of the site: of these nobody knows whose homes they have."""
    slots = {slot for pool in view.snapshot.pools.values() for slot in pool.slots}
    nodes = view.slurm.nodes.values() if view.slurm is not None else ()
    return {partition for node in nodes if node.name not in slots for partition in node.partitions}


def _texts(found: list[MissingHome]) -> str:
    return "; ".join(home.text for home in found)
