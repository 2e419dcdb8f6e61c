"""The gate: which ready nodes are opened, bound to one job, or closed, and what the reservation shall hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import Action, BindJob, ChangeClaimState, SetGate, UnbindJob
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.demand.requeued_jobs import interruptions_over_limit, restarts_after_interruption
from burstd.planner.demand.stuck_jobs import placements_of_whole_gangs
from burstd.planner.lifecycle.fabric_tests import fabric_test_steps
from burstd.planner.lifecycle.interruption import notice_drain_reason
from burstd.planner.offers.dedicated import (
    Binder,
    dedicated_drain_reason,
    gang_timeout_reason,
    opens_to_all,
    ready_too_late,
    reserve_used_up,
)
from burstd.planner.offers.offers import TOO_LATE
from burstd.planner.snapshot_view import WAITING, SnapshotView
from burstd.planner.timeouts import Tuning

RENEW_S = 180 * 86400.0
"""Slurm ends every reservation within a year: the gate is renewed when less than this is left of it."""


def gate_steps(
    view: SnapshotView, target: Target, tuning: Tuning, moving: frozenset[str] = frozenset()
) -> list[Action]:
    """Openings, bindings and closings, in one update of the reservation where it changes at all.

    Claims in ``moving`` change their state by another step of the same plan.
    """
    if view.slurm is None:
        return []
    bound = view.snapshot.bound
    unbinds, freed = _unbinds(view, tuning)
    binds: list[Action] = []
    into_service: list[Claim] = []
    tests, untested = fabric_test_steps(
        view, lambda claim: claim.id not in moving and _usable(claim, view), tuning.gang_timeout_s
    )
    groups = [group for group in _ready_groups(view, tuning, moving) if untested.isdisjoint(c.id for c in group[0])]
    ahead = _queue_position(view)
    binder = Binder(view, placements_of_whole_gangs(target))
    dedicated = [claim for claim in view.snapshot.claims if claim.dedicated]
    gang_binds = list(
        binder.bind_gangs(
            [c for c in dedicated if _takes_jobs(c, view) and c.id not in moving and c.id not in untested]
        )
    )
    binding = {slot for bind in gang_binds for slot in bind.nodes}
    for claims, job in groups:
        if any(claim.dedicated for claim in claims):
            claims = [claim for claim in claims if claim.slot not in binding]  # noqa: PLW2901
            more = _dedicated_steps(claims, job, binder, tuning)
            binds += more
            into_service += claims if not more and all(opens_to_all(claim, view) for claim in claims) else []
            continue
        # A binding that was broken off half-way has the nodes and not the job: it is made again.
        unbound = job is not None and not (job.id in bound and job.reservation)
        refused = job is not None and job.id in view.snapshot.runtime_state.unbindable
        often_interrupted = job is not None and _is_often_interrupted(job, claims, view, tuning)
        if (
            job is not None
            and unbound
            and not refused
            and (often_interrupted or _needs_binding(job, len(claims), ahead, tuning))
        ):
            slots = tuple(c.slot for c in claims)
            reason = f"booted for job {job.id} alone"
            binds.append(BindJob(job.id, job.user, tuple(c.id for c in claims), slots, reason))
        else:
            into_service += claims
    to_drain, drain_reasons = _claims_to_drain(view, target, moving, tuning, binding)
    draining_slots = {c.slot for c in to_drain}
    binds += [bind for bind in gang_binds if draining_slots.isdisjoint(bind.nodes)]
    for claim in dedicated:
        if claim.state is S.IN_SERVICE and claim.slot not in draining_slots and claim.id not in moving:
            binds += binder.bind_actions(claim)
    # Bound nodes stay behind the gate: only the job that they are bound to gets past it.
    bound_slots = {slot for job_id, slots in bound.items() if job_id not in freed for slot in slots}
    not_admitting = bound_slots | draining_slots
    outside_gate = {
        c.slot
        for c in view.snapshot.claims
        if c.state is S.IN_SERVICE and c.slot not in not_admitting and _admits_unbound_jobs(c, view)
    }
    outside_gate |= {c.slot for c in into_service}
    # Slots of a pool that was taken out of the settings stay shut: nobody would serve what Slurm starts there.
    orphaned = {slot for slot in view.gated - view.slots if view.slurm.nodes.get(slot) is not None}
    desired = (view.slots - outside_gate) | orphaned
    changes: list[Action] = []
    if desired != view.gated or into_service or to_drain or (desired and view.gate_ends - view.now < RENEW_S):
        why = (*("validated and wanted" for _ in into_service), *drain_reasons)
        change_text = _gate_change_text(into_service, to_drain) or "the reservation differs from the record"
        changes = [SetGate(desired, change_text, tuple(c.id for c in into_service), tuple(c.id for c in to_drain), why)]
    return [*changes, *unbinds, *binds, *tests]


def _admits_unbound_jobs(claim: Claim, view: SnapshotView) -> bool:
    """Whether an open node lets jobs in that are not bound to it."""
    return not (claim.reserved or claim.dedicated_by_policy) or (
        (not claim.dedicated or opens_to_all(claim, view)) and not reserve_used_up(claim, view.now)
    )


def _dedicated_steps(claims: list[Claim], job: Job | None, binder: Binder, tuning: Tuning) -> list[Action]:
    if claims and not claims[0].gang:
        return [*binder.bind_actions(claims[0])]
    if job is not None and job.het_job_id:
        return [*binder.bind_components(claims)]
    return [
        ChangeClaimState(claim.id, S.READY, S.DRAINING, reason)
        for claim in claims
        if (reason := gang_timeout_reason(claim, binder.view, tuning.gang_timeout_s))
    ]


def _gate_change_text(into_service: list[Claim], to_drain: list[Claim]) -> str:
    verbs = (("open", into_service), ("close", to_drain))
    return "; ".join(f"{verb} {', '.join(c.slot for c in claims)}" for verb, claims in verbs if claims)


def _ready_groups(view: SnapshotView, tuning: Tuning, moving: frozenset[str]) -> list[tuple[list[Claim], Job | None]]:
    """Claims to be opened now, in groups that open together, each with the pending job that may be bound to it."""
    gangs: dict[str, list[Claim]] = {}
    groups: list[tuple[list[Claim], Job | None]] = []
    for claim in view.snapshot.claims:
        if claim.gang and claim.state in (S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY):
            gangs.setdefault(claim.gang, []).append(claim)
        elif claim.state is S.READY and claim.id not in moving and _usable(claim, view):
            groups.append(([claim], next((view.job(j) for j in claim.jobs if view.is_waiting(j)), None)))
    broken = {c.gang for c in view.snapshot.claims if c.gang and c.state in (S.FAILED, S.LOST, S.TERMINATING)}
    for gang, members in gangs.items():
        # One that becomes ready in this very plan is a member that is still missed.
        ready = [c for c in members if c.state is S.READY and c.id not in moving and _usable(c, view)]
        if not ready:
            continue
        job = view.job(gang) if view.is_waiting(gang) else None
        enough = job is not None and len(ready) >= job.nodes
        # One that failed is being replaced; the others wait for it behind the gate.
        whole = len(ready) == len(members) and (enough or gang not in broken)
        waited = max(view.now - c.since for c in ready)
        if job is None or whole or waited > tuning.gang_timeout_s:
            groups.append((ready, job if enough else None))
    return groups


def _usable(claim: Claim, view: SnapshotView) -> bool:
    node = view.node(claim.slot)
    return node is not None and node.up and claim.slot not in view.snapshot.drained_slots


def _takes_jobs(claim: Claim, view: SnapshotView) -> bool:
    return (claim.state is S.READY or claim.state is S.IN_SERVICE) and _usable(claim, view)


def _needs_binding(job: Job, nodes: int, ahead: Callable[[Job], int], tuning: Tuning) -> bool:
    """A multi-node job among small ones, and a job deep in the queue, would lose the nodes or wait for them.

    Slurm's main loop looks at default_queue_depth jobs only. An array is left to Slurm: binding would split it.
    """
    if job.array_tasks or job.reservation or job.het_job_id:
        return False
    return nodes > 1 or ahead(job) > tuning.bind_depth


def _is_often_interrupted(job: Job, claims: list[Claim], view: SnapshotView, tuning: Tuning) -> bool:
    """A machine on demand for one job that has lost spot machines: newer jobs would take it while Slurm keeps it."""
    if job.array_tasks or job.reservation or job.het_job_id:
        return False
    if any(claim.offer.spot or any(j != job.id and view.is_waiting(j) for j in claim.jobs) for claim in claims):
        return False
    return bool(interruptions_over_limit(view.snapshot, [job.id], tuning.spot_interruptions))


def _queue_position(view: SnapshotView) -> Callable[[Job], int]:
    """Tells how many pending rows of the queue stand before a job, by priority, then by time."""
    order: list[tuple[int, float]] = []

    def ahead(job: Job) -> int:
        # Most decisions open nothing, and the queue may be long.
        if not order:
            jobs = view.slurm.jobs if view.slurm else ()
            order.extend(sorted([(-j.priority, j.submitted) for j in jobs if j.state in WAITING]))
        return bisect_left(order, (-job.priority, job.submitted))

    return ahead


def _unbinds(view: SnapshotView, tuning: Tuning) -> tuple[list[Action], set[str]]:
    """Bindings that have done their work, and the jobs whose nodes are free of them."""
    unbinds: list[Action] = []
    freed: set[str] = set()
    if not view.snapshot.bound:
        return unbinds, freed
    draining_slots = {claim.slot for claim in view.snapshot.claims if claim.state is S.DRAINING}
    for job_id, nodes in view.snapshot.bound.items():
        since = max(view.snapshot.runtime_state.bound_since.get(job_id, view.now), _earliest_start(view, job_id))
        if not view.is_waiting(job_id):
            unbinds.append(UnbindJob(job_id, "the job runs or is gone"))
        elif draining_slots & nodes:
            unbinds.append(UnbindJob(job_id, f"its node {', '.join(sorted(draining_slots & nodes))} is draining"))
        elif _has_nodes(view, job_id):
            # Its nodes are its own already: it is CONFIGURING while its input is brought to them.
            continue
        elif view.now - since > tuning.bind_timeout_s:
            unbinds.append(UnbindJob(job_id, f"the job did not start within {tuning.bind_timeout_s:.0f} s"))
        else:
            continue
        freed.add(job_id)
    return unbinds, freed


def _earliest_start(view: SnapshotView, job_id: str) -> float:
    """When Slurm lets a job that was requeued start again, or did so; 0 for any other job."""
    job = view.job(job_id)
    if job is None or job.restarts - 1 not in view.snapshot.interruptions.get(job_id, ()):
        return 0.0
    return job.eligible if restarts_after_interruption(job, view.snapshot) else min(job.eligible, view.now)


def _has_nodes(view: SnapshotView, job_id: str) -> bool:
    job = view.job(job_id)
    return job is not None and job.state is JobState.CONFIGURING


def _claims_to_drain(
    view: SnapshotView, target: Target, moving: frozenset[str], tuning: Tuning, binding: Collection[str]
) -> tuple[list[Claim], list[str]]:
    """Open or ready claims to bring back behind the gate: released, held, taken back, or dead in Slurm.

    ``binding``: slots whose gang is whole now.
    """
    released = {r.claim_id: r.reason for r in target.releases}
    touched = view.snapshot.drained_slots | view.notices().keys()
    to_drain: list[Claim] = []
    reasons: list[str] = []
    for claim in view.snapshot.claims:
        if claim.state is not S.IN_SERVICE or claim.id in moving:
            continue
        node = view.node(claim.slot)
        is_affected = claim.id in released or claim.slot in touched or claim.pool not in view.snapshot.pools
        if not (
            is_affected
            or claim.reserved
            or claim.dedicated_by_policy
            or (node is not None and (node.state == "DOWN" or node.powered_down))
        ):
            # Of most there is nothing to be said.
            continue
        if claim.slot in view.snapshot.drained_slots:
            reason = "held by an administrator"
        elif node is not None and node.state == "DOWN" and not node.busy:
            reason = f"down in Slurm ({node.reason or 'no reason given'})"
        elif node is not None and node.powered_down and not node.busy:
            reason = "powered down in Slurm"
        elif taken_back := notice_drain_reason(claim, view):
            reason = taken_back
        elif done := dedicated_drain_reason(claim, view):
            reason = done
        elif claim.slot not in binding and (late := gang_timeout_reason(claim, view, tuning.gang_timeout_s)):
            reason = late
        elif claim.id in released and not view.snapshot.paused:
            reason = released[claim.id]
        elif claim.pool not in view.snapshot.pools and not _is_busy(claim, view) and not view.snapshot.paused:
            reason = f"pool {claim.pool} is no longer configured"
        else:
            continue
        to_drain.append(claim)
        reasons.append(reason)
    return to_drain, reasons


def _is_busy(claim: Claim, view: SnapshotView) -> bool:
    node = view.node(claim.slot)
    return node is None or node.busy


def drain_unwanted_ready(view: SnapshotView, target: Target) -> list[Action]:
    """Ready claims that are not to be opened any more go to DRAINING at once: the gate still holds them."""
    released = {r.claim_id: r.reason for r in target.releases}
    moves: list[Action] = []
    for claim in view.snapshot.claims:
        if claim.state is not S.READY:
            continue
        if done := dedicated_drain_reason(claim, view):
            if claim.id not in view.retained and ready_too_late(claim, view):
                # A failure, so that its like is not booted again and again until the budget is gone.
                reason_text = f"{done}: it took longer than overhead_s of [policies.budget] to boot"
                moves.append(ChangeClaimState(claim.id, S.READY, S.FAILED, reason_text, error=TOO_LATE))
                continue
            reason = done
        elif claim.id in released or claim.slot in view.snapshot.drained_slots:
            reason = released.get(claim.id, "held by an administrator")
        elif taken_back := notice_drain_reason(claim, view):
            reason = taken_back
        elif claim.pool not in view.snapshot.pools and not _is_busy(claim, view):
            reason = f"pool {claim.pool} is no longer configured"
        else:
            continue
        moves.append(ChangeClaimState(claim.id, S.READY, S.DRAINING, reason))
    return moves
