"""Why a job bursts or does not: a reading of what the last plan recorded, with the candidates that it had.

Nothing is decided here. The verdict and its reasons are the plan's remarks; the offers are those that the plan had,
judged by the rules that chose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burstd.core.need import need
from burstd.core.offers import candidates
from burstd.core.reasons import meaning
from burstd.model.job import Job, JobState
from burstd.model.offer import Offer, Pool
from burstd.model.plan import Plan
from burstd.model.policy import Remark
from burstd.model.snapshot import SlurmView, Snapshot


@dataclass(frozen=True, slots=True)
class Candidate:
    """One offer that was looked at, or a provider whose offers could not be read."""

    subject: str
    """The offer's id, or the provider's name."""
    offer: Offer | None
    refused: str
    """Why it is not used; empty: it may be."""
    chosen: bool
    """A want of the plan takes it first for this job."""


@dataclass(frozen=True, slots=True)
class Way:
    """One pool as a way to start the job."""

    pool: str
    lacks: str
    """Why it is none; empty: it is one."""
    slots: int
    free: int
    """Slots free when the plan was made."""
    candidates: tuple[Candidate, ...] = ()
    """Usable ones first, best first."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A claim that is made for the job, or a node that the plan gave it room on."""

    claim_id: str
    """Empty for a node of the site."""
    slot: str
    state: str
    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that the record says about one job."""

    job_id: str
    job: Job | None
    """The row of the queue that stands for it; None: there is none."""
    asks: str
    """What it asks for, in a line."""
    verdict: str
    """The last word: ``boot``, ``covered``, ``wait``, ``impossible``, ``unknown``, or its state once it has started."""
    summary: str
    """Why it does or does not start, in a sentence."""
    slurm: str = ""
    """What Slurm says, in words."""
    remarks: tuple[Remark, ...] = ()
    """Every remark on it, in the order in which it was decided."""
    ways: tuple[Way, ...] = ()
    serving: tuple[Serving, ...] = ()
    remedies: tuple[str, ...] = ()
    """What would help; empty: nothing needs to be done."""


def explain(snapshot: Snapshot, plan: Plan, job_id: str) -> Explanation:
    """Explains a job: ``123``, an array task ``123_7`` or a component ``123+1``. Unknown ones get a verdict as well."""
    if not isinstance(snapshot.slurm, SlurmView):
        return _nothing(job_id, f"Slurm could not be read: {snapshot.slurm.error}")
    job = _row(job_id, snapshot.slurm)
    if job is None:
        return _nothing(job_id, "Slurm's queue has no such job; sacct knows those that have ended")
    asks, remarks = _asks(job), tuple(r for r in plan.remarks if r.subject == f"job:{job.id}")
    serving = _serving(snapshot, snapshot.slurm, plan, job, job_id)
    if job.state is not JobState.PENDING:
        where = f" on {', '.join(job.node_list)}" if job.node_list else ""
        verdict, summary = job.state.value.lower(), f"it is {job.state.value.lower()}{where}"
        return Explanation(job_id, job, asks, verdict, summary, "", remarks, (), serving)
    last = remarks[-1] if remarks else _unserved(snapshot, job)
    return Explanation(
        job_id=job_id,
        job=job,
        asks=asks,
        verdict=last.verdict,
        summary=last.reason,
        slurm=meaning(job.reason).text,
        remarks=remarks,
        ways=_ways(snapshot, plan, job),
        serving=serving,
        remedies=_remedies(job, last),
    )


def _nothing(job_id: str, why: str) -> Explanation:
    return Explanation(job_id, None, "", "unknown", why)


def _asks(job: Job) -> str:
    wanted = need(job)
    features = f", features {job.constraint}" if job.constraint else ""
    tasks = f" ({job.tasks} array tasks)" if job.tasks > 1 else ""
    return f"{wanted.nodes} node(s), each {wanted.share(wanted.nodes)}{features}{tasks}"


def _row(job_id: str, slurm: SlurmView) -> Job | None:
    """The row of the job, or the one that stands for an array task, or for an array or het job by its bare number."""
    exact = next((job for job in slurm.jobs if job.id == job_id), None)
    if exact is not None:
        return exact
    array, _, task = job_id.partition("_")
    rows = [j for j in slurm.jobs if array in (j.array_job_id, j.het_job_id) and (j.array_tasks or not task)]
    return min(rows, key=lambda j: (j.state is not JobState.PENDING, j.id), default=None)


def _serving(snapshot: Snapshot, slurm: SlurmView, plan: Plan, job: Job, job_id: str) -> tuple[Serving, ...]:
    words = {job.id, job_id, job.het_job_id} - {""}
    given = {name for word in words for name in plan.target.placed.get(word, ())}
    if job.state is not JobState.PENDING:
        given |= set(job.node_list)
    claims = [c for c in snapshot.claims if job.id in c.jobs or c.gang in words or c.slot in given]
    found = [Serving(c.id, c.slot, c.state.value, c.since, c.reason) for c in claims]
    others = sorted(given - {c.slot for c in claims})
    return (*found, *(Serving("", n, slurm.nodes[n].state.lower(), 0.0, "") for n in others if n in slurm.nodes))


def _ways(snapshot: Snapshot, plan: Plan, job: Job) -> tuple[Way, ...]:
    chosen = {(w.pool, w.offers[0].id) for w in plan.target.wants if w.offers and job.id in w.jobs}
    ways: list[Way] = []
    for name, pool in snapshot.pools.items():
        if set(pool.partitions).isdisjoint(job.partitions):
            continue
        judged = candidates(snapshot, pool)
        ways.append(
            Way(
                pool=name,
                lacks=_lacks(job, pool),
                slots=len(pool.slots),
                free=len(snapshot.free_slots(pool)),
                candidates=tuple(Candidate(j.subject, j.offer, j.refused, (name, j.subject) in chosen) for j in judged),
            )
        )
    return tuple(ways)


def _lacks(job: Job, pool: Pool) -> str:
    wanted = need(job)
    if wanted.constraint.problem:
        return wanted.constraint.problem
    if not wanted.constraint.may_use(pool.shape.features):
        return f"the features {job.constraint}"
    nodes = wanted.nodes_of(pool.shape)
    return nodes if isinstance(nodes, str) else ""


def _unserved(snapshot: Snapshot, job: Job) -> Remark:
    burst = sorted({partition for pool in snapshot.pools.values() for partition in pool.partitions})
    if set(job.partitions).isdisjoint(burst):
        why = f"no pool serves {', '.join(job.partitions)}; the burst partitions are {', '.join(burst) or 'none'}"
    else:
        why = "the last plan was made before it was seen"
    return Remark("explain", f"job:{job.id}", "unknown", why)


_BY_POLICY: Mapping[str, tuple[str, ...]] = {
    "backlog": ("wait", "lower min_jobs or min_age_s in [policies.backlog] of burstd.toml"),
    "limits": ("wait until other nodes end", "raise the limit in [policies.limits] of burstd.toml"),
    "pin": ("burstctl scale POOL --clear",),
    "hold": ("burstctl unhold",),
    "chain": ("wait for a free slot",),
}


def _remedies(job: Job, last: Remark) -> tuple[str, ...]:
    """What would help, by who had the last word and what it was."""
    if last.verdict in ("boot", "covered", "unknown"):
        return ()
    if last.reason.startswith("its data is held"):
        return (f"burstctl stage status {job.id}",)
    if last.by == "demand":
        remedy = meaning(job.reason).remedy.replace("JOBID", job.id)
        return (remedy,) if remedy else ()
    if last.verdict == "impossible" and "no offer" in last.reason:
        return ("name offers that are as large as its slots in the pool's rules, in burstd.toml",)
    if last.verdict == "impossible":
        return ("ask for what a pool has", "add a pool whose slots have it, in burstd.toml and slurm.conf")
    if last.by != "placement":
        return _BY_POLICY.get(last.by, (f"see the policy {last.by} in burstd.toml",))
    if "has not started it" in last.reason:
        return (f"scontrol show job {job.id}, and slurmctld's log: something that only Slurm knows keeps it",)
    if "no offer" in last.reason:
        return ("wait: offers that failed are tried again by themselves", "name more offers in the pool's rules")
    if "slot" in last.reason:
        return ("wait for a slot", "give the pool more slots, in burstd.toml and slurm.conf")
    return ()
