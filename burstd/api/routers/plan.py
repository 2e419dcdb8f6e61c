"""What the next loop would do, as sentences, and the commands that steer it, for administrators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from burstd.api.answers.base import CommandResultView
from burstd.api.answers.plan import PlanView, PolicyDecisionView, RejectedOfferView, StepView, WantView
from burstd.api.dependencies import (
    AdminDep,
    ApiError,
    BackendDep,
    RequestBody,
    ShortText,
    command_answer,
    execute_command,
    require_latest_loop,
)
from burstd.domain.claim import Claim
from burstd.domain.clock import utc_clock_text
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import ClearPin, Confirm, DrainSlots, Pause, PlanNow, ReleaseSlots, Reload, Resume, SetPin
from burstd.domain.idle_gpus import IdleAct
from burstd.domain.plan import (
    Action,
    ActOnIdleJobs,
    AdoptMachine,
    BindJob,
    ChangeClaimState,
    DrainNodes,
    HandOver,
    HoldJob,
    JobRun,
    LaunchMachine,
    LimitJobTime,
    MakeClaim,
    Plan,
    PowerDown,
    ProbeMachine,
    RecordAddress,
    RecordIdleJobs,
    RecordInterruptions,
    RegisterNodes,
    RemoveOrphans,
    RequeueJobs,
    SetGate,
    SetNodesDown,
    SetProjectLimits,
    SetQuotaPreemption,
    StartJobsNow,
    StartSlurmd,
    TerminateMachines,
    TestFabric,
    UnbindJob,
    UndrainNodes,
    UpdateJobs,
    ValidateNode,
    WarnJobs,
)
from burstd.domain.plugins.policy import Remark
from burstd.domain.project import OverQuotaLimits, gpus_text
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.snapshot import Snapshot
from burstd.slurm.hostlist import HostlistError, compress, expand

TEN_YEARS_S = 10 * 366 * 86400.0

_IDLE_ACTS = {
    IdleAct.SHORTEN: "shorten the time limit of job",
    IdleAct.REQUEUE: "requeue job",
    IdleAct.CANCEL: "cancel job",
}

router = APIRouter(prefix="/v1")


@router.post("/plan")
def post_plan(caller: AdminDep, backend: BackendDep) -> PlanView:
    """Takes a fresh snapshot and returns what the next loop would do; changes nothing."""
    result = execute_command(backend, PlanNow(caller.actor))
    if result.dry_run is None:
        raise ApiError(503, result.text)
    return plan_view(*result.dry_run, backend.now())


class PinRequest(RequestBody):
    """``burstctl scale``; ``for_s`` None: until taken back."""

    nodes: int = Field(ge=0, le=1_000_000)
    kind: Literal["exact", "floor", "ceiling"] = "exact"
    for_s: float | None = Field(default=None, gt=0, le=TEN_YEARS_S, allow_inf_nan=False)


class NodesRequest(RequestBody):
    """Nodes as host lists, or claim ids."""

    nodes: list[ShortText] = Field(min_length=1, max_length=10_000)
    reason: ShortText = ""


class PauseRequest(RequestBody):
    """``burstctl hold``."""

    reason: ShortText = Field(min_length=1)


@router.put("/pools/{pool}/pin")
def put_pin(pool: str, body: PinRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Pins a pool's number of nodes."""
    found = _require_pool(pool, require_latest_loop(backend)[0])
    if body.nodes > len(found.slots):
        raise ApiError(422, f"Pool {pool} has only {len(found.slots)} slots, not {body.nodes}.")
    until = None if body.for_s is None else backend.now() + body.for_s
    return command_answer(backend, SetPin(pool, body.nodes, body.kind, until, caller.actor))


@router.delete("/pools/{pool}/pin")
def delete_pin(pool: str, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Takes a pool's pins back."""
    snapshot, _ = require_latest_loop(backend)
    if all(pin.pool != pool for pin in snapshot.pins):
        _require_pool(pool, snapshot)
    return command_answer(backend, ClearPin(pool, caller.actor))


@router.post("/nodes/hold")
def post_hold_nodes(body: NodesRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Drains nodes and keeps their slots out of use."""
    slots = _resolve_slots(body.nodes, require_latest_loop(backend)[0], include_removed=False)
    return command_answer(backend, DrainSlots(slots, body.reason or f"drained by {caller.user}", caller.actor))


@router.post("/nodes/release")
def post_release_nodes(body: NodesRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Lets drained nodes back into use."""
    slots = _resolve_slots(body.nodes, require_latest_loop(backend)[0], include_removed=True)
    return command_answer(backend, ReleaseSlots(slots, caller.actor))


@router.put("/hold")
def put_hold(body: PauseRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Boots nothing new and closes nothing that is wanted, until taken back."""
    return command_answer(backend, Pause(body.reason, caller.actor))


@router.delete("/hold")
def delete_hold(caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Takes the hold back."""
    return command_answer(backend, Resume(caller.actor))


@router.post("/confirm/{what}")
def post_confirm(what: Literal["record", "clock"], caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Confirms the record or the clock that burstd doubts."""
    return command_answer(backend, Confirm(what, caller.actor))


@router.post("/reload")
def post_reload(caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Reads the settings again."""
    return command_answer(backend, Reload(caller.actor))


def _require_pool(name: str, snapshot: Snapshot) -> Pool:
    pool = snapshot.pools.get(name)
    if pool is None:
        raise ApiError(404, f"There is no pool {name!r}; there are: {', '.join(snapshot.pools)}.", snapshot.pools)
    return pool


def _resolve_slots(names: list[str], snapshot: Snapshot, *, include_removed: bool) -> tuple[str, ...]:
    """The slots that host lists and claim ids name. ``include_removed``: also held ones that no pool has any more."""
    known = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    if include_removed:
        known |= snapshot.drained_slots
    claims = {claim.id: claim.slot for claim in snapshot.claims}
    found: dict[str, None] = {}
    for text in names:
        try:
            for name in [text] if text in claims else expand(text):
                slot = claims.get(name, name)
                if slot not in known:
                    raise ApiError(404, f"No pool has a node {name!r}.", sorted(known))
                found[slot] = None
        except HostlistError as error:
            raise ApiError(422, f"{error}.") from None
    if not found:
        raise ApiError(422, "No node is named.")
    return tuple(found)


def plan_view(snapshot: Snapshot, plan: Plan, now: float) -> PlanView:
    """What the next loop would do. Claims that are made alike are one step."""
    claims = {claim.id: claim for claim in (*snapshot.claims, *snapshot.storage_claims)}
    new_claims = [action.claim for action in plan.actions if isinstance(action, MakeClaim)]
    return PlanView(
        now=now,
        seen=snapshot.now,
        paused=snapshot.paused,
        failed=[f"policy {f.name}: {f.error}" for f in plan.target.failed_policies],
        steps=[
            *_claim_steps(new_claims),
            *(_step(action, claims, now) for action in plan.actions if not isinstance(action, MakeClaim)),
        ],
        wants=[
            WantView.from_fields(
                want,
                offer=want.offers[0].id if want.offers else "",
                left_out=[RejectedOfferView.from_fields(out) for out in want.excluded_offers],
            )
            for want in plan.target.wants
        ],
        words=policy_decisions(plan.target.remarks),
    )


def policy_decisions(remarks: Sequence[Remark]) -> list[PolicyDecisionView]:
    """What was decided after placement. A want that was taken away is named by its jobs, else by its pool."""
    decided = [r for r in remarks if r.by not in ("demand", "placement")]
    to_jobs = {(r.by, r.reason) for r in decided if r.subject.startswith("job:")}
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for remark in decided:
        already_on_jobs = remark.verdict == "drop" and any(
            (remark.by, why) in to_jobs for why in _suffixes(remark.reason)
        )
        if not already_on_jobs and remark.subject != "plan":
            subjects.setdefault((remark.by, remark.verdict, remark.reason), []).append(remark.subject)
    return [
        PolicyDecisionView(by=by, verdict=verdict, about=names, reason=why)
        for (by, verdict, why), names in subjects.items()
    ]


def _suffixes(reason: str) -> Iterator[str]:
    """What follows each ``: `` of a sentence: ``1 node(s) (job 1): too dear`` tells of the reason ``too dear``."""
    rest = reason
    while ": " in rest:
        _, _, rest = rest.partition(": ")
        yield rest


def _claim_steps(new_claims: Iterable[Claim]) -> list[StepView]:
    groups: dict[tuple[str, str, str], list[Claim]] = {}
    for claim in new_claims:
        groups.setdefault((claim.pool, claim.offer.id, claim.reason), []).append(claim)
    return [_claim_step(group) for group in groups.values()]


def _claim_step(group: Sequence[Claim]) -> StepView:
    offer, nodes = group[0].offer, [claim.slot for claim in group]
    machines = "a machine" if len(group) == 1 else f"{len(group)} machines"
    price = f"{offer.price:f} {offer.currency}/h" + (" each" if len(group) > 1 else "")
    text = f"start {machines} for {compress(nodes)} (pool {group[0].pool}) as {offer.id} at {price}: {group[0].reason}"
    jobs = list(dict.fromkeys(job for claim in group for job in claim.jobs))
    return StepView(action="MakeClaim", text=text, nodes=nodes, jobs=jobs)


def _step(action: Action, claims: dict[str, Claim], now: float) -> StepView:
    text, ids, nodes = _step_text(action, claims, now)
    match action:
        case BindJob() | UnbindJob() | LimitJobTime() | HoldJob():
            jobs = [action.job_id]
        case RequeueJobs() | WarnJobs() | RecordInterruptions():
            jobs = [run.job_id for run in action.runs]
        case ActOnIdleJobs():
            jobs = [run.job_id for run in action.runs]
        case RecordIdleJobs():
            jobs = [*(idle.job_id for idle, _ in action.warned), *(job_id for job_id, _ in action.over)]
        case StartJobsNow() | UpdateJobs():
            jobs = list(action.jobs)
        case _:
            jobs = []
    return StepView(action=type(action).__name__, text=text, claims=ids, nodes=nodes, jobs=jobs)


def _reasons_text(runs: Sequence[JobRun]) -> str:
    reasons = list(dict.fromkeys(run.reason for run in runs))
    return reasons[0] + (f", and {len(reasons) - 1} more such" if len(reasons) > 1 else "")


def _idle_text(action: RecordIdleJobs | ActOnIdleJobs) -> str:
    if isinstance(action, ActOnIdleJobs):
        return "; ".join(f"{_IDLE_ACTS[run.act]} {run.job_id}: {run.reason}" for run in action.runs)
    new = [f"warn job {idle.job_id}: {text}" for idle, text in action.warned]
    over = [f"withdraw the warning of {_jobs_text(job for job, _ in action.over)}"] if action.over else []
    return "; ".join([*new, *over])


def _step_text(action: Action, claims: dict[str, Claim], now: float) -> tuple[str, Collection[str], Collection[str]]:
    """The sentence, the claims and the nodes of a step."""

    def slots_of(claim_ids: Iterable[str]) -> list[str]:
        return [claims[i].slot if i in claims else i for i in claim_ids]

    match action:
        case AdoptMachine(claim):
            where = f"instance {claim.instance_id} at {claim.offer.provider}"
            return f"adopt {where} as {claim.slot}, {claim.state.value}: {claim.reason}", [claim.id], [claim.slot]
        case HandOver(claim_id, claim):
            [slot] = slots_of([claim_id])
            text = f"hand the machine of {slot} over as {claim.slot} (pool {claim.pool}): {claim.reason}"
            return text, [claim_id], [slot, claim.slot]
        case LaunchMachine(claim_id, reason):
            [slot] = slots_of([claim_id])
            return f"ask the cloud for the machine of {slot} again: {reason}", [claim_id], [slot]
        case ChangeClaimState(claim_id, old, new, reason):
            [slot] = slots_of([claim_id])
            return f"set {slot} from {old.value} to {new.value}: {reason}", [claim_id], [slot]
        case RecordAddress(claim_id, address):
            [slot] = slots_of([claim_id])
            return f"record address {address} for {slot}", [claim_id], [slot]
        case ValidateNode(claim_id, reason):
            [slot] = slots_of([claim_id])
            return f"reach and check the machine of {slot}: {reason}", [claim_id], [slot]
        case ProbeMachine(claim_id):
            [slot] = slots_of([claim_id])
            return f"find out whether the machine of {slot} answers, which its cloud lists no more", [claim_id], [slot]
        case RegisterNodes(addresses):
            known = [name for name, _ in addresses]
            return f"tell Slurm the address{'es' if len(addresses) > 1 else ''} of {compress(known)}", [], known
        case StartSlurmd(claim_id):
            [slot] = slots_of([claim_id])
            return f"start slurmd on {slot}", [claim_id], [slot]
        case TestFabric(first, second):
            pair = slots_of([first, second])
            return f"measure the network between {' and '.join(pair)}", [first, second], pair
        case SetGate():
            return _gate_text(action, slots_of(action.into_service), slots_of(action.into_drain))
        case BindJob(job_id, user, ids, nodes, reason):
            return f"let job {job_id} of {user}, and no other, start on {compress(nodes)}: {reason}", ids, nodes
        case UnbindJob(job_id, reason):
            return f"let other jobs than {job_id} use its nodes again: {reason}", [], []
        case PowerDown(nodes, force, reason, ends):
            how = "power down (jobs on them are requeued)" if force else "power down"
            return f"{how} {compress(nodes)} in Slurm: {reason}", ends, nodes
        case SetNodesDown(nodes, reason):
            return f"set {compress(nodes)} down in Slurm: {reason}", [], nodes
        case DrainNodes(ids, nodes, reason):
            return f"drain {compress(nodes)} in Slurm: {reason}", ids, nodes
        case UndrainNodes(nodes):
            return f"take burstd's drain off {compress(nodes)}: no machine stands behind it", [], nodes
        case RequeueJobs(runs):
            return f"requeue {_jobs_text(run.job_id for run in runs)}: {_reasons_text(runs)}", [], []
        case WarnJobs(runs, until):
            when = utc_clock_text(until, now)
            return f"tell {_jobs_text(run.job_id for run in runs)}: requeued at {when}: {_reasons_text(runs)}", [], []
        case RecordInterruptions(runs):
            return f"note that {_jobs_text(run.job_id for run in runs)} lost a machine: {_reasons_text(runs)}", [], []
        case LimitJobTime(job_id, limit_s, reason):
            return f"give job {job_id} a time limit of {limit_s / 60:.0f} min: {reason}", [], []
        case RecordIdleJobs() | ActOnIdleJobs():
            return _idle_text(action), [], []
        case HoldJob(queue_id=queue_id, reason=reason):
            return f"hold job {queue_id}: {reason}", [], []
        case UpdateJobs(jobs, _, update, reason):
            return f"update {_jobs_text(jobs)} in Slurm ({_update_text(update)}): {reason}", [], []
        case SetProjectLimits(limits, reason):
            return f"limit what projects run beyond their quotas to {_limits_text(limits)}: {reason}", [], []
        case SetQuotaPreemption():
            return _preemption_text(action), [], []
        case StartJobsNow(jobs):
            return f"let {_jobs_text(jobs)} start again at once", [], []
        case TerminateMachines(ids, reason):
            slots = slots_of(ids)
            return f"end the machine{'s' if len(ids) > 1 else ''} of {compress(slots)}: {reason}", ids, slots
        case RemoveOrphans(provider, instances, leftovers, reason):
            what = ", ".join([*(f"instance {i.id}" for i in instances), *(f"{x.kind} {x.id}" for x in leftovers)])
            return f"remove {what} from {provider}: {reason}", [], []
        case _:
            raise TypeError(f"no such step: {action!r}")


def _preemption_text(action: SetQuotaPreemption) -> str:
    both = [
        (action.preempt, "let the quota of {} be taken back from others"),
        (action.wait, "let the quota of {} wait"),
    ]
    parts = [text.format(", ".join(projects)) for projects, text in both if projects]
    return f"{' and '.join(parts)}: {action.reason}"


def _limits_text(limits: Sequence[tuple[str, OverQuotaLimits]]) -> str:
    """``a 4 GPUs (tier 2), b no limit (tier 1)``."""
    return ", ".join(
        f"{name} {'no limit' if limit.gpus is None else gpus_text(limit.gpus)} (tier {limit.tier})"
        for name, limit in limits
    )


def _update_text(update: JobUpdate) -> str:
    parts = [f"exclude {compress(update.excluded_nodes)}" if update.excluded_nodes else "exclude no node"]
    parts += [f"{gres} per node" for gres in update.gres_per_node]
    parts += [f"{update.memory_mib} MiB"] if update.memory_mib else []
    parts += [f"{update.cpus or update.cpus_per_node} CPUs"] if update.cpus or update.cpus_per_node else []
    return ", ".join(parts)


def _jobs_text(ids: Iterable[str]) -> str:
    jobs = list(ids)
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"


def _gate_text(
    action: SetGate, opens: Sequence[str], closes: Sequence[str]
) -> tuple[str, Collection[str], Collection[str]]:
    parts = []
    if opens:
        parts.append(f"open {compress(opens)} to jobs")
    if closes:
        parts.append(f"close {compress(closes)} to new jobs")
    if not parts:
        parts.append(f"write the gate again, with {len(action.nodes)} slots")
    return f"{' and '.join(parts)}: {action.reason}", (*action.into_service, *action.into_drain), (*opens, *closes)
