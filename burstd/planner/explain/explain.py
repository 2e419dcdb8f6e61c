"""Why a job bursts or does not: a reading of what the last plan recorded, with the candidates that it had.

Nothing is decided here. The verdict and its reasons are the plan's remarks; the offers are those that the plan had,
judged by the rules that chose them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.claim import USABLE
from burstd.domain.missing_home import HOMES
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StagingView
from burstd.domain.units import money_text, span_text
from burstd.planner.demand.demand import reason_of
from burstd.planner.explain.fabric_text import claim_binding, gang_fabric_text, offer_binding
from burstd.planner.explain.job_lookup import find_job, request_text
from burstd.planner.explain.project_text import job_text, leaving_text, project_of_job, project_text, waiting_remark
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.lifecycle.launch_failures import LAUNCH
from burstd.planner.lifecycle.spot_notices import notes_of_job
from burstd.planner.offers.candidates import PoolCandidates, offer_candidates
from burstd.planner.staging.input_deadlines import data_of_job
from burstd.planner.unshown_paths import WARNING


@dataclass(frozen=True, slots=True)
class ServingNode:
    """A claim that is made for the job, or a node that the plan gave it room on."""

    claim_id: str
    """Empty for a node of the site."""
    slot: str
    state: str
    since: float
    reason: str
    reserved: Decimal = Decimal(0)
    """The most that it may cost, in the offer's currency; 0: no budget."""
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that the record says about one job."""

    job_id: str
    job: Job | None
    """The row of the queue that stands for it; None: there is none."""
    request_text: str
    """What it asks for, in a line."""
    verdict: str
    """The last word: ``boot``, ``covered``, ``wait``, ``impossible``, ``unknown``, or its state once it has started."""
    summary: str
    """Why it does or does not start, in a sentence."""
    slurm: str = ""
    """What Slurm says, in words."""
    remarks: tuple[Remark, ...] = ()
    """Every remark on it, in the order in which it was decided."""
    pool_candidates: tuple[PoolCandidates, ...] = ()
    serving: tuple[ServingNode, ...] = ()
    remedies: tuple[str, ...] = ()
    """What would help; empty: nothing needs to be done."""
    outlook: Outlook | None = None
    """What is expected of it; None: nothing is, or it has started."""
    data: StagingView | None = None
    """How its data stands; None: it has none."""
    fabric: str = ""
    """What binds its nodes, in words; empty: it has one node, or none so far."""
    kept_by: str = ""
    """An administrator's word that keeps machines from it, however soon one could start (see ``kept_by``)."""


def explain_job(snapshot: Snapshot, plan: Plan, job_id: str) -> Explanation:
    """Explains a job: ``123``, an array task ``123_7`` or a component ``123+1``. Unknown ones get a verdict as well."""
    if not isinstance(snapshot.slurm, SlurmView):
        return _nothing(job_id, f"cannot read Slurm: {snapshot.slurm.error}")
    job = find_job(snapshot.slurm.jobs, job_id)
    if job is None:
        gone = "not in Slurm's queue; for jobs that have ended, run sacct"
        return _nothing(job_id, "; ".join([gone, *_met(snapshot.slurm, job_id)]))
    remarks = tuple(r for r in plan.remarks if r.subject == f"job:{job.id}")
    serving, data = _serving(snapshot, snapshot.slurm, plan, job, job_id), data_of_job(snapshot.data, job)
    if job.state is not JobState.PENDING:
        where = f" on {', '.join(job.node_list)}" if job.node_list else ""
        verdict, summary = job.state.value.lower(), f"the job is {job.state.value.lower()}{where}"
        met = _met(snapshot.slurm, job.number or job.id)
        summary = "; ".join([summary, *met, *_idle_gpus(plan, job, remarks), *_project(snapshot, plan, job)])
        if data is not None and data.checkpoint:
            age = f", taken {span_text(snapshot.now - data.checkpoint_taken)} ago" if data.checkpoint_taken else ""
            summary += f"; {data.checkpoint}{age}"
        return Explanation(
            job_id, job, request_text(job), verdict, summary, "", remarks, (), serving, data=data,
            fabric=_fabric(snapshot, plan, job, serving),
        )  # fmt: skip
    last = remarks[-1] if remarks else unplanned_remark(snapshot, plan, job)
    warnings = [r.reason for r in remarks if r.verdict == WARNING]
    outlook = (snapshot.outlook or job_outlooks(snapshot)).get(job.id)
    return Explanation(
        job_id=job_id,
        job=job,
        request_text=request_text(job),
        verdict=last.verdict,
        summary="; ".join([last.reason, *warnings, *_project(snapshot, plan, job)]),
        slurm=reason_of(job, snapshot).text,
        remarks=remarks,
        pool_candidates=offer_candidates(snapshot, plan, job, outlook),
        serving=serving,
        remedies=_remedies(snapshot, job, last),
        outlook=outlook,
        data=data,
        fabric=_fabric(snapshot, plan, job, serving),
        kept_by=kept_by(last),
    )


def kept_by(last: Remark) -> str:
    """The administrator's word for which a job waits, by the last remark on it; empty: it waits for none."""
    return _ADMINISTRATORS_WORDS.get(last.by, "") if last.verdict == "wait" else ""


def _met(slurm: SlurmView, number: str) -> list[str]:
    return [f"it has met {note}" for note in notes_of_job(slurm.nodes.values(), number)]


def _idle_gpus(plan: Plan, job: Job, remarks: Sequence[Remark]) -> Iterator[str]:
    """The warning of a running job that does not use its GPUs, and what that has cost so far."""
    yield from (remark.reason for remark in remarks if remark.verdict == WARNING)
    for idle in plan.idle_gpus:
        if idle.job_id == job.id and idle.cost:
            yield f"that has cost about {money_text(idle.cost)}"


def _project(snapshot: Snapshot, plan: Plan, job: Job) -> Iterator[str]:
    """How the job's project stands."""
    projects = snapshot.projects.projects
    project = project_of_job(job, projects)
    if leaving := leaving_text(job, snapshot):
        yield f"it is {leaving}"
    if project is not None:
        shards = snapshot.projects.shards.get(project.name, 0)
        if text := job_text(job, project, plan.target.shares.get(project.name), shards):
            yield text
        yield project_text(project, projects, plan.target.shares)


def _nothing(job_id: str, why: str) -> Explanation:
    return Explanation(job_id, None, "", "unknown", why)


def _fabric(snapshot: Snapshot, plan: Plan, job: Job, serving: Sequence[ServingNode]) -> str:
    """Of the nodes that serve the job, or that the plan wants for it."""
    ids = {node.claim_id for node in serving}
    claims = [c for c in snapshot.claims if c.id in ids and c.state in USABLE]
    if claims:
        pools = [snapshot.pools.get(c.pool) for c in claims]
        bindings = [claim_binding(c, pool) for c, pool in zip(claims, pools, strict=True)]
        return gang_fabric_text([c.offer for c in claims], bindings, pools)
    wanted = [
        (w.offers[0], snapshot.pools.get(w.pool))
        for w in plan.target.wants
        if job.id in w.jobs and w.offers
        for _ in w.slots
    ]
    offers, bindings = [offer for offer, _ in wanted], [offer_binding(*one) for one in wanted]
    return gang_fabric_text(offers, bindings, [pool for _, pool in wanted])


def _serving(snapshot: Snapshot, slurm: SlurmView, plan: Plan, job: Job, job_id: str) -> tuple[ServingNode, ...]:
    ids = {job.id, job_id, job.het_job_id} - {""}
    assigned = {name for job_or_gang in ids for name in plan.target.placements.get(job_or_gang, ())}
    if job.state is not JobState.PENDING:
        assigned |= set(job.node_list)
    claims = [c for c in snapshot.claims if job.id in c.jobs or c.gang in ids or c.slot in assigned]
    found = [ServingNode(c.id, c.slot, c.state.value, c.since, c.reason, c.reserved, c.offer.currency) for c in claims]
    others = sorted(assigned - {c.slot for c in claims})
    return (*found, *(ServingNode("", n, slurm.nodes[n].state.lower(), 0.0, "") for n in others if n in slurm.nodes))


def unplanned_remark(snapshot: Snapshot, plan: Plan, job: Job) -> Remark:
    """Why the plan says nothing of a pending job."""
    burst = sorted({partition for pool in snapshot.pools.values() for partition in pool.partitions})
    project = project_of_job(job, snapshot.projects.projects)
    if project is not None:
        return waiting_remark(job, project, plan.target.shares.get(project.name), snapshot)
    if set(job.partitions).isdisjoint(burst):
        why = f"no pool serves {', '.join(job.partitions)}; burst partitions: {', '.join(burst) or 'none'}"
    else:
        why = "the last plan is older than the job"
    return Remark("explain", f"job:{job.id}", "unknown", why)


def _filled_in(remedy: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        remedy = remedy.replace(word, value)
    return remedy


_ADMINISTRATORS_WORDS: Mapping[str, str] = {
    "pin": "an administrator's pin (burstctl scale)",
    "hold": "an administrator's hold (burstctl hold)",
}
_POLICY_REMEDIES: Mapping[str, tuple[str, ...]] = {
    "backlog": ("wait", "lower min_jobs or min_age_s in [policies.backlog] of burstd.toml (administrators only)"),
    "broker": ("change the requirements in its comment (scontrol update JobId=JOBID Comment='burst: ...')",),
    "budget": (
        "wait until nodes under the budget end",
        "raise the limit in [policies.budget] of burstd.toml (administrators only)",
    ),
    "data_locality": ("wait until its input is uploaded",),
    "limits": (
        "wait until other nodes end",
        "raise the limit in [policies.limits] of burstd.toml (administrators only)",
    ),
    "schedule": (
        "wait for the next window of the schedule",
        "change the windows in [policies.schedule] (administrators only)",
    ),
    "throttle": (
        "wait: burstd retries by itself",
        "raise the rate in [policies.throttle] of burstd.toml (administrators only)",
    ),
    "wait_aware": ("wait: the site's own nodes are expected to start it soon",),
    "projects": (
        "wait: GPUs come back when jobs of other projects end",
        "burstctl project set NAME --quota GPUS (administrators only)",
    ),
    "hold": ("burstctl unhold (administrators only)",),
    "chain": ("wait for a free slot",),
    "mounts": ("correct what the reason names: Slurm starts the job again about two minutes after its last try",),
}


def _remedies(snapshot: Snapshot, job: Job, last: Remark) -> tuple[str, ...]:
    """What would help, by who had the last word and what it was."""
    if last.verdict in ("boot", "covered", "unknown"):
        return ()
    if last.reason.startswith("its data is held"):
        return (f"burstctl stage status {job.id}",)
    if last.by == LAUNCH:
        remedy = snapshot.runtime_state.launch_failures[job.id].fault.remedy
        return (f"{remedy}; then: scontrol release {job.het_job_id or job.id} (administrators only)",)
    if last.by == HOMES:
        name = job.het_job_id or job.id
        return (f"correct what the reason names, then: burstctl config reload, scontrol release {name}",)
    if last.by == "mounts" and job.held:
        return (f"correct what the reason names, then: scontrol release {job.het_job_id or job.id}",)
    if last.by == "pin":
        serving = (name for name, pool in snapshot.pools.items() if not set(pool.partitions).isdisjoint(job.partitions))
        pinned = {pin.pool for pin in snapshot.pins if pin.kind != "floor"}
        return tuple(f"burstctl scale {name} --clear (administrators only)" for name in serving if name in pinned)
    if last.by == "demand":
        remedy = reason_of(job, snapshot).remedy.replace("JOBID", job.id)
        return (remedy,) if remedy else ()
    if last.by != "placement":
        known = _POLICY_REMEDIES.get(last.by, (f"see policy {last.by} in burstd.toml",))
        never, project = last.verdict == "impossible", project_of_job(job, snapshot.projects.projects)
        words = {"JOBID": job.id, **({"NAME": project.name} if project is not None and last.by == "projects" else {})}
        known = tuple(r for r in known if not (never and r.startswith("wait")))
        return tuple(_filled_in(remedy, words) for remedy in known)
    if last.verdict == "impossible" and "no offer" in last.reason:
        return ("allow offers as large as the pool's slots in the pool's rules, in burstd.toml (administrators only)",)
    if last.verdict == "impossible":
        return (
            "request what a pool has",
            "add a pool with these resources to burstd.toml and slurm.conf (administrators only)",
        )
    if "has not started it" in last.reason:
        return (f"see scontrol show job {job.id} and slurmctld's log: only Slurm knows what blocks the job",)
    if "no offer" in last.reason:
        return ("wait: burstd retries failed offers", "allow more offers in the pool's rules (administrators only)")
    if "slot" in last.reason:
        return ("wait for a slot", "add slots to the pool in burstd.toml and slurm.conf (administrators only)")
    return ()
