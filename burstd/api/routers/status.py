"""What there is now and what it costs: ``burstctl status`` and ``burstctl bill``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.base import Money, money_view, sum_by_currency, utc_time
from burstd.api.answers.plan import (
    BillLineView,
    BillMonthView,
    BillPartView,
    BillView,
    BudgetView,
    ConvertedTotalView,
    SiteBillLineView,
)
from burstd.api.answers.status import (
    BreakerView,
    CallerView,
    DaemonView,
    IdleGpusView,
    PinView,
    PolicyTimeView,
    PoolView,
    ProviderView,
    SlotHoldView,
    SlurmStateView,
    StageStatusView,
    StatusView,
    WaitingGroup,
    WaitingView,
)
from burstd.api.auth import Caller
from burstd.api.backend import SLICE, Backend, DaemonInfo
from burstd.api.dependencies import MAX_RECORDS, ApiError, BackendDep, CallerDep, Timestamp
from burstd.api.routers.closed_months import bill_months
from burstd.api.routers.staging import held_staging_alarms, staging_summary
from burstd.db import BillLine, DrainedSlot, LoggedEvent
from burstd.db.repositories.bill import BillGrouping
from burstd.db.repositories.site_runs import SiteLine
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.billing.rates import Rates
from burstd.domain.billing.use import DAY_S
from burstd.domain.claim import USABLE, Claim, billed_now
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import NOT_READ_YET, CircuitBreaker, CloudView, SlurmView, Snapshot, Unavailable
from burstd.domain.storage_node import StorageNodeView
from burstd.domain.units import memory_text
from burstd.planner.explain.project_text import project_text
from burstd.planner.lifecycle.orphans import stray_leftovers
from burstd.planner.offers.offers import breakers_closed_by
from burstd.planner.snapshot_view import CLAIM_PHASES, claim_phase
from burstd.planner.unshown_paths import WARNING
from burstd.reconciler.reconciler import PAUSED_KEY
from burstd.runtime.precedence import UNDISTURBED, DecisionPrecedence

STALE_S = 120.0
"""A last loop older than this is an alarm: the slowest tick is far shorter."""
_MAX_GROUPS = 12
_MAX_EXAMPLES = 5
_MAX_HOLD_CHANGES = 20
"""Changes of a hold's reason, behind which its beginning is not looked for."""
_DIGITS = re.compile(r"\d+")
_BUDGET_AMOUNTS = ("limit", "spent", "committed", "left")

router = APIRouter(prefix="/v1")


@router.get("/status")
def get_status(caller: CallerDep, backend: BackendDep) -> StatusView:
    """Everything at a glance."""
    glance = staging_summary(backend.reader, backend.stage)
    held = held_staging_alarms(backend.reader, caller) if not caller.admin else ()
    latest = backend.latest_loop()
    shared = backend.once_per_loop(latest, _shared_status) if latest is not None else None
    return status_view(backend.daemon_info(), latest, caller, backend.now(), glance, held, shared)


def _hold_event(backend: Backend, paused: str) -> LoggedEvent | None:
    """With which the hold began; None: burstd holds itself, or the log is older."""
    events = backend.reader.events(subject=f"meta:{PAUSED_KEY}", newest=True, limit=_MAX_HOLD_CHANGES)
    if not events or events[0].new != paused:
        return None
    return next((event for event in events if not event.old), None)


@router.get("/bill")
def get_bill(
    caller: CallerDep,
    backend: BackendDep,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    group: BillGrouping = "user",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> BillView:
    """What machines cost, by user, account, job, partition, pool, provider, day or claim, in whole days (UTC).

    ``since`` and ``until`` in seconds since 1970; default: from the first of the month until now. ``limit``: so many
    jobs or claims, the dearest; the others are one line. Who is no
    administrator sees what he is charged for, his own budget and those of the accounts of his jobs.
    """
    now = backend.now()
    begin, end = bill_window(now, since, until)
    user = "" if caller.admin else caller.user
    lines = backend.reader.bill(group, begin, end, user, limit)
    site = backend.reader.site_bill(group, begin, end, user, limit)
    rates = current_rates(backend)
    months = bill_months(backend.reader, begin, end, admin=caller.admin)
    return bill_view(lines, group, begin, end, now, _visible_budgets(caller, backend), rates, months, site)


def current_rates(backend: Backend) -> Rates:
    """The site's, as of the last loop."""
    latest = backend.latest_loop()
    return Rates() if latest is None else latest[0].rates


def bill_window(now: float, since: float | None, until: float | None) -> tuple[float, float]:
    """Beginning and end of a bill's days, in seconds since 1970. Raises ApiError where there are none."""
    first = utc_time(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    begin = first if since is None else since // DAY_S * DAY_S
    end = min(now, now if until is None else -(-until // DAY_S) * DAY_S)
    if begin >= end:
        times = f"begin {utc_time(begin):%F %T} UTC and end {utc_time(end):%F %T} UTC"
        raise ApiError(422, f"The bill would {times}; it must end later than it begins.")
    return begin, end


def bill_view(
    lines: Sequence[BillLine],
    group: str,
    since: float,
    until: float,
    now: float,
    budgets: Iterable[BudgetLine],
    rates: Rates,
    months: Sequence[BillMonthView] = (),
    site: Sequence[SiteLine] = (),
) -> BillView:
    """The bill, and how budgets stand."""
    total = sum_by_currency((line.cost, line.currency) for line in lines)
    return BillView(
        now=now,
        since=since,
        until=until,
        group=group,
        lines=[
            BillLineView.from_fields(
                line,
                cost=money_view(line.cost, line.currency),
                machine_s=round(line.seconds, 3),
                parts=[
                    BillPartView(
                        kind=part.kind,
                        cause=part.cause,
                        cost=money_view(part.cost, line.currency),
                        machine_s=round(part.seconds, 3),
                        corrects=part.corrects,
                    )
                    for part in line.parts
                ],
            )
            for line in lines
        ],
        total=total,
        converted=_converted_total(total, rates),
        months=[*months],
        site_lines=[
            SiteBillLineView(
                key=line.key,
                cost=money_view(line.cost, line.currency),
                node_s=round(line.seconds, 3),
                others=line.others,
            )
            for line in site
        ],
        site_total=sum_by_currency((line.cost, line.currency) for line in site),
        budgets=[budget_view(line) for line in budgets],
    )


def _converted_total(total: Sequence[Money], rates: Rates) -> ConvertedTotalView | None:
    worth = [rates.converted(money.amount, money.currency) for money in total]
    others = [money.currency for money in total if money.currency != rates.currency]
    if not others or None in worth:
        return None
    return ConvertedTotalView(
        total=money_view(sum(filter(None, worth), Decimal(0)), rates.currency),
        date=rates.date.isoformat(),
        rates={currency: str(rates.worth[currency]) for currency in others},
    )


def budget_view(line: BudgetLine) -> BudgetView:
    """How one budget stands, in an answer."""
    amounts = {name: money_view(getattr(line, name), line.currency) for name in _BUDGET_AMOUNTS}
    return BudgetView.from_fields(line, **amounts)


def _visible_budgets(caller: Caller, backend: Backend) -> list[BudgetLine]:
    latest = backend.latest_loop()
    if latest is None:
        return []
    plan = latest[1]
    if caller.admin or not plan.target.budgets:
        return list(plan.target.budgets)
    mine = {("user", caller.user), *(("project", account) for account in visible_accounts(caller, backend))}
    return [line for line in plan.target.budgets if (line.kind, line.name) in mine]


def visible_accounts(caller: Caller, backend: Backend) -> set[str]:
    """Slurm accounts in which the caller has jobs, or had some on machines that were for him alone."""
    latest = backend.latest_loop()
    queue = latest[0].slurm.jobs if latest is not None and isinstance(latest[0].slurm, SlurmView) else ()
    accounts = {job.account for job in queue if job.user == caller.user and job.account}
    return accounts | {
        a
        for c in backend.reader.find_claims(user=caller.user, limit=MAX_RECORDS)
        if caller.can_see_claim_for(c.users)
        for a in c.accounts
    }


class SharedStatus:
    """What of a status is the same for all callers: pools, and the waiting jobs in groups."""

    def __init__(
        self,
        snapshot: Snapshot,
        plan: Plan,
        precedence: DecisionPrecedence,
        held: Sequence[DrainedSlot] = (),
        hold: LoggedEvent | None = None,
    ) -> None:
        """``held``: slots that administrators keep out of use; ``hold``: the event with which burstd's hold began."""
        self.hold = hold
        self.pools = [
            *(_pool(pool, snapshot, plan, held) for pool in precedence.slices(snapshot.pools.values(), 1)),
            *(_storage_pool(node, snapshot) for node in snapshot.storage_nodes),
        ]
        # A warning is the last word on a job that runs only.
        last = last_remarks(r for r in precedence.slices(plan.remarks, SLICE) if r.verdict != WARNING)
        queue = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
        self.waiting = [(job, last[job.id]) for job in precedence.slices(queue, SLICE) if job.id in last]
        self.tasks = sum(job.tasks for job, _ in self.waiting)
        self.verdicts = dict(sorted(Counter(remark.verdict for _, remark in self.waiting).items()))
        # Reasons that differ only in numbers and node names are one to a person. Thousands of jobs share one.
        normalized: dict[str, str] = {}
        groups: dict[tuple[str, str], list[tuple[Job, Remark]]] = {}
        for job, remark in precedence.slices(self.waiting, SLICE):
            reason = normalized.get(remark.reason) or normalized.setdefault(
                remark.reason, _DIGITS.sub("#", remark.reason)
            )
            groups.setdefault((remark.verdict, reason), []).append((job, remark))
        self.groups = list(groups.values())


def _shared_status(backend: Backend, loop: tuple[Snapshot, Plan]) -> SharedStatus:
    snapshot, plan = loop
    held = backend.reader.drained_slots() if snapshot.drained_slots else ()
    hold = _hold_event(backend, snapshot.paused) if snapshot.paused else None
    return SharedStatus(snapshot, plan, backend.precedence(), held, hold)


def status_view(
    facts: DaemonInfo,
    latest: tuple[Snapshot, Plan] | None,
    caller: Caller,
    now: float,
    data: StageStatusView | None = None,
    held_staging_alarms: Sequence[str] = (),
    shared: SharedStatus | None = None,
) -> StatusView:
    """Everything at a glance; without others' jobs for those who may not see them. ``shared``: that of ``latest``."""
    snapshot, plan = latest or (Snapshot(now, facts.cluster, {}, Unavailable(NOT_READ_YET, 0.0), {}, ()), Plan())
    shared = shared or SharedStatus(snapshot, plan, UNDISTURBED)
    return StatusView(
        now=now,
        seen=snapshot.now if latest else None,
        you=CallerView.from_fields(caller),
        alarms=current_alarms(facts, latest, now, admin=caller.admin, held_staging_alarms=held_staging_alarms),
        daemon=DaemonView.from_fields(
            facts,
            since=facts.started,
            up_s=round(now - facts.started, 3),
            paused=snapshot.paused,
            paused_by=shared.hold.cause.removeprefix("user:") if shared.hold is not None else "",
            paused_since=shared.hold.time if shared.hold is not None else None,
        ),
        slurm=_slurm_state(snapshot.slurm),
        providers=[
            provider_view(n, cloud, snapshot, facts.calls_in_flight) for n, cloud in sorted(snapshot.clouds.items())
        ],
        pools=shared.pools,
        cost_per_hour=current_cost_per_hour(snapshot),
        idle_gpus=_idle_gpus(plan),
        waiting=_waiting(shared, caller),
        data=data,
        projects=_projects(snapshot, plan),
        policies=[PolicyTimeView(name=name, took_s=round(took, 6)) for name, took in facts.policy_durations_s.items()],
    )


def _idle_gpus(plan: Plan) -> IdleGpusView | None:
    if not plan.idle_gpus:
        return None
    return IdleGpusView(
        jobs=len(plan.idle_gpus),
        gpus=sum(idle.idle for idle in plan.idle_gpus),
        cost_per_hour=sum_by_currency(
            (amount, currency) for idle in plan.idle_gpus for currency, amount in idle.cost_per_hour
        ),
    )


def _projects(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Those first that have not got their share."""
    projects, shares = snapshot.projects.projects, plan.target.shares
    return [project_text(projects[n], projects, shares) for n in sorted(shares, key=lambda n: (-shares[n].missing, n))]


def shape_text(shape: Shape) -> str:
    """A shape as a person writes it: ``8 CPUs, 64 GiB, gpu:a100:2``."""
    cpus = f"{shape.cpus} CPU{'s' if shape.cpus != 1 else ''}"
    return ", ".join([cpus, memory_text(shape.memory_mib), *map(str, shape.gres)])


def cost_per_hour(claims: Iterable[Claim], still_paid: Collection[str]) -> list[Money]:
    """What the claims cost in an hour as it is now, a sum a currency: those that are billed and not at their end.

    ``still_paid``: ids of claims that are paid for after their end.
    """
    return sum_by_currency((c.offer.price, c.offer.currency) for c in billed_now(claims, still_paid))


def current_cost_per_hour(snapshot: Snapshot) -> list[Money]:
    """That of all claims."""
    claims = (*snapshot.claims, *snapshot.storage_claims, *snapshot.quarantined_claims)
    return cost_per_hour(claims, snapshot.still_billed())


def last_remarks(remarks: Iterable[Remark]) -> dict[str, Remark]:
    """The last remark about each job, by the job's id: each link of the chain has the word after the one before."""
    return {r.subject.removeprefix("job:"): r for r in remarks if r.subject.startswith("job:")}


def current_alarms(
    facts: DaemonInfo,
    latest: tuple[Snapshot, Plan] | None,
    now: float,
    *,
    admin: bool,
    held_staging_alarms: Sequence[str] = (),
) -> list[str]:
    """Alarms. The daemon's own name jobs, users and paths, so only administrators see their text."""
    found = list(facts.alarms if admin else held_staging_alarms)
    if facts.alarms and not admin:
        found.append("burstd has an alarm; administrators see its text")
    if latest is None:
        if now - facts.started > STALE_S:
            found.append("burstd has not completed a loop since its start; see journalctl -u burstd")
        return found
    snapshot, plan = latest
    if now - snapshot.now > STALE_S:
        found.append(f"burstd completed its last loop {now - snapshot.now:.0f} s ago; see journalctl -u burstd")
    if isinstance(snapshot.slurm, Unavailable):
        found.append(f"Slurm cannot be read: {snapshot.slurm.error}")
    for name, cloud in sorted(snapshot.clouds.items()):
        if isinstance(cloud.instances, Unavailable):
            found.append(f"provider {name} cannot be read: {cloud.instances.error}")
        elif isinstance(cloud.offers, Unavailable):
            found.append(f"the offers of provider {name} cannot be read: {cloud.offers.error}")
    # The error text comes from foreign code and may name a job.
    found += [f"policy {f.name} failed{f': {f.error}' if admin else ''}" for f in plan.target.failed_policies]
    return list(dict.fromkeys(found))


def _slurm_state(slurm: SlurmView | Unavailable) -> SlurmStateView:
    if isinstance(slurm, Unavailable):
        return SlurmStateView(ok=False, error=slurm.error, last_known=slurm.since)
    return SlurmStateView(
        ok=True, last_known=slurm.read_at, version=slurm.version, nodes=len(slurm.nodes), jobs=len(slurm.jobs)
    )


def provider_view(name: str, cloud: CloudView, snapshot: Snapshot, calls: Mapping[str, int]) -> ProviderView:
    """One cloud at a glance."""
    bad = next((p for p in (cloud.instances, cloud.offers, cloud.leftovers) if isinstance(p, Unavailable)), None)
    instances = () if isinstance(cloud.instances, Unavailable) else cloud.instances
    return ProviderView(
        ok=bad is None,
        error=bad.error if bad else "",
        last_known=bad.since if bad else cloud.instances_listed,
        name=name,
        instances=dict(sorted(Counter(i.state.value for i in instances).items())),
        offers=0 if isinstance(cloud.offers, Unavailable) else len(cloud.offers),
        leftovers=len(stray_leftovers(snapshot, cloud)),
        calls=calls.get(name, 0),
        breakers=[BreakerView.from_fields(b) for b in open_breakers(snapshot) if b.key.partition("/")[0] == name],
        bad_places={
            place: str(record)
            for place, record in snapshot.places.items()
            if record.avoided and place.partition("/")[0] == name
        },
    )


def open_breakers(snapshot: Snapshot) -> list[CircuitBreaker]:
    """The circuit breakers that are open."""
    return [b for b in snapshot.breakers if b.until > snapshot.now]


def _pool(pool: Pool, snapshot: Snapshot, plan: Plan, held: Sequence[DrainedSlot]) -> PoolView:
    claims = [c for c in snapshot.claims if c.pool == pool.name]
    wanted = sum(w.nodes for w in plan.target.wants if w.pool == pool.name)
    released = sum(r.pool == pool.name for r in plan.target.releases)
    nodes = snapshot.slurm.nodes if isinstance(snapshot.slurm, SlurmView) else {}
    gpus = [g for c in claims if c.state is S.IN_SERVICE and c.slot in nodes for g in nodes[c.slot].shared_gpus]
    slots = frozenset(pool.slots)
    return _pool_view(
        pool,
        claims,
        Counter(claim_phase(claim, snapshot) for claim in claims),
        snapshot,
        shape=shape_text(pool.shape),
        free=len(snapshot.free_slots(pool)),
        held=sum(slot in snapshot.drained_slots for slot in pool.slots),
        holds=[
            SlotHoldView.from_fields(one, by=one.by.removeprefix("user:"))
            for one in sorted(held, key=lambda one: (one.since, one.slot))
            if one.slot in slots
        ],
        shards=sum(gpu.shards for gpu in gpus),
        free_shards=sum(gpu.free for gpu in gpus),
        wanted=sum(c.state in USABLE for c in claims) + wanted - released,
        pins=[PinView.from_fields(p, by=p.by.removeprefix("user:")) for p in snapshot.pins if p.pool == pool.name],
    )


def _storage_pool(node: StorageNodeView, snapshot: Snapshot) -> PoolView:
    """The storage node of a store, shown as a pool of one node that Slurm does not know."""
    claims = [c for c in snapshot.storage_claims if c.pool == node.pool.name]
    needed = bool(node.keep_reason or node.start_reason)
    phases = Counter("idle" if c.state is S.IN_SERVICE and not needed else claim_phase(c, snapshot) for c in claims)
    return _pool_view(
        node.pool,
        claims,
        phases,
        snapshot,
        partitions=(),
        shape="storage node",
        free=len(node.pool.slots) - len(claims),
        held=0,
        wanted=int(needed),
        pins=[],
    )


def _pool_view(
    pool: Pool, claims: Sequence[Claim], phases: Counter[str], snapshot: Snapshot, **others: object
) -> PoolView:
    counts = {name: phases[name] for name in CLAIM_PHASES}
    return PoolView.from_fields(
        pool,
        slots=len(pool.slots),
        open=phases["busy"] + phases["idle"],
        breakers=[BreakerView.from_fields(b) for b in open_breakers(snapshot) if _affects_pool(b, pool, snapshot)],
        cost_per_hour=cost_per_hour(claims, snapshot.still_billed()),
        **counts,
        **others,
    )


def _affects_pool(breaker: CircuitBreaker, pool: Pool, snapshot: Snapshot) -> bool:
    """True where the open breaker blocks an offer that the pool's rules name, as far as the offers are known."""
    provider = breaker.key.partition("/")[0]
    rules = [rule for rule in pool.rules if rule.provider == provider]
    cloud = snapshot.clouds.get(provider)
    if not rules or cloud is None or isinstance(cloud.offers, Unavailable):
        return bool(rules)
    # A breaker blocks exactly the offers whose success would close it.
    return any(
        breakers_closed_by((breaker,), offer, ready=ready, pool=pool.name)
        for offer in cloud.offers
        if any(rule.allows(offer) for rule in rules)
        for ready in (False, True)
    )


def _waiting(shared: SharedStatus, caller: Caller) -> WaitingView:
    groups = shared.groups
    if not caller.admin:
        groups = [own for group in groups if (own := [one for one in group if caller.can_see_user(one[0].user)])]
    ranked = sorted(groups, key=lambda g: -len(g))
    return WaitingView(
        jobs=len(shared.waiting),
        tasks=shared.tasks,
        verdicts=shared.verdicts,
        groups=[
            WaitingGroup(
                verdict=group[0][1].verdict,
                reason=group[0][1].reason,
                jobs=len(group),
                tasks=sum(job.tasks for job, _ in group),
                examples=[job.id for job, _ in group[:_MAX_EXAMPLES]],
            )
            for group in ranked[:_MAX_GROUPS]
        ],
        more_groups=max(0, len(ranked) - _MAX_GROUPS),
    )
