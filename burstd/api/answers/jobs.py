"""Jobs of burst partitions, and what was decided about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from burstd.api.answers.status import last_remarks
from burstd.api.answers.types import AnswerView, NodeView, utc_datetime, utc_datetime_or_none
from burstd.db import RecordedRemark
from burstd.domain.claim import Claim
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.job_lookup import find_job


class RemarkView(AnswerView):
    """What was decided about a job, by whom and why."""

    by: str
    verdict: str
    reason: str
    since: datetime | None


class JobView(AnswerView):
    """A job of a burst partition. ``verdict`` and ``reason`` are burstd's last word, ``slurm_reason`` is Slurm's."""

    id: str
    user: str
    name: str
    partitions: list[str]
    state: str
    slurm_reason: str
    submitted: datetime
    waiting_s: float | None
    tasks: int
    verdict: str
    reason: str
    nodes: list[str]
    """Nodes it runs on, or that the plan has for it."""
    claims: list[str]
    """Live claims that were made for it."""


class JobsView(AnswerView):
    """``burstctl job list``."""

    now: datetime
    jobs: list[JobView]


class JobDetailView(AnswerView):
    """``burstctl job show``. ``job`` is None for one that has left the queue and is known by its claims."""

    now: datetime
    id: str
    job: JobView | None
    asks: str
    remarks: list[RemarkView]
    nodes: list[NodeView]
    """Claims made for it, past ones included, newest first."""


class AnnotatedQueue:
    """The queue of one snapshot with what was said about each job; built once an answer."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self._last_remarks = last_remarks(plan.remarks)
        self._jobs = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
        self._burst_partitions = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
        self._claims: dict[str, list[Claim]] = {}
        for claim in snapshot.claims:
            for job_id in claim.jobs:
                self._claims.setdefault(job_id, []).append(claim)

    def burst_jobs(self) -> list[Job]:
        """Jobs of the partitions that pools serve, in the queue's order."""
        return [job for job in self._jobs if not self._burst_partitions.isdisjoint(job.partitions)]

    def find_job(self, job_id: str) -> Job | None:
        """The job of this id, or of an id that its row stands for (see row_of)."""
        return find_job(self._jobs, job_id)

    def last_remark(self, job: Job) -> Remark | None:
        """burstd's last word about a job."""
        return self._last_remarks.get(job.id)

    def remarks_on(self, job: Job) -> list[Remark]:
        """Everything that the last plan says about a job, in its order."""
        return [r for r in self.plan.remarks if r.subject == f"job:{job.id}"]

    def to_view(self, job: Job) -> JobView:
        """The job in an answer."""
        remark = self.last_remark(job)
        pending = job.state is JobState.PENDING
        names = job.node_list if not pending else self.plan.target.placements.get(job.id, ())
        return JobView(
            id=job.id,
            user=job.user,
            name=job.name,
            partitions=list(job.partitions),
            state=job.state.value,
            slurm_reason=job.reason,
            submitted=utc_datetime(job.submitted),
            waiting_s=round(max(0.0, self.snapshot.now - job.submitted), 3) if pending else None,
            tasks=job.tasks,
            verdict=remark.verdict if remark else "",
            reason=remark.reason if remark else "",
            nodes=list(names),
            claims=list(dict.fromkeys(c.id for key in _job_ids(job) for c in self._claims.get(key, ()))),
        )


def remark_views(plan_remarks: Iterable[Remark], noted: Iterable[RecordedRemark]) -> list[RemarkView]:
    """Remarks of the last plan, each with since when it holds, where the record knows."""
    since: Mapping[tuple[str, str], float] = {(n.remark.by, n.remark.verdict): n.since for n in noted}
    return [
        RemarkView(
            by=r.by, verdict=r.verdict, reason=r.reason, since=utc_datetime_or_none(since.get((r.by, r.verdict)))
        )
        for r in plan_remarks
    ]


def past_remark_views(noted: Iterable[RecordedRemark]) -> list[RemarkView]:
    """What was said last about a job that has left the queue."""
    return [
        RemarkView(by=n.remark.by, verdict=n.remark.verdict, reason=n.remark.reason, since=utc_datetime(n.since))
        for n in noted
    ]


def _job_ids(job: Job) -> Iterable[str]:
    return dict.fromkeys(filter(None, (job.id, job.array_job_id, job.het_job_id)))
