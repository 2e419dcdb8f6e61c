"""The gate: which ready nodes are opened, bound to one job, or closed, and what the reservation shall hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import Action, Bind, Move, SetGate, Unbind
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.demand.requeued_jobs import begins_anew, wary
from burstd.planner.lifecycle.interruption import why_closed
from burstd.planner.offers.dedicated import Binder, came_too_late, left_alone, open_to_all, stranded, used_up
from burstd.planner.offers.offers import TOO_LATE
from burstd.planner.snapshot_view import WAITING, View
from burstd.planner.timeouts import Tuning

RENEW_S = 180 * 86400.0
"""Slurm ends every reservation within a year: the gate is renewed when less than this is left of it."""


def move_gate(view: View, target: Target, tuning: Tuning, moving: frozenset[str] = frozenset()) -> list[Action]:
    """Openings, bindings and closings, in one update of the reservation where it changes at all.

    Claims in ``moving`` change their state by another step of the same plan.
    """
    if view.slurm is None:
        return []
    bound = view.snapshot.bound
    unbinds, freed = _unbinds(view, tuning)
    binds: list[Action] = []
    opens: list[Claim] = []
    groups = _ready_groups(view, tuning, moving)
    ahead = _queue(view)
    binder = Binder(view, target.placed)
    for claims, job in groups:
        if any(claim.private for claim in claims):
            more = _private(claims, job, binder, tuning)
            binds += more
            opens += claims if not more and all(open_to_all(claim, view) for claim in claims) else []
            continue
        # A binding that was broken off half-way has the nodes and not the job: it is made again.
        unbound = job is not None and not (job.id in bound and job.reservation)
        refused = job is not None and job.id in view.snapshot.progress.unbindable
        steady = job is not None and _lost_enough(job, claims, view, tuning)
        if job is not None and unbound and not refused and (steady or _needs_binding(job, len(claims), ahead, tuning)):
            slots = tuple(c.slot for c in claims)
            reason = f"booted for job {job.id} alone"
            binds.append(Bind(job.id, job.user, tuple(c.id for c in claims), slots, reason))
        else:
            opens += claims
    closes, why_closed = _closes(view, target, moving, tuning)
    closing = {c.slot for c in closes}
    for claim in view.snapshot.claims:
        if claim.private and claim.state is S.OPEN and claim.slot not in closing and claim.id not in moving:
            binds += binder.binds(claim)
    # Bound nodes stay behind the gate: only the job that they are bound to gets past it.
    kept = {slot for job_id, slots in bound.items() if job_id not in freed for slot in slots}
    shut = kept | closing
    out = {c.slot for c in view.snapshot.claims if c.state is S.OPEN and c.slot not in shut and _lets_in(c, view)}
    out |= {c.slot for c in opens}
    # Slots of a pool that was taken out of the settings stay shut: nobody would serve what Slurm starts there.
    orphaned = {slot for slot in view.gated - view.slots if view.slurm.nodes.get(slot) is not None}
    desired = (view.slots - out) | orphaned
    changes: list[Action] = []
    if desired != view.gated or opens or closes or (desired and view.gate_ends - view.now < RENEW_S):
        why = (*("proven and wanted" for _ in opens), *why_closed)
        what = _what(opens, closes) or "the reservation differs from the record"
        changes = [SetGate(desired, what, tuple(c.id for c in opens), tuple(c.id for c in closes), why)]
    return [*changes, *unbinds, *binds]


def _lets_in(claim: Claim, view: View) -> bool:
    """Whether an open node lets jobs in that are not bound to it."""
    return not (claim.reserved or claim.alone) or (
        (not claim.private or open_to_all(claim, view)) and not used_up(claim, view.now)
    )


def _private(claims: list[Claim], job: Job | None, binder: Binder, tuning: Tuning) -> list[Action]:
    if not claims[0].gang:
        return [*binder.binds(claims[0])]
    if job is None:
        return [
            Move(claim.id, S.READY, S.CLOSING, reason)
            for claim in claims
            if (reason := stranded(claim, binder.view, tuning.gang_timeout_s))
        ]
    if job.het_job_id:
        return [*binder.components(claims)]
    bind = binder.gang(claims, job)
    return [bind] if bind is not None else []


def _what(opens: list[Claim], closes: list[Claim]) -> str:
    words = (("open", opens), ("close", closes))
    return "; ".join(f"{word} {', '.join(c.slot for c in claims)}" for word, claims in words if claims)


def _ready_groups(view: View, tuning: Tuning, moving: frozenset[str]) -> list[tuple[list[Claim], Job | None]]:
    """Claims to be opened now, in groups that open together, each with the pending job that may be bound to it."""
    gangs: dict[str, list[Claim]] = {}
    groups: list[tuple[list[Claim], Job | None]] = []
    for claim in view.snapshot.claims:
        if claim.gang and claim.state in (S.PLANNED, S.LAUNCHING, S.BOOTING, S.PROVING, S.READY):
            gangs.setdefault(claim.gang, []).append(claim)
        elif claim.state is S.READY and claim.id not in moving and _usable(claim, view):
            groups.append(([claim], next((view.job(j) for j in claim.jobs if view.waits(j)), None)))
    broken = {c.gang for c in view.snapshot.claims if c.gang and c.state in (S.FAILED, S.LOST, S.TERMINATING)}
    for gang, members in gangs.items():
        # One that becomes ready in this very plan is a member that is still missed.
        ready = [c for c in members if c.state is S.READY and c.id not in moving and _usable(c, view)]
        if not ready:
            continue
        job = view.job(gang) if view.waits(gang) else None
        enough = job is not None and len(ready) >= job.nodes
        # One that failed is being replaced; the others wait for it behind the gate.
        whole = len(ready) == len(members) and (enough or gang not in broken)
        waited = max(view.now - c.since for c in ready)
        if job is None or whole or waited > tuning.gang_timeout_s:
            groups.append((ready, job if enough else None))
    return groups


def _usable(claim: Claim, view: View) -> bool:
    node = view.node(claim.slot)
    return node is not None and node.up and claim.slot not in view.snapshot.held_slots


def _needs_binding(job: Job, nodes: int, ahead: Callable[[Job], int], tuning: Tuning) -> bool:
    """A multi-node job among small ones, and a job deep in the queue, would lose the nodes or wait for them.

    Slurm's main loop looks at default_queue_depth jobs only. An array is left to Slurm: binding would split it.
    """
    if job.array_tasks or job.reservation or job.het_job_id:
        return False
    return nodes > 1 or ahead(job) > tuning.bind_depth


def _lost_enough(job: Job, claims: list[Claim], view: View, tuning: Tuning) -> bool:
    """A machine on demand for one job that has lost spot machines: newer jobs would take it while Slurm keeps it."""
    if job.array_tasks or job.reservation or job.het_job_id:
        return False
    if any(claim.offer.spot or any(j != job.id and view.waits(j) for j in claim.jobs) for claim in claims):
        return False
    return bool(wary(view.snapshot, [job.id], tuning.spot_interruptions))


def _queue(view: View) -> Callable[[Job], int]:
    """Tells how many pending rows of the queue stand before a job, by priority, then by time."""
    order: list[tuple[int, float]] = []

    def ahead(job: Job) -> int:
        # Most decisions open nothing, and the queue may be long.
        if not order:
            jobs = view.slurm.jobs if view.slurm else ()
            order.extend(sorted([(-j.priority, j.submitted) for j in jobs if j.state in WAITING]))
        return bisect_left(order, (-job.priority, job.submitted))

    return ahead


def _unbinds(view: View, tuning: Tuning) -> tuple[list[Action], set[str]]:
    """Bindings that have done their work, and the jobs whose nodes are free of them."""
    unbinds: list[Action] = []
    freed: set[str] = set()
    closing = {claim.slot for claim in view.snapshot.claims if claim.state is S.CLOSING}
    for job_id, nodes in view.snapshot.bound.items():
        since = max(view.snapshot.progress.bound_since.get(job_id, view.now), _kept_until(view, job_id))
        if not view.waits(job_id):
            unbinds.append(Unbind(job_id, "the job runs or is gone"))
        elif closing & nodes:
            unbinds.append(Unbind(job_id, f"its node {', '.join(sorted(closing & nodes))} is being closed"))
        elif _has_nodes(view, job_id):
            # Its nodes are its own already: it is CONFIGURING while its input is brought to them.
            continue
        elif view.now - since > tuning.bind_timeout_s:
            unbinds.append(Unbind(job_id, f"the job did not start within {tuning.bind_timeout_s:.0f} s"))
        else:
            continue
        freed.add(job_id)
    return unbinds, freed


def _kept_until(view: View, job_id: str) -> float:
    """When Slurm lets a job that was requeued start again, or did so; 0 for any other job."""
    job = view.job(job_id)
    if job is None or job.restarts - 1 not in view.snapshot.interruptions.get(job_id, ()):
        return 0.0
    return job.eligible if begins_anew(job, view.snapshot) else min(job.eligible, view.now)


def _has_nodes(view: View, job_id: str) -> bool:
    job = view.job(job_id)
    return job is not None and job.state is JobState.CONFIGURING


def _closes(view: View, target: Target, moving: frozenset[str], tuning: Tuning) -> tuple[list[Claim], list[str]]:
    """Open or ready claims to bring back behind the gate: released, held, taken back, or dead in Slurm."""
    released = {r.claim_id: r.reason for r in target.releases}
    touched = view.snapshot.held_slots | view.notices().keys()
    closes: list[Claim] = []
    reasons: list[str] = []
    for claim in view.snapshot.claims:
        if claim.state is not S.OPEN or claim.id in moving:
            continue
        node = view.node(claim.slot)
        named = claim.id in released or claim.slot in touched or claim.pool not in view.snapshot.pools
        if not (
            named or claim.reserved or claim.alone or (node is not None and (node.state == "DOWN" or node.powered_down))
        ):
            # Of most there is nothing to be said.
            continue
        if claim.slot in view.snapshot.held_slots:
            reason = "held by an administrator"
        elif node is not None and node.state == "DOWN" and not node.busy:
            reason = f"down in Slurm ({node.reason or 'no reason given'})"
        elif node is not None and node.powered_down and not node.busy:
            reason = "powered down in Slurm"
        elif taken_back := why_closed(claim, view):
            reason = taken_back
        elif done := left_alone(claim, view) or stranded(claim, view, tuning.gang_timeout_s):
            reason = done
        elif claim.id in released and not view.snapshot.paused:
            reason = released[claim.id]
        elif claim.pool not in view.snapshot.pools and not _at_work(claim, view) and not view.snapshot.paused:
            reason = f"pool {claim.pool} is not configured any more"
        else:
            continue
        closes.append(claim)
        reasons.append(reason)
    return closes, reasons


def _at_work(claim: Claim, view: View) -> bool:
    node = view.node(claim.slot)
    return node is None or node.busy


def hold_ready(view: View, target: Target) -> list[Action]:
    """Ready claims that are not to be opened any more go to CLOSING at once: the gate still holds them."""
    released = {r.claim_id: r.reason for r in target.releases}
    moves: list[Action] = []
    for claim in view.snapshot.claims:
        if claim.state is not S.READY:
            continue
        if done := left_alone(claim, view):
            if came_too_late(claim, view):
                # A failure, so that its like is not booted again and again until the budget is gone.
                words = f"{done}: it took longer than overhead_s of [policies.budget] to boot"
                moves.append(Move(claim.id, S.READY, S.FAILED, words, error=TOO_LATE))
                continue
            reason = done
        elif claim.id in released or claim.slot in view.snapshot.held_slots:
            reason = released.get(claim.id, "held by an administrator")
        elif taken_back := why_closed(claim, view):
            reason = taken_back
        elif claim.pool not in view.snapshot.pools and not _at_work(claim, view):
            reason = f"pool {claim.pool} is not configured any more"
        else:
            continue
        moves.append(Move(claim.id, S.READY, S.CLOSING, reason))
    return moves
