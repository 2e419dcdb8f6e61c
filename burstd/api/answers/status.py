"""What ``burstctl status`` shows, from the last loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from burstd.api.answers.money import cost_per_hour
from burstd.api.answers.types import (
    BreakerView,
    CallerView,
    DaemonView,
    PinView,
    PolicyTimeView,
    PoolView,
    ProviderView,
    SlurmStateView,
    StageStatusView,
    StatusView,
    WaitingGroup,
    WaitingView,
    utc_datetime,
    utc_datetime_or_none,
)
from burstd.api.auth import Caller
from burstd.api.backend import DaemonInfo
from burstd.domain.claim import USABLE, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import CircuitBreaker, CloudView, SlurmView, Snapshot, Unavailable
from burstd.domain.storage_node import StorageNodeView
from burstd.domain.units import memory_text
from burstd.planner.offers.offers import breakers_closed_by

STALE_S = 120.0
"""A last loop older than this is an alarm: the slowest tick is far shorter."""
_MAX_GROUPS = 12
_MAX_EXAMPLES = 5
_DIGITS = re.compile(r"\d+")
_BOOTING = frozenset({S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING})


def status_view(
    facts: DaemonInfo,
    latest: tuple[Snapshot, Plan] | None,
    caller: Caller,
    now: float,
    data: StageStatusView | None = None,
    held_staging_alarms: Sequence[str] = (),
) -> StatusView:
    """Everything at a glance; without others' jobs for those who may not see them. ``held``: see ``held_alarms``."""
    snapshot, plan = latest or (Snapshot(now, facts.cluster, {}, Unavailable("not read yet", 0.0), {}, ()), Plan())
    return StatusView(
        now=utc_datetime(now),
        seen=utc_datetime(snapshot.now) if latest else None,
        you=CallerView(user=caller.user, admin=caller.admin),
        alarms=_alarms(facts, latest, caller, held_staging_alarms, now),
        daemon=DaemonView(
            version=facts.version,
            cluster=facts.cluster,
            since=utc_datetime(facts.started),
            up_s=round(now - facts.started, 3),
            settings=facts.settings,
            paused=snapshot.paused,
        ),
        slurm=_slurm_state(snapshot.slurm, facts.slurm_version),
        providers=[
            provider_view(n, cloud, snapshot, facts.calls_in_flight) for n, cloud in sorted(snapshot.clouds.items())
        ],
        pools=[
            *(_pool(pool, snapshot, plan) for pool in snapshot.pools.values()),
            *(_storage_pool(node, snapshot) for node in snapshot.storage_nodes),
        ],
        cost_per_hour=cost_per_hour(
            (*snapshot.claims, *snapshot.storage_claims, *snapshot.quarantined_claims), snapshot.still_billed()
        ),
        waiting=_waiting(snapshot, plan, caller),
        data=data,
        policies=[PolicyTimeView(name=name, took_s=round(took, 6)) for name, took in facts.policy_durations_s.items()],
    )


def shape_text(shape: Shape) -> str:
    """A shape as a person writes it: ``8 CPUs, 64 GiB, gpu:a100:2``."""
    cpus = f"{shape.cpus} CPU{'s' if shape.cpus != 1 else ''}"
    return ", ".join([cpus, memory_text(shape.memory_mib), *map(str, shape.gres)])


def last_remarks(remarks: Sequence[Remark]) -> dict[str, Remark]:
    """The last remark about each job, by the job's id: each link of the chain has the word after the one before."""
    return {r.subject.removeprefix("job:"): r for r in remarks if r.subject.startswith("job:")}


def _alarms(
    facts: DaemonInfo,
    latest: tuple[Snapshot, Plan] | None,
    caller: Caller,
    held_staging_alarms: Sequence[str],
    now: float,
) -> list[str]:
    """Alarms. The daemon's own name jobs, users and paths, so only administrators see their text."""
    found = list(facts.alarms if caller.admin else held_staging_alarms)
    if facts.alarms and not caller.admin:
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
    found += [f"policy {f.name} failed{f': {f.error}' if caller.admin else ''}" for f in plan.target.failed_policies]
    return list(dict.fromkeys(found))


def _slurm_state(slurm: SlurmView | Unavailable, version: str) -> SlurmStateView:
    if isinstance(slurm, Unavailable):
        return SlurmStateView(
            ok=False, error=slurm.error, last_known=utc_datetime_or_none(slurm.since), version=version
        )
    return SlurmStateView(
        ok=True,
        last_known=utc_datetime_or_none(slurm.read_at),
        version=version,
        nodes=len(slurm.nodes),
        jobs=len(slurm.jobs),
    )


def provider_view(name: str, cloud: CloudView, snapshot: Snapshot, calls: Mapping[str, int]) -> ProviderView:
    """One cloud at a glance."""
    bad = next((p for p in (cloud.instances, cloud.offers, cloud.leftovers) if isinstance(p, Unavailable)), None)
    instances = () if isinstance(cloud.instances, Unavailable) else cloud.instances
    return ProviderView(
        ok=bad is None,
        error=bad.error if bad else "",
        last_known=utc_datetime_or_none(bad.since if bad else cloud.instances_listed),
        name=name,
        instances=dict(sorted(Counter(i.state.value for i in instances).items())),
        offers=0 if isinstance(cloud.offers, Unavailable) else len(cloud.offers),
        leftovers=0 if isinstance(cloud.leftovers, Unavailable) else len(cloud.leftovers),
        calls=calls.get(name, 0),
        breakers=[breaker_view(b) for b in open_breakers(snapshot) if b.key.partition("/")[0] == name],
    )


def open_breakers(snapshot: Snapshot) -> list[CircuitBreaker]:
    """The circuit breakers that are open."""
    return [b for b in snapshot.breakers if b.until > snapshot.now]


def breaker_view(breaker: CircuitBreaker) -> BreakerView:
    """A circuit breaker in an answer."""
    return BreakerView(
        key=breaker.key,
        cause=breaker.cause,
        failures=breaker.failures,
        until=utc_datetime(breaker.until),
        error=breaker.error,
    )


def _pool(pool: Pool, snapshot: Snapshot, plan: Plan) -> PoolView:
    claims = [c for c in snapshot.claims if c.pool == pool.name]
    phases = Counter(_claim_phase(claim, snapshot) for claim in claims)
    usable = sum(c.state in USABLE for c in claims)
    wanted = sum(w.nodes for w in plan.target.wants if w.pool == pool.name)
    released = sum(r.pool == pool.name for r in plan.target.releases)
    return PoolView(
        name=pool.name,
        partitions=list(pool.partitions),
        shape=shape_text(pool.shape),
        slots=len(pool.slots),
        free=len(snapshot.free_slots(pool)),
        held=sum(slot in snapshot.drained_slots for slot in pool.slots),
        wanted=usable + wanted - released,
        booting=phases["booting"],
        ready=phases["ready"],
        open=phases["busy"] + phases["idle"],
        busy=phases["busy"],
        idle=phases["idle"],
        leaving=phases["leaving"],
        failed=phases["failed"],
        pins=[
            PinView(kind=p.kind, nodes=p.nodes, until=utc_datetime_or_none(p.until), by=p.by.removeprefix("user:"),
                    created=utc_datetime(p.created))
            for p in snapshot.pins if p.pool == pool.name
        ],
        breakers=[breaker_view(b) for b in open_breakers(snapshot) if _affects_pool(b, pool, snapshot)],
        cost_per_hour=cost_per_hour(claims, snapshot.still_billed()),
    )  # fmt: skip


def _storage_pool(node: StorageNodeView, snapshot: Snapshot) -> PoolView:
    """The storage node of a store, shown as a pool of one node that Slurm does not know."""
    claims = [c for c in snapshot.storage_claims if c.pool == node.pool.name]
    phases = Counter(
        "idle" if c.state is S.IN_SERVICE and not node.keep_reason + node.start_reason else _claim_phase(c, snapshot)
        for c in claims
    )
    return PoolView(
        name=node.pool.name,
        partitions=[],
        shape="storage node",
        slots=len(node.pool.slots),
        free=len(node.pool.slots) - len(claims),
        held=0,
        wanted=int(bool(node.keep_reason or node.start_reason)),
        booting=phases["booting"],
        ready=phases["ready"],
        open=phases["busy"] + phases["idle"],
        busy=phases["busy"],
        idle=phases["idle"],
        leaving=phases["leaving"],
        failed=phases["failed"],
        pins=[],
        breakers=[breaker_view(b) for b in open_breakers(snapshot) if _affects_pool(b, node.pool, snapshot)],
        cost_per_hour=cost_per_hour(claims, snapshot.still_billed()),
    )


def _claim_phase(claim: Claim, snapshot: Snapshot) -> str:
    if claim.state in _BOOTING:
        return "booting"
    if claim.state is S.READY:
        return "ready"
    if claim.state is S.IN_SERVICE:
        node = snapshot.slurm.nodes.get(claim.slot) if isinstance(snapshot.slurm, SlurmView) else None
        return "busy" if node is None or node.busy else "idle"
    # A claim keeps its error until it is gone.
    return "failed" if claim.state is S.FAILED or claim.error else "leaving"


def _affects_pool(breaker: CircuitBreaker, pool: Pool, snapshot: Snapshot) -> bool:
    """True where the open breaker blocks an offer that the pool's rules name, as far as the offers are known."""
    provider = breaker.key.partition("/")[0]
    rules = [rule for rule in pool.rules if rule.provider == provider]
    cloud = snapshot.clouds.get(provider)
    if not rules or cloud is None or isinstance(cloud.offers, Unavailable):
        return bool(rules)
    # A breaker blocks exactly the offers whose success would close it.
    return any(
        breakers_closed_by((breaker,), offer, ready=ready)
        for offer in cloud.offers
        if any(rule.allows(offer) for rule in rules)
        for ready in (False, True)
    )


def _waiting(snapshot: Snapshot, plan: Plan, caller: Caller) -> WaitingView:
    last_remark = last_remarks(plan.remarks)
    jobs = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
    decided = [(job, last_remark[job.id]) for job in jobs if job.id in last_remark]
    groups: dict[tuple[str, str], list[tuple[Job, Remark]]] = {}
    normalized: dict[str, str] = {}
    for job, remark in decided:
        if caller.can_see_user(job.user):
            # Reasons that differ only in numbers and node names are one to a person. Thousands of jobs share one.
            normalized_reason = normalized.get(remark.reason) or normalized.setdefault(
                remark.reason, _DIGITS.sub("#", remark.reason)
            )
            groups.setdefault((remark.verdict, normalized_reason), []).append((job, remark))
    ranked = sorted(groups.values(), key=lambda g: -len(g))
    return WaitingView(
        jobs=len(decided),
        tasks=sum(job.tasks for job, _ in decided),
        verdicts=dict(sorted(Counter(remark.verdict for _, remark in decided).items())),
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
