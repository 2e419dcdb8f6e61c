"""A plan as sentences, and the bill."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from burstd.api.answers.money import money, total
from burstd.api.answers.types import (
    BillLineView,
    BillView,
    BudgetView,
    LeftOutView,
    PlanView,
    StepView,
    WantView,
    WordView,
    when,
)
from burstd.db import BillLine
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import Claim
from burstd.domain.plan import (
    Action,
    Adopt,
    Bind,
    Drain,
    Interrupted,
    JobRun,
    Launch,
    Learn,
    LimitTime,
    MakeClaim,
    Move,
    NodeDown,
    Plan,
    PowerDown,
    Prove,
    Reach,
    Register,
    RemoveOrphans,
    Requeue,
    SetGate,
    Start,
    StartNow,
    Terminate,
    Unbind,
    Undrain,
)
from burstd.domain.plugins.policy import Remark
from burstd.domain.snapshot import Snapshot
from burstd.slurm.hostlist import compress


def plan_view(snapshot: Snapshot, plan: Plan, now: float) -> PlanView:
    """What the next loop would do. Claims that are made alike are one step."""
    claims = {claim.id: claim for claim in (*snapshot.claims, *snapshot.storage)}
    made = [action for action in plan.actions if isinstance(action, MakeClaim)]
    return PlanView(
        now=when(now),
        seen=when(snapshot.now),
        paused=snapshot.paused,
        failed=[f"policy {f.name}: {f.error}" for f in plan.target.failed],
        steps=[
            *_makings(made),
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
                left_out=[LeftOutView(offer=out.offer, by=out.by, reason=out.reason) for out in want.left_out],
            )
            for want in plan.target.wants
        ],
        words=_words(plan.target.remarks),
    )


def _words(remarks: Sequence[Remark]) -> list[WordView]:
    """What was decided after placement. Of a want that was taken away its jobs are told, else its pool."""
    decided = [r for r in remarks if r.by not in ("demand", "placement")]
    to_jobs = {(r.by, r.reason) for r in decided if r.subject.startswith("job:")}
    about: dict[tuple[str, str, str], list[str]] = {}
    for remark in decided:
        twice = remark.verdict == "drop" and any((remark.by, why) in to_jobs for why in _endings(remark.reason))
        if not twice and remark.subject != "plan":
            about.setdefault((remark.by, remark.verdict, remark.reason), []).append(remark.subject)
    return [WordView(by=by, verdict=verdict, about=names, reason=why) for (by, verdict, why), names in about.items()]


def _endings(reason: str) -> Iterator[str]:
    """What follows each ``: `` of a sentence: ``1 node(s) (job 1): too dear`` tells of the reason ``too dear``."""
    rest = reason
    while ": " in rest:
        _, _, rest = rest.partition(": ")
        yield rest


def _makings(made: Iterable[MakeClaim]) -> list[StepView]:
    groups: dict[tuple[str, str, str], list[MakeClaim]] = {}
    for action in made:
        groups.setdefault((action.pool, action.offer.id, action.reason), []).append(action)
    return [_making(group) for group in groups.values()]


def _making(group: Sequence[MakeClaim]) -> StepView:
    offer, nodes = group[0].offer, [action.slot for action in group]
    machines = "a machine" if len(group) == 1 else f"{len(group)} machines"
    price = f"{offer.price:f} {offer.currency}/h" + (" each" if len(group) > 1 else "")
    text = f"start {machines} for {compress(nodes)} (pool {group[0].pool}) as {offer.id} at {price}: {group[0].reason}"
    jobs = list(dict.fromkeys(job for action in group for job in action.jobs))
    return StepView(action="MakeClaim", text=text, nodes=nodes, jobs=jobs)


def _step(action: Action, claims: dict[str, Claim]) -> StepView:
    text, ids, nodes = _say(action, claims)
    match action:
        case Bind() | Unbind() | LimitTime():
            jobs = [action.job_id]
        case Requeue() | Interrupted():
            jobs = [run.job_id for run in action.runs]
        case StartNow():
            jobs = list(action.jobs)
        case _:
            jobs = []
    return StepView(action=type(action).__name__, text=text, claims=list(ids), nodes=list(nodes), jobs=jobs)


def _reasons(runs: Sequence[JobRun]) -> str:
    reasons = list(dict.fromkeys(run.reason for run in runs))
    return reasons[0] + (f", and {len(reasons) - 1} more such" if len(reasons) > 1 else "")


def _say(action: Action, claims: dict[str, Claim]) -> tuple[str, Collection[str], Collection[str]]:
    """The sentence, the claims and the nodes of a step."""

    def named(claim_ids: Iterable[str]) -> list[str]:
        return [claims[i].slot if i in claims else i for i in claim_ids]

    match action:
        case Adopt(claim):
            where = f"instance {claim.instance_id} at {claim.offer.provider}"
            return f"adopt {where} as {claim.slot}, {claim.state.value}: {claim.reason}", [claim.id], [claim.slot]
        case Launch(claim_id, reason):
            [slot] = named([claim_id])
            return f"ask the cloud for the machine of {slot} again: {reason}", [claim_id], [slot]
        case Move(claim_id, old, new, reason):
            [slot] = named([claim_id])
            return f"note that {slot} goes from {old.value} to {new.value}: {reason}", [claim_id], [slot]
        case Learn(claim_id, address):
            [slot] = named([claim_id])
            return f"note that {slot} has the address {address}", [claim_id], [slot]
        case Prove(claim_id, reason):
            [slot] = named([claim_id])
            return f"reach and check the machine of {slot}: {reason}", [claim_id], [slot]
        case Reach(claim_id):
            [slot] = named([claim_id])
            return f"find out whether the machine of {slot} answers, which its cloud lists no more", [claim_id], [slot]
        case Register(addresses):
            known = [name for name, _ in addresses]
            return f"tell Slurm the address{'es' if len(addresses) > 1 else ''} of {compress(known)}", [], known
        case Start(claim_id):
            [slot] = named([claim_id])
            return f"start slurmd on {slot}", [claim_id], [slot]
        case SetGate():
            return _gate(action, named(action.opens), named(action.closes))
        case Bind(job_id, user, ids, nodes, reason):
            return f"let job {job_id} of {user}, and no other, start on {compress(nodes)}: {reason}", ids, nodes
        case Unbind(job_id, reason):
            return f"let other jobs than {job_id} use its nodes again: {reason}", [], []
        case PowerDown(nodes, force, reason, ends):
            how = "power down (jobs on them are requeued)" if force else "power down"
            return f"{how} {compress(nodes)} in Slurm: {reason}", ends, nodes
        case NodeDown(nodes, reason):
            return f"set {compress(nodes)} down in Slurm: {reason}", [], nodes
        case Drain(ids, nodes, reason):
            return f"drain {compress(nodes)} in Slurm: {reason}", ids, nodes
        case Undrain(nodes):
            return f"take burstd's drain off {compress(nodes)}: no machine stands behind it", [], nodes
        case Requeue(runs):
            return f"requeue {_jobs(run.job_id for run in runs)}: {_reasons(runs)}", [], []
        case Interrupted(runs):
            return f"note that {_jobs(run.job_id for run in runs)} lost a machine: {_reasons(runs)}", [], []
        case LimitTime(job_id, limit_s, reason):
            return f"give job {job_id} a time limit of {limit_s / 60:.0f} min: {reason}", [], []
        case StartNow(jobs):
            return f"let {_jobs(jobs)} start again at once", [], []
        case Terminate(ids, reason):
            slots = named(ids)
            return f"end the machine{'s' if len(ids) > 1 else ''} of {compress(slots)}: {reason}", ids, slots
        case RemoveOrphans(provider, instances, leftovers, reason):
            what = ", ".join([*(f"instance {i.id}" for i in instances), *(f"{x.kind} {x.id}" for x in leftovers)])
            return f"remove {what} from {provider}: {reason}", [], []
        case _:
            raise TypeError(f"no such step: {action!r}")


def _jobs(ids: Iterable[str]) -> str:
    jobs = list(ids)
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"


def _gate(action: SetGate, opens: Sequence[str], closes: Sequence[str]) -> tuple[str, Collection[str], Collection[str]]:
    parts = []
    if opens:
        parts.append(f"open {compress(opens)} to jobs")
    if closes:
        parts.append(f"close {compress(closes)} to new jobs")
    if not parts:
        parts.append(f"put the gate right: it holds {len(action.nodes)} slots")
    return f"{' and '.join(parts)}: {action.reason}", (*action.opens, *action.closes), (*opens, *closes)


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
    mine = [line for line in lines if keys is None or line.key in keys]
    return BillView(
        now=when(now),
        since=when(since),
        until=when(until),
        group=group,
        lines=[
            BillLineView(
                key=line.key,
                cost=money(line.cost, line.currency),
                machine_s=round(line.seconds, 3),
                claims=line.claims,
            )
            for line in mine
        ],
        total=total((line.cost, line.currency) for line in mine),
        budgets=[
            BudgetView(
                kind=b.kind,
                name=b.name,
                period=b.period,
                limit=money(b.limit, b.currency),
                spent=money(b.spent, b.currency),
                committed=money(b.committed, b.currency),
                left=money(b.left, b.currency),
                fault=b.fault,
            )
            for b in budgets
        ],
    )
