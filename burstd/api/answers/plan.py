"""A plan as sentences, and the bill."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from burstd.api.answers.money import money_view, sum_by_currency
from burstd.api.answers.types import (
    BillLineView,
    BillView,
    BudgetView,
    PlanView,
    PolicyDecisionView,
    RejectedOfferView,
    StepView,
    WantView,
    utc_datetime,
)
from burstd.db import BillLine
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import Claim
from burstd.domain.plan import (
    Action,
    AdoptMachine,
    BindJob,
    ChangeClaimState,
    DrainNodes,
    JobRun,
    LaunchMachine,
    LimitJobTime,
    MakeClaim,
    Plan,
    PowerDown,
    ProbeMachine,
    RecordAddress,
    RecordInterruptions,
    RegisterNodes,
    RemoveOrphans,
    RequeueJobs,
    SetGate,
    SetNodesDown,
    StartJobsNow,
    StartSlurmd,
    TerminateMachines,
    UnbindJob,
    UndrainNodes,
    ValidateNode,
)
from burstd.domain.plugins.policy import Remark
from burstd.domain.snapshot import Snapshot
from burstd.slurm.hostlist import compress


def plan_view(snapshot: Snapshot, plan: Plan, now: float) -> PlanView:
    """What the next loop would do. Claims that are made alike are one step."""
    claims = {claim.id: claim for claim in (*snapshot.claims, *snapshot.storage_claims)}
    new_claims = [action for action in plan.actions if isinstance(action, MakeClaim)]
    return PlanView(
        now=utc_datetime(now),
        seen=utc_datetime(snapshot.now),
        paused=snapshot.paused,
        failed=[f"policy {f.name}: {f.error}" for f in plan.target.failed_policies],
        steps=[
            *_claim_steps(new_claims),
            *(_step(action, claims) for action in plan.actions if not isinstance(action, MakeClaim)),
        ],
        wants=[
            WantView(
                pool=want.pool,
                nodes=want.nodes,
                cause=want.cause.value,
                reason=want.reason,
                offer=want.offers[0].id if want.offers else "",
                jobs=list(want.jobs),
                slots=list(want.slots),
                left_out=[
                    RejectedOfferView(offer=out.offer, by=out.by, reason=out.reason) for out in want.excluded_offers
                ],
            )
            for want in plan.target.wants
        ],
        words=_policy_decisions(plan.target.remarks),
    )


def _policy_decisions(remarks: Sequence[Remark]) -> list[PolicyDecisionView]:
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


def _claim_steps(new_claims: Iterable[MakeClaim]) -> list[StepView]:
    groups: dict[tuple[str, str, str], list[MakeClaim]] = {}
    for action in new_claims:
        groups.setdefault((action.pool, action.offer.id, action.reason), []).append(action)
    return [_claim_step(group) for group in groups.values()]


def _claim_step(group: Sequence[MakeClaim]) -> StepView:
    offer, nodes = group[0].offer, [action.slot for action in group]
    machines = "a machine" if len(group) == 1 else f"{len(group)} machines"
    price = f"{offer.price:f} {offer.currency}/h" + (" each" if len(group) > 1 else "")
    text = f"start {machines} for {compress(nodes)} (pool {group[0].pool}) as {offer.id} at {price}: {group[0].reason}"
    jobs = list(dict.fromkeys(job for action in group for job in action.jobs))
    return StepView(action="MakeClaim", text=text, nodes=nodes, jobs=jobs)


def _step(action: Action, claims: dict[str, Claim]) -> StepView:
    text, ids, nodes = _step_text(action, claims)
    match action:
        case BindJob() | UnbindJob() | LimitJobTime():
            jobs = [action.job_id]
        case RequeueJobs() | RecordInterruptions():
            jobs = [run.job_id for run in action.runs]
        case StartJobsNow():
            jobs = list(action.jobs)
        case _:
            jobs = []
    return StepView(action=type(action).__name__, text=text, claims=list(ids), nodes=list(nodes), jobs=jobs)


def _reasons_text(runs: Sequence[JobRun]) -> str:
    reasons = list(dict.fromkeys(run.reason for run in runs))
    return reasons[0] + (f", and {len(reasons) - 1} more such" if len(reasons) > 1 else "")


def _step_text(action: Action, claims: dict[str, Claim]) -> tuple[str, Collection[str], Collection[str]]:
    """The sentence, the claims and the nodes of a step."""

    def slots_of(claim_ids: Iterable[str]) -> list[str]:
        return [claims[i].slot if i in claims else i for i in claim_ids]

    match action:
        case AdoptMachine(claim):
            where = f"instance {claim.instance_id} at {claim.offer.provider}"
            return f"adopt {where} as {claim.slot}, {claim.state.value}: {claim.reason}", [claim.id], [claim.slot]
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
        case RecordInterruptions(runs):
            return f"note that {_jobs_text(run.job_id for run in runs)} lost a machine: {_reasons_text(runs)}", [], []
        case LimitJobTime(job_id, limit_s, reason):
            return f"give job {job_id} a time limit of {limit_s / 60:.0f} min: {reason}", [], []
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


def bill_view(
    lines: Sequence[BillLine],
    group: str,
    since: float,
    until: float,
    now: float,
    keys: Collection[str] | None = None,
    budgets: Iterable[BudgetLine] = (),
) -> BillView:
    """The bill; with ``keys`` only theirs."""
    visible = [line for line in lines if keys is None or line.key in keys]
    return BillView(
        now=utc_datetime(now),
        since=utc_datetime(since),
        until=utc_datetime(until),
        group=group,
        lines=[
            BillLineView(
                key=line.key,
                cost=money_view(line.cost, line.currency),
                machine_s=round(line.seconds, 3),
                claims=line.claims,
            )
            for line in visible
        ],
        total=sum_by_currency((line.cost, line.currency) for line in visible),
        budgets=[
            BudgetView(
                kind=b.kind,
                name=b.name,
                period=b.period,
                limit=money_view(b.limit, b.currency),
                spent=money_view(b.spent, b.currency),
                committed=money_view(b.committed, b.currency),
                left=money_view(b.left, b.currency),
                fault=b.fault,
            )
            for b in budgets
        ],
    )
