"""Jobs of burst partitions, and what was decided about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from burstd.core.explain import Way, explain
from burstd.daemon.control_rights import Caller, whole
from burstd.daemon.views import (
    CandidateView,
    ExplainView,
    JobView,
    RemarkView,
    ServingView,
    WayView,
    when,
    when_set,
)
from burstd.daemon.views_money import money
from burstd.daemon.views_status import last_words, shape_text
from burstd.model.claim import Claim
from burstd.model.job import Job, JobState
from burstd.model.plan import Plan
from burstd.model.policy import Remark
from burstd.model.shape import Shape
from burstd.model.snapshot import SlurmView, Snapshot
from burstd.store import Noted


class Queue:
    """The queue of one snapshot with what was said about each job; built once an answer."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self._words = last_words(plan.remarks)
        self._jobs = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
        self._burst = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
        self._claims: dict[str, list[Claim]] = {}
        for claim in snapshot.claims:
            for job_id in claim.jobs:
                self._claims.setdefault(job_id, []).append(claim)

    def burst(self) -> list[Job]:
        """Jobs of the partitions that pools serve, in the queue's order."""
        return [job for job in self._jobs if not self._burst.isdisjoint(job.partitions)]

    def find(self, job_id: str) -> Job | None:
        """The job of this id; for the number of an array or het job the pending row, else the first."""
        exact = next((job for job in self._jobs if job.id == job_id), None)
        if exact is not None:
            return exact
        parts = [job for job in self._jobs if whole(job.id) == job_id or job_id in (job.array_job_id, job.het_job_id)]
        if not parts and whole(job_id) != job_id:
            # A task that is pending still stands in the row of its array.
            parts = [job for job in self._jobs if job.id == whole(job_id)]
        return next((job for job in parts if job.state is JobState.PENDING), parts[0] if parts else None)

    def word(self, job: Job) -> Remark | None:
        """burstd's last word about a job."""
        return self._words.get(job.id)

    def remarks(self, job: Job) -> list[Remark]:
        """Everything that the last plan says about a job, in its order."""
        return [r for r in self.plan.remarks if r.subject == f"job:{job.id}"]

    def view(self, job: Job) -> JobView:
        """The job in an answer."""
        word = self.word(job)
        pending = job.state is JobState.PENDING
        names = job.node_list if not pending else self.plan.target.placed.get(job.id, ())
        return JobView(
            id=job.id,
            user=job.user,
            name=job.name,
            partitions=list(job.partitions),
            state=job.state.value,
            slurm_reason=job.reason,
            submitted=when(job.submitted),
            waiting_s=round(max(0.0, self.snapshot.now - job.submitted), 3) if pending else None,
            tasks=job.tasks,
            verdict=word.verdict if word else "",
            reason=word.reason if word else "",
            nodes=list(names),
            claims=list(dict.fromkeys(c.id for key in _keys(job) for c in self._claims.get(key, ()))),
        )


def asks(job: Job) -> str:
    """What a job asks for, as a person would say it."""
    parts = [f"{job.nodes} node{'s' if job.nodes != 1 else ''}", f"{job.cpus} CPU{'s' if job.cpus != 1 else ''}"]
    if job.memory_mib:
        memory = shape_text(Shape(1, job.memory_mib)).partition(", ")[2]
        parts.append(memory + (" per CPU" if job.memory_per_cpu else " per node"))
    parts += [f"{g} per node" for g in job.gres_per_node]
    parts += [f"{g} in all" for g in job.gres_per_job]
    if job.constraint:
        parts.append(f"constraint {job.constraint}")
    if job.exclusive:
        parts.append("whole nodes")
    if job.tasks > 1:
        parts.append(f"{job.tasks} array tasks")
    if job.time_limit_s:
        parts.append(f"{job.time_limit_s / 60:.0f} min")
    if job.dependency:
        parts.append(f"after {job.dependency}")
    return ", ".join(parts)


def remarks(said: Iterable[Remark], noted: Iterable[Noted]) -> list[RemarkView]:
    """Remarks of the last plan, each with since when it holds, where the record knows."""
    since: Mapping[tuple[str, str], float] = {(n.remark.by, n.remark.verdict): n.since for n in noted}
    return [
        RemarkView(by=r.by, verdict=r.verdict, reason=r.reason, since=when_set(since.get((r.by, r.verdict))))
        for r in said
    ]


def past_remarks(noted: Iterable[Noted]) -> list[RemarkView]:
    """What was said last about a job that has left the queue."""
    return [
        RemarkView(by=n.remark.by, verdict=n.remark.verdict, reason=n.remark.reason, since=when(n.since)) for n in noted
    ]


def explanation(queue: Queue, job: Job, asked: str, noted: Iterable[Noted], caller: Caller, now: float) -> ExplainView:
    """Why a job does or does not start. ``asked`` is the id that was asked for: the job's, or that of one task."""
    found = explain(queue.snapshot, queue.plan, asked)
    if found.job != job:
        found = explain(queue.snapshot, queue.plan, job.id)
    users = {claim.id: claim.users for claim in queue.snapshot.claims}
    return ExplainView(
        now=when(now),
        id=asked,
        job=queue.view(job),
        verdict=found.verdict,
        summary=found.summary,
        slurm=found.slurm,
        asks=found.asks,
        remedies=list(found.remedies),
        remarks=remarks(found.remarks, noted),
        ways=[_way(way) for way in found.ways],
        serving=[
            ServingView(
                slot=s.slot,
                claim=s.claim_id,
                state=s.state,
                since=when_set(s.since),
                reason=s.reason if caller.alone(users.get(s.claim_id, ())) else "",
            )
            for s in found.serving
        ],
    )


def _way(way: Way) -> WayView:
    return WayView(
        pool=way.pool,
        lacks=way.lacks,
        slots=way.slots,
        free=way.free,
        candidates=[
            CandidateView(
                offer=c.subject,
                price_per_hour=money(c.offer.price, c.offer.currency) if c.offer else None,
                refused=c.refused,
                chosen=c.chosen,
            )
            for c in way.candidates
        ],
    )


def _keys(job: Job) -> Iterable[str]:
    return dict.fromkeys(filter(None, (job.id, job.array_job_id, job.het_job_id)))
