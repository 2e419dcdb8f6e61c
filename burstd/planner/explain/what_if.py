"""The smallest change of one option with which a waiting job would get a node.

Each change is put to the very decision that the daemon takes, policies included, with the job changed in its place.
The jobs before it are there, those behind it do not matter. How many changes are tried hangs on how much there is to
look at, so that a site with ten thousand jobs gets its answer as soon as a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from burstd.domain.claim import ClaimState
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark, Target, Want
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.option_change import Change
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.job_comment import named
from burstd.planner.explain.job_options import Option, options
from burstd.planner.staging.input_deadlines import boots, data_of
from burstd.planner.staging.transfer_schedule import boot_estimate

MOST = 3
"""So many changes are named."""
BEFORE = 1000
"""So many of the waiting jobs before it are looked at, those that get nodes first."""
WORK = 120_000
"""Jobs, nodes and claims that may be looked at in all."""
LEAST_TRIES = 8
MOST_TRIES = 60
_REFUSED_AS_ASKED = "BadConstraints"
"""Slurm's reason for what no node of the partition has: asked for something else it goes away."""


def what_if(snapshot: Snapshot, plan: Plan, job_id: str, decide: Callable[[Snapshot], Target]) -> tuple[Change, ...]:
    """Changes that would start it, smallest first; none for a job that gets a node, or that something else keeps.

    ``job_id`` is that of a row of the queue; ``decide`` makes the target of a snapshot by the policies in force.
    """
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView) or snapshot.paused or plan.target.failed:
        return ()
    job = next((j for j in slurm.jobs if j.id == job_id), None)
    if job is None or job.state is not JobState.PENDING:
        return ()
    last = next((r for r in reversed(plan.remarks) if r.subject == f"job:{job.id}"), None)
    if last is not None and (last.verdict in ("boot", "covered") or _kept_by_slurm(job, last)):
        return ()
    trial = _Trial(snapshot, slurm, plan, job, decide)
    by_policy = last is not None and last.by not in ("demand", "placement")
    found: list[Change] = []
    for some in options(job, snapshot, slurm, by_time=by_policy):
        change = next((c for option in some if (c := trial.of(option)) is not None), None)
        if change is not None:
            found.append(change)
        if len(found) == MOST or not trial.left:
            break
    return tuple(found)


def _kept_by_slurm(job: Job, last: Remark) -> bool:
    return last.by == "demand" and job.reason != _REFUSED_AS_ASKED


@dataclass(slots=True)
class _Trial:
    """Tries changes while there are tries left."""

    snapshot: Snapshot
    slurm: SlurmView
    plan: Plan
    job: Job
    decide: Callable[[Snapshot], Target]
    left: int = 0

    def __post_init__(self) -> None:
        jobs, held = _around(self.slurm, self.plan, self.job)
        self.slurm = replace(self.slurm, jobs=jobs)
        self.snapshot = replace(self.snapshot, held_slots=self.snapshot.held_slots | held, outlook={})
        work = len(jobs) + len(self.slurm.nodes) + len(self.snapshot.claims)
        self.left = min(MOST_TRIES, max(LEAST_TRIES, WORK // max(1, work)))

    def of(self, option: Option) -> Change | None:
        """What would come of it; None: no node, or no try was left."""
        if not self.left:
            return None
        self.left -= 1
        asked = option.job
        changed = replace(asked, reason="") if asked.reason == _REFUSED_AS_ASKED else asked
        jobs = tuple(changed if j.id == changed.id else j for j in self.slurm.jobs)
        target = self.decide(replace(self.snapshot, slurm=replace(self.slurm, jobs=jobs)))
        wants = [want for want in target.wants if changed.id in want.jobs]
        names = [slot for want in wants for slot in want.slots] or _placed(target, changed)
        if target.failed:
            # A policy that overruns its time would do so again.
            self.left = 0
            return None
        if not names:
            return None
        return self._change(option, wants, names)

    def _change(self, option: Option, wants: list[Want], names: list[str]) -> Change:
        first = wants[0].offers[0] if wants else None
        update = f"scontrol update JobId={named(self.job)} {option.update}" if option.update else ""
        return Change(
            before=option.before,
            after=option.after,
            command=update,
            start_s=max(self._ready_s(wants, names), self._data_s()),
            where=tuple(dict.fromkeys(names)),
            offer=first.id if first else "",
            price=sum((w.offers[0].price * w.nodes for w in wants), Decimal(0)) if first else None,
            currency=first.currency if first else "",
        )

    def _ready_s(self, wants: list[Want], names: list[str]) -> float:
        known = boots(self.snapshot)
        waits = [boot_estimate(known.get(want.pool, ())) for want in wants]
        coming = [c for c in self.snapshot.claims if c.slot in names and c.state is not ClaimState.OPEN]
        waits += [boot_estimate(known.get(c.pool, ())) - (self.snapshot.now - c.created) for c in coming]
        return max(0.0, *waits) if waits else 0.0

    def _data_s(self) -> float:
        data = data_of(self.snapshot.data, self.job)
        return max(0.0, data.ready_at - self.snapshot.now) if data is not None and data.ready_at else 0.0


def _placed(target: Target, job: Job) -> list[str]:
    return [*target.placed.get(job.id, ()), *target.placed.get(job.het_job_id, ())]


def _around(slurm: SlurmView, plan: Plan, job: Job) -> tuple[tuple[Job, ...], frozenset[str]]:
    """The jobs that matter to it, in the queue's order, and the slots of those before it that are left out."""
    served = {j for want in plan.target.wants for j in want.jobs} | plan.target.placed.keys()
    waiting = [(-j.priority, j.submitted, at, j) for at, j in enumerate(slurm.jobs) if j.state is JobState.PENDING]
    mine = next(one[:3] for one in waiting if one[3].id == job.id)
    earlier = sorted((one for one in waiting if one[:3] < mine), key=lambda one: (one[3].id not in served, one[:3]))
    before = [one[3] for one in earlier]
    kept = {j.id for j in before[:BEFORE]} | {j.id for j in _parts(slurm, job)}
    jobs = tuple(j for j in slurm.jobs if j.state is not JobState.PENDING or j.id in kept)
    left_out = {j.id for j in before[BEFORE:]}
    held = {slot for want in plan.target.wants if want.jobs and left_out.issuperset(want.jobs) for slot in want.slots}
    return jobs, frozenset(held)


def _parts(slurm: SlurmView, job: Job) -> Iterator[Job]:
    """The job, or all components of its het job."""
    yield from (j for j in slurm.jobs if j.id == job.id or (job.het_job_id and j.het_job_id == job.het_job_id))
