"""Machines for their own jobs only: which jobs may start on them, and when they go.

Those are machines that a budget pays for, and those for which a policy wants it so, as others had better wait on
premises (Want.dedicated). It is never opened to all. Its own jobs are bound to it, one after the other as there
is room, and only while what a budget has reserved for it covers the time limit of the next one; then it ends with the
last of them. So whatever users submit and Slurm starts, it costs no more than was reserved.

Tasks of an array may use each other's machines. A job of several nodes is bound to those where placement has put it:
were each bound to the machines that were made for it only, tasks of an array would wait for each other's.

A node that was started for no job, and that a budget pays for, is open to all until what is reserved for it is used up.

Components of a het job are bound each to its own nodes; Slurm starts them together. For jobs that Slurm would not take
into a reservation the node opens until they have started, and is closed to new jobs then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from burstd.domain.billing.costs import SHUTDOWN_S
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import BindJob, LimitJobTime
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.demand import task_ids
from burstd.planner.snapshot_view import SnapshotView

_STARTED = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.COMPLETING})
MIN_TIME_LIMIT_S = 60.0
"""Slurm's unit for time limits."""
BUDGET_REASON, POLICY_REASON = "a budget pays for it", "a policy keeps others off it"


def affordable_jobs(claim: Claim, view: SnapshotView) -> list[Job]:
    """The jobs of a claim that wait and that what is reserved for it covers, in its order."""
    own = (view.job(job_id) for job_id in dict.fromkeys(claim.jobs))
    return _affordable(claim, (job for job in own if job is not None), view.snapshot)


def _affordable(claim: Claim, jobs: Iterable[Job], snapshot: Snapshot) -> list[Job]:
    waiting = [job for job in jobs if job.state is JobState.PENDING]
    if not claim.reserved:
        return waiting
    return [
        job
        for job in waiting
        if claim.budget_covers(job.time_limit_s + SHUTDOWN_S, snapshot.now)
        and (job.time_limit_s or _unused(claim, snapshot))
    ]


def _unused(claim: Claim, snapshot: Snapshot) -> bool:
    """Before its first jobs run: what is left then covers no other job without a time limit."""
    return claim.in_service_from is None or any(claim.slot in names for names in snapshot.bound.values())


def reserve_used_up(claim: Claim, now: float) -> bool:
    """A node for no job of which all that a budget has reserved for it is spent: no job is to start on it any more."""
    return bool(claim.reserved) and not claim.jobs and not claim.budget_covers(SHUTDOWN_S, now)


def dedicated_consumers(snapshot: Snapshot, slurm: SlurmView) -> dict[str, tuple[str, ...]]:
    """By dedicated claim the ids (jobs, tasks, its gang) of those that may use its room now; none: nobody may."""
    claims = [claim for claim in snapshot.claims if claim.dedicated or reserve_used_up(claim, snapshot.now)]
    if not claims:
        return {}
    wanted = {job for claim in claims for job in claim.jobs}
    jobs_by_id: dict[str, list[Job]] = {}
    for job in slurm.jobs:
        if job.id in wanted:
            jobs_by_id.setdefault(job.id, []).append(job)
        # A task that was bound or requeued stands alone in the queue, and is its array's all the same.
        if job.array_job_id in wanted and job.array_job_id != job.id:
            jobs_by_id.setdefault(job.array_job_id, []).append(job)
    bound: dict[str, list[str]] = {}
    for job_id, names in snapshot.bound.items():
        for name in names:
            bound.setdefault(name, []).append(job_id)
    found: dict[str, tuple[str, ...]] = {}
    for claim in claims:
        its_jobs = [job for claim_job in dict.fromkeys(claim.jobs) for job in jobs_by_id.get(claim_job, ())]
        own = [job.id for job in _affordable(claim, its_jobs, snapshot)]
        consumers = dict.fromkeys((*bound.get(claim.slot, ()), claim.gang, *own))
        consumers.pop("", None)
        found[claim.id] = tuple(consumers)
    return found


def dedicated_drain_reason(claim: Claim, view: SnapshotView) -> str:
    """Why an idle machine of a budget is to go; empty: it is not, or is no such machine."""
    node = view.node(claim.slot)
    if node is None or node.busy:
        return ""
    if reserve_used_up(claim, view.now):
        return f"the {_reserved_text(claim)} reserved for it are used up"
    if not claim.dedicated or affordable_jobs(claim, view):
        return ""
    # Nodes are read before jobs: one that a job has just started on may still look idle.
    if view.slurm is not None and any(claim.slot in j.node_list and j.state in _STARTED for j in view.slurm.jobs):
        return ""
    # An administrator's hold keeps it, but not for more than is reserved.
    if view.snapshot.paused and claim.budget_covers(SHUTDOWN_S, view.now):
        return ""
    waits = [job_id for job_id in claim.jobs if view.is_waiting(job_id)]
    if waits:
        return f"what is left of the {_reserved_text(claim)} reserved for it does not cover job {waits[0]}"
    return f"its jobs are done, and {dedicated_reason(claim)}"


def ready_too_late(claim: Claim, view: SnapshotView) -> bool:
    """Whether what is reserved for a READY machine covered none of its jobs when it became ready: the boot was long."""
    waits = [job for job_id in claim.jobs if view.is_waiting(job_id) and (job := view.job(job_id)) is not None]
    late = bool(claim.reserved) and claim.in_service_from is None and bool(waits)
    return late and not any(claim.budget_covers(job.time_limit_s + SHUTDOWN_S, claim.since) for job in waits)


def enforce_time_limits(view: SnapshotView) -> list[LimitJobTime]:
    """Gives jobs that run on machines of a budget for longer than is reserved the time that is.

    A user may lengthen the time limit of his own job until it starts, also when it has been bound, and may start others
    in the reservation that binds it, or on a node that is open for a job that Slurm does not bind. Jobs of others, whom
    Slurm has put there, run on.
    """
    paid = {claim.slot: claim for claim in view.snapshot.claims if claim.reserved and claim.jobs}
    if not paid or view.slurm is None:
        return []
    found = []
    for job in view.slurm.jobs:
        if job.state is not JobState.RUNNING or not job.start:
            continue
        own = [c for slot in job.node_list if (c := paid.get(slot)) and (job.id in c.jobs or job.user in c.users)]
        left_s = min((claim.budget_left_s(view.now) for claim in own), default=inf)
        end = job.start + (job.time_limit_s or inf)
        if end > view.now + left_s + SHUTDOWN_S:
            claim = min(own, key=lambda one: one.budget_left_s(view.now))
            limit_s = max(view.now - job.start + left_s, MIN_TIME_LIMIT_S)
            reason = f"{_reserved_text(claim)} are reserved for {claim.slot}, and it has more time than that pays for"
            # What it has is not lengthened, and what Slurm rounds is not told in every loop.
            if not job.time_limit_s or limit_s + MIN_TIME_LIMIT_S < job.time_limit_s:
                found.append(LimitJobTime(job.id, limit_s, reason))
    return found


def _reserved_text(claim: Claim) -> str:
    return f"{claim.reserved:.2f} {claim.offer.currency}"


def gang_timeout_reason(claim: Claim, view: SnapshotView, after_s: float) -> str:
    """Why an idle machine of a gang is to go while a job waits that may use it: for ``after_s`` seconds none has."""
    if not (claim.dedicated and claim.gang and view.now - claim.since > after_s) or view.snapshot.paused:
        return ""
    node = view.node(claim.slot)
    if node is None or node.busy or view.now - node.last_busy <= after_s or opens_to_all(claim, view):
        return ""
    if any(claim.slot in names for names in view.snapshot.bound.values()):
        return ""
    waits = next((job_id for job_id in (claim.gang, *claim.jobs) if view.is_waiting(job_id)), "")
    return f"job {waits} did not get all of its nodes within {after_s:.0f} s" if waits else ""


def dedicated_reason(claim: Claim) -> str:
    """Why the machine is for its own jobs only."""
    return BUDGET_REASON if claim.reserved else POLICY_REASON


def opens_to_all(claim: Claim, view: SnapshotView) -> bool:
    """Whether its node opens because Slurm cannot bind a job that it waits for."""
    return any(_unbindable(job, view) for job in affordable_jobs(claim, view))


def _unbindable(job: Job, view: SnapshotView) -> bool:
    array = job.array_job_id or (job.id if job.array_tasks else "")
    refused = view.snapshot.runtime_state.unbindable
    return job.id in refused or (bool(array) and any(job_id.partition("_")[0] == array for job_id in refused))


def _bindable(job: Job, view: SnapshotView) -> bool:
    """A job in a reservation of somebody's stays there."""
    own_reservations = (
        {r.name for r in view.slurm.reservations if r.job_id} if view.slurm and job.reservation else set()
    )
    return not _unbindable(job, view) and (not job.reservation or job.reservation in own_reservations)


@dataclass(slots=True)
class Binder:
    """Binds the jobs of dedicated claims to their nodes; no task of an array twice."""

    view: SnapshotView
    assigned: Mapping[str, Collection[str]]
    """Where placement sees room for jobs (Target.placements)."""
    bound_ids: set[str] = field(default_factory=set)
    _tasks: dict[str, Iterator[str]] = field(default_factory=dict)
    """By array the ids of the tasks that have not been looked at."""

    def bind_actions(self, claim: Claim) -> Iterator[BindJob]:
        """Of a claim that is READY, or IN_SERVICE with room for one more."""
        if claim.state is S.IN_SERVICE and not self._has_room_for_bound(claim.slot):
            return
        for job in affordable_jobs(claim, self.view):
            fits = claim.state is S.READY or claim.slot in self.assigned.get(job.id, ())
            if fits and job.nodes <= 1 and _bindable(job, self.view) and (bind_id := self._next_id(job)):
                claims = (claim.id,) if claim.state is S.READY else ()
                yield BindJob(
                    bind_id, job.user, claims, (claim.slot,), f"for job {bind_id} alone: {dedicated_reason(claim)}"
                )

    def _has_room_for_bound(self, slot: str) -> bool:
        """Whether what placement gave others there leaves room for the jobs bound to it that Slurm is to start."""
        return all(
            slot in self.assigned.get(job_id, ())
            for job_id, names in self.view.snapshot.bound.items()
            if slot in names and (job := self.view.job(job_id)) is not None and job.state is JobState.PENDING
        )

    def bind_gangs(self, claims: Collection[Claim]) -> Iterator[BindJob]:
        """Jobs of several nodes (no het jobs), where placement has put them on nodes of ``claims`` only."""
        by_slot = {claim.slot: claim for claim in claims if claim.gang}
        own = {claim.gang.partition("_")[0] for claim in by_slot.values()}
        for gang, slots in self.assigned.items() if own else ():
            if gang.partition("_")[0] not in own or not by_slot.keys() >= set(slots):
                continue
            job = self.view.job(gang)
            if job is not None and not job.het_job_id and len(slots) >= job.nodes:
                yield from self._bind_together(gang, job, [by_slot[slot] for slot in slots])

    def _bind_together(self, bind_id: str, job: Job, claims: list[Claim]) -> Iterator[BindJob]:
        if not _bindable(job, self.view) or self._is_bound(bind_id):
            return
        for claim in claims:
            is_own = not {job.id, job.array_job_id}.isdisjoint(claim.jobs)
            if not is_own or not _affordable(claim, (job,), self.view.snapshot):
                return
            if claim.state is S.IN_SERVICE and not self._has_room_for_bound(claim.slot):
                return
        ready = tuple(claim.id for claim in claims if claim.state is S.READY)
        why = f"for job {bind_id} alone: {dedicated_reason(claims[0])}"
        yield BindJob(bind_id, job.user, ready, tuple(claim.slot for claim in claims), why)

    def bind_components(self, claims: list[Claim]) -> Iterator[BindJob]:
        """Of the nodes of one het job: each component to its own."""
        for claim in claims:
            yield from self.bind_actions(claim)
        multi_node_jobs = {
            job.id: job for claim in claims for job in affordable_jobs(claim, self.view) if job.nodes > 1
        }
        for job in multi_node_jobs.values():
            own = [claim for claim in claims if job.id in claim.jobs]
            if len(own) >= job.nodes:
                yield from self._bind_together(job.id, job, own)

    def _next_id(self, job: Job) -> str:
        """The id by which the job, or the next task of the array, is bound; empty: it is already."""
        ids: Iterator[str] = iter((job.id,))
        if job.array_tasks:
            array = job.array_job_id or job.id
            ids = self._tasks.setdefault(array, (f"{array}_{task}" for task in task_ids(job.array_tasks)))
        bind_id = next((w for w in ids if not self._is_bound(w)), "")
        self.bound_ids.add(bind_id)
        return bind_id

    def _is_bound(self, bind_id: str) -> bool:
        if bind_id in self.bound_ids:
            return True
        if bind_id not in self.view.snapshot.bound:
            return False
        job = self.view.job(bind_id)
        # A binding that was broken off half-way has the nodes and not the job: it is made again.
        return job is not None and bool(job.reservation)
