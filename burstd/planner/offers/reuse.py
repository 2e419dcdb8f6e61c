"""Idle machines of one pool that become nodes of another, where a machine would be launched otherwise.

The claim stays the machine's, so that tags, host key and ownership hold. It is drained like any other; once its node is
proven idle, the machine passes to a slot of the other pool instead of being terminated, and is validated anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from statistics import median

from burstd.domain.billing.costs import cost_of
from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import InstanceState
from burstd.domain.cloud.offer import Pool
from burstd.domain.plan import HandOver
from burstd.domain.plugins.policy import NodeRelease, Remark, Target, Want
from burstd.domain.slurm.job import Job, JobState, users_and_accounts
from burstd.domain.snapshot import CircuitBreaker, Snapshot
from burstd.planner.lifecycle.spot_notices import closing_error
from burstd.planner.offers.image_rollout import image_for
from burstd.planner.offers.offers import configured_image, extended_breaker
from burstd.planner.offers.planned_claim import planned_claim
from burstd.planner.snapshot_view import SnapshotView, is_on
from burstd.planner.staging.input_deadlines import boot_durations

CAUSE = "reuse"
"""Cause of the breaker that is open after a machine that was handed over did not become a node."""
FIRST_BACKOFF_S = 600.0
MAX_BACKOFF_S = 86400.0
MAX_DRAIN_S = 60.0
"""A machine whose node is not proven idle after so long in DRAINING is waited for no longer: another is launched."""
_STARTED = frozenset({JobState.CONFIGURING, JobState.RUNNING})


def breaker_key(pool: str) -> str:
    """Of the breaker for machines that are handed over to a pool. Its two parts never cover an offer."""
    return f"reuse/{pool.replace('/', '%2F')}"


def next_breaker(known: CircuitBreaker | None, claim: Claim, now: float, error: str) -> CircuitBreaker:
    """The breaker of the claim's pool after one more failure; ``known``: the one that there is."""
    return extended_breaker(known, breaker_key(claim.pool), CAUSE, FIRST_BACKOFF_S, MAX_BACKOFF_S, now, error)


def plan_reuse(view: SnapshotView, target: Target) -> tuple[Target, Mapping[str, HandOver]]:
    """The target with machines of other pools in place of new ones, and by claim where those go once they are idle.

    Their wants are taken away, and those that are open are released. What is DRAINING anyway is taken first.
    """
    snapshot = view.snapshot
    takers = {name for name, pool in snapshot.pools.items() if pool.reuse_from and not _is_barred(name, snapshot)}
    wants = [want for want in target.wants if want.pool in takers and _may_be_met(want, snapshot)]
    if not wants or view.slurm is None:
        return target, {}
    let_go = {release.claim_id for release in (*target.releases, *target.reusable)}
    with_data = {name for data in snapshot.data.values() for name in data.nodes}
    sources = {source for name in takers for source in snapshot.pools[name].reuse_from}
    idle = [c for c in snapshot.claims if c.pool in sources and _may_go(c, view, let_go, with_data)]
    idle.sort(key=lambda claim: (claim.state is not S.DRAINING, claim.id not in {r.claim_id for r in target.releases}))
    handovers: dict[str, HandOver] = {}
    met: set[int] = set()
    remarks: list[Remark] = []
    for want in wants:
        claim = next((c for c in idle if c.id not in handovers and _serves(c, want, snapshot)), None)
        if claim is None:
            continue
        image = image_for(snapshot, snapshot.pools[want.pool], claim.offer)
        onward = planned_claim(want, want.slots[0], claim.offer, snapshot.cluster, view.now, image)
        text = _handover_text(claim, want, snapshot)
        handovers[claim.id] = HandOver(claim.id, replace(onward, reason=f"for {want.reason}: {text}"))
        met.add(id(want))
        remarks += [Remark("reuse", f"job:{job}", "covered", text) for job in want.jobs]
    if not handovers:
        return target, {}
    released = {release.claim_id for release in target.releases}
    releases = [
        NodeRelease(c.id, c.pool, f"its machine is handed over to pool {handovers[c.id].claim.pool}")
        for c in idle
        if c.id in handovers and c.id not in released and c.state is S.IN_SERVICE
    ]
    left = tuple(want for want in target.wants if id(want) not in met)
    changed = replace(target, wants=left, releases=(*target.releases, *releases), remarks=(*target.remarks, *remarks))
    return changed, handovers


def _is_barred(pool: str, snapshot: Snapshot) -> bool:
    key = breaker_key(pool)
    return any(b.key == key and b.cause == CAUSE and b.until > snapshot.now for b in snapshot.breakers)


def _may_be_met(want: Want, snapshot: Snapshot) -> bool:
    """One machine for jobs that wait. Gangs and jobs with a volume get machines of their own."""
    return (
        want.cause is Cause.DEMAND
        and bool(want.jobs and want.offers)
        and not want.gang
        and len(want.slots) == 1
        and snapshot.volume_needs.keys().isdisjoint(want.jobs)
    )


def _may_go(claim: Claim, view: SnapshotView, let_go: Collection[str], with_data: Collection[str]) -> bool:
    """Whether nothing holds the machine where it is: no job, data, volume, budget, notice or doubt."""
    snapshot, progress, node = view.snapshot, view.snapshot.runtime_state, view.node(claim.slot)
    draining = claim.state is S.DRAINING and view.now - claim.since <= MAX_DRAIN_S and not closing_error(claim.reason)
    if not (draining or (claim.state is S.IN_SERVICE and claim.id in let_go)) or claim.error:
        return False
    if claim.reserved or claim.dedicated_by_policy or (claim.gang and view.job(claim.gang) is not None):
        return False
    if node is None or node.busy or node.drained or node.state == "DOWN" or claim.slot in snapshot.drained_slots:
        return False
    if claim.state is S.IN_SERVICE and not is_on(node):
        return False
    cloud, instance = view.cloud(claim), view.by_claim.get(claim.id)
    if cloud is None or not cloud.machines_outlive_nodes or claim.offer.provider in view.doubted:
        return False
    if instance is None or instance.state is not InstanceState.RUNNING or claim.id in progress.missing_sightings:
        return False
    return not (
        claim.billed_from is None
        or claim.billed_until is not None
        or claim.id in snapshot.claims_with_volume
        or claim.id in progress.notices
        or claim.slot in with_data
        or view.notice(claim.slot) is not None
        or any(claim.slot in nodes for nodes in snapshot.bound.values())
    )


def _serves(claim: Claim, want: Want, snapshot: Snapshot) -> bool:
    """Whether the machine is one that would be launched for the want, and costs no more than the one that would be."""
    pool, first, own = snapshot.pools[want.pool], want.offers[0], claim.offer
    if claim.pool not in pool.reuse_from or not any(own.id == offer.id for offer in want.offers):
        return False
    if snapshot.rates.dearer(own, first) is not False or (own.spot and not first.spot):
        return False
    before = snapshot.pools[claim.pool]
    if pool.fabric not in ("", before.fabric):
        # What a machine has of a fabric it has from its launch.
        return False
    same_word = configured_image(before, own) == configured_image(pool, own)
    return same_word and claim.image == image_for(snapshot, pool, own)


def _handover_text(claim: Claim, want: Want, snapshot: Snapshot) -> str:
    """What is done, and how it compares with a new machine, as far as that was measured."""
    text = f"node {want.slots[0]} is machine {claim.slot} of pool {claim.pool}, handed over"
    every = (*snapshot.claims, *(ended.claim for ended in snapshot.ended_claims))
    handed = [
        c.in_service_from - c.created
        for c in every
        if c.pool == want.pool and c.reused_from and c.in_service_from is not None
    ]
    boots = boot_durations(snapshot)
    boot = boots.get(want.pool) or boots.get(claim.pool)
    if not boot:
        return text
    new, first = median(boot), want.offers[0]
    if not handed:
        return f"{text} instead of a boot of about {new:.0f} s ({cost_of(first.price, new):.2f} {first.currency})"
    soon = median(handed)
    text = f"{text}: ready in about {soon:.0f} s instead of {new:.0f} s"
    if claim.offer.currency != first.currency:
        return text
    saved = max(cost_of(first.price, new) - cost_of(claim.offer.price, soon), Decimal(0))
    return f"{text}, saves {saved:.2f} {first.currency}"


def sources_of(pool: str, pools: Mapping[str, Pool]) -> frozenset[str]:
    """The pools from which a machine may have come to this one, over others as well."""
    found: set[str] = set()
    left = [pool]
    while left:
        more = set(pools[name].reuse_from if (name := left.pop()) in pools else ()) - found
        found |= more
        left += more
    return frozenset(found)


def handover_on_record(claim: Claim, view: SnapshotView) -> HandOver | None:
    """The handover that an older copy of the record lacks: Slurm has the claim's machine as a node of another pool."""
    if view.slurm is None or not claim.address or is_on(view.node(claim.slot)):
        return None
    slot = view.nodes_on().get(claim.address, "")
    pool = view.snapshot.pool_of(slot) if slot not in ("", claim.slot, claim.reused_from) else None
    if pool is None or slot in view.claimed or claim.pool not in sources_of(pool.name, view.snapshot.pools):
        return None
    jobs = started_on(slot, view.slurm.jobs)
    users, accounts = users_and_accounts(jobs)
    reason = f"Slurm has the machine of {claim.slot} as {slot}: the record is older than its handover"
    onward = replace(
        claim, pool=pool.name, slot=slot, cause=Cause.DEMAND, reason=reason, gang="", reserved=Decimal(0),
        egress=Decimal(0), dedicated_by_policy=False, jobs=tuple(job.id for job in jobs), users=users,
        accounts=accounts,
    )  # fmt: skip
    return HandOver(claim.id, onward, is_done=True)


def started_on(slot: str, jobs: Iterable[Job]) -> list[Job]:
    """Jobs that Slurm has put on a node."""
    return [job for job in jobs if job.state in _STARTED and slot in job.node_list]
