"""The smallest change of one option with which a waiting job would get a node.

Each change is put to the very decision that the daemon takes, policies included, with the job changed in its place.
The jobs before it are there, those behind it do not matter. How many changes are tried hangs on how much there is to
look at, so that a site with ten thousand jobs gets its answer as soon as a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from burstd.domain.claim import ClaimState
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark, Target, Want
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.pending_reasons import REFUSED_REQUESTS
from burstd.planner.explain.job_comment import scontrol_job_id
from burstd.planner.explain.job_options import JobVariant, job_variants
from burstd.planner.staging.input_deadlines import boot_durations, data_of_job
from burstd.planner.staging.transfer_schedule import boot_quantile

MAX_CHANGES = 3
"""So many changes are named."""
MAX_JOBS_BEFORE = 1000
"""So many of the waiting jobs before it are looked at, those that get nodes first."""
MAX_WORK = 120_000
"""Jobs, nodes and claims that may be looked at in all."""
MIN_ATTEMPTS = 8
MAX_ATTEMPTS = 60
_BAD_CONSTRAINTS = "BadConstraints"
_REQUEST_REASONS = REFUSED_REQUESTS | {_BAD_CONSTRAINTS}
"""Slurm's reasons for what no node of the partition has: asked for something else they go away."""


def helpful_changes(
    snapshot: Snapshot, plan: Plan, job_id: str, decide: Callable[[Snapshot], Target]
) -> tuple[OptionChange, ...]:
    """Changes that would start it, smallest first; none for a job that gets a node, or that something else keeps.

    ``job_id`` is that of a row of the queue; ``decide`` makes the target of a snapshot by the policies in force.
    """
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView) or snapshot.paused or snapshot.record_doubt or plan.target.failed_policies:
        return ()
    job = next((j for j in slurm.jobs if j.id == job_id), None)
    if job is None or job.state is not JobState.PENDING:
        return ()
    last = next((r for r in reversed(plan.remarks) if r.subject == f"job:{job.id}"), None)
    if last is not None and (last.verdict in ("boot", "covered") or _blocked_by_slurm(job, last)):
        return ()
    attempts = _WhatIf(snapshot, slurm, plan, job, decide)
    by_policy = last is not None and last.by not in ("demand", "placement")
    found: list[OptionChange] = []
    for some in job_variants(job, snapshot, slurm, by_time=by_policy):
        change = next((c for option in some if (c := attempts.change_from(option)) is not None), None)
        if change is not None:
            found.append(change)
        if len(found) == MAX_CHANGES or not attempts.attempts_left:
            break
    return tuple(found)


def _blocked_by_slurm(job: Job, last: Remark) -> bool:
    return last.by == "demand" and job.reason != _BAD_CONSTRAINTS


@dataclass(slots=True)
class _WhatIf:
    """Tries changes while there are tries left."""

    snapshot: Snapshot
    slurm: SlurmView
    plan: Plan
    job: Job
    decide: Callable[[Snapshot], Target]
    attempts_left: int = 0

    def __post_init__(self) -> None:
        self.snapshot, self.slurm = relevant_part(self.snapshot, self.slurm, self.plan, self.job)
        work = len(self.slurm.jobs) + len(self.slurm.nodes) + len(self.snapshot.claims)
        self.attempts_left = min(MAX_ATTEMPTS, max(MIN_ATTEMPTS, MAX_WORK // max(1, work)))

    def change_from(self, option: JobVariant) -> OptionChange | None:
        """What would come of it; None: no node, or no try was left."""
        if not self.attempts_left:
            return None
        self.attempts_left -= 1
        asked = option.job
        changed = replace(asked, reason="") if asked.reason in _REQUEST_REASONS else asked
        jobs = tuple(changed if j.id == changed.id else j for j in self.slurm.jobs)
        target = self.decide(replace(self.snapshot, slurm=replace(self.slurm, jobs=jobs)))
        wants = [want for want in target.wants if changed.id in want.jobs]
        names = [slot for want in wants for slot in want.slots] or assigned_nodes(target, changed)
        if target.failed_policies:
            # A policy that overruns its time would do so again.
            self.attempts_left = 0
            return None
        last = next((r for r in reversed(target.remarks) if r.subject == f"job:{changed.id}"), None)
        if not names or (last is not None and last.verdict == "impossible"):
            return None
        return self._change(option, wants, names)

    def _change(self, option: JobVariant, wants: list[Want], names: list[str]) -> OptionChange:
        first = wants[0].offers[0] if wants else None
        price, currency = self._price(wants) or (None, "")
        update = f"scontrol update JobId={scontrol_job_id(self.job)} {option.update}" if option.update else ""
        return OptionChange(
            before=option.before,
            after=option.after,
            command=update,
            start_s=max(ready_s(self.snapshot, wants, names), self._data_s()),
            where=tuple(dict.fromkeys(names)),
            offer=first.id if first else "",
            price=price,
            currency=currency,
        )

    def _price(self, wants: Sequence[Want]) -> tuple[Decimal, str] | None:
        """Of an hour of all; None: they have none, or it cannot be said in one currency."""
        firsts = [(want.offers[0], want.nodes) for want in wants]
        return self.snapshot.rates.added((offer.price * nodes, offer.currency) for offer, nodes in firsts)

    def _data_s(self) -> float:
        data = data_of_job(self.snapshot.data, self.job)
        return max(0.0, data.ready_at - self.snapshot.now) if data is not None and data.ready_at else 0.0


def ready_s(snapshot: Snapshot, wants: Sequence[Want], names: Sequence[str], share: float = 0.0) -> float:
    """In how many seconds the machines of these wants, and those of nodes on their way, are ready: the median.

    With ``share`` when the last of them is, with that chance.
    """
    known = boot_durations(snapshot)
    coming = [c for c in snapshot.claims if c.slot in names and c.state is not ClaimState.IN_SERVICE]
    of_each = share ** (1 / max(1, len(coming) + sum(want.nodes for want in wants))) if share else 0.5
    waits = [boot_quantile(known.get(want.pool, ()), of_each) for want in wants]
    waits += [boot_quantile(known.get(c.pool, ()), of_each) - (snapshot.now - c.created) for c in coming]
    return max(0.0, *waits) if waits else 0.0


def assigned_nodes(target: Target, job: Job) -> list[str]:
    """Nodes, there or on their way, on which a pending job has room."""
    return [*target.placements.get(job.id, ()), *target.placements.get(job.het_job_id, ())]


def relevant_part(snapshot: Snapshot, slurm: SlurmView, plan: Plan, job: Job) -> tuple[Snapshot, SlurmView]:
    """As much of the queue as matters to a pending job, and the snapshot, in which other jobs keep their slots."""
    jobs, held = _relevant_jobs(slurm, plan, job)
    some = replace(slurm, jobs=jobs)
    return replace(snapshot, slurm=some, drained_slots=snapshot.drained_slots | held, outlook={}), some


def _relevant_jobs(slurm: SlurmView, plan: Plan, job: Job) -> tuple[tuple[Job, ...], frozenset[str]]:
    """The jobs that matter to it, in the queue's order, and the slots of those before it that are left out."""
    served = {j for want in plan.target.wants for j in want.jobs} | plan.target.placements.keys()
    waiting = [(-j.priority, j.submitted, at, j) for at, j in enumerate(slurm.jobs) if j.state is JobState.PENDING]
    own_rank = next(one[:3] for one in waiting if one[3].id == job.id)
    earlier = sorted((one for one in waiting if one[:3] < own_rank), key=lambda one: (one[3].id not in served, one[:3]))
    before = [one[3] for one in earlier]
    included = {j.id for j in before[:MAX_JOBS_BEFORE]} | {j.id for j in _components(slurm, job)}
    jobs = tuple(j for j in slurm.jobs if j.state is not JobState.PENDING or j.id in included)
    left_out = {j.id for j in before[MAX_JOBS_BEFORE:]}
    excluded_slots = {
        slot for want in plan.target.wants if want.jobs and left_out.issuperset(want.jobs) for slot in want.slots
    }
    return jobs, frozenset(excluded_slots)


def _components(slurm: SlurmView, job: Job) -> Iterator[Job]:
    """The job, or all components of its het job."""
    yield from (j for j in slurm.jobs if j.id == job.id or (job.het_job_id and j.het_job_id == job.het_job_id))
