"""The storage node of a store: when one is started, kept and ended, and the next step of its claim.

It is a claim like any other, and what can be lost of it is treated as planner/lifecycle treats all. But it has no
slot in Slurm: no gate, no registration. READY once validated, IN_SERVICE at once, DRAINING when nothing needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import InstanceState
from burstd.domain.plan import Action, ChangeClaimState, MakeClaim, ValidateNode
from burstd.domain.plugins.policy import Want
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.domain.staging import StageState as T
from burstd.domain.staging import Staging
from burstd.domain.storage_node import StorageNodeView
from burstd.planner.lifecycle.lifecycle import advance_claims, fail_claim, steps_if_lost, with_detail
from burstd.planner.lifecycle.listing import doubted_lists
from burstd.planner.offers.image_rollout import image_for
from burstd.planner.offers.offers import evaluate_offers, no_offer_reason, usable_offers
from burstd.planner.offers.planned_claim import planned_claim
from burstd.planner.snapshot_view import SnapshotView, build_view
from burstd.planner.timeouts import Tuning

_OUTPUT_STATES = frozenset({T.COLLECTING, T.DELIVERING})
_INPUT_STATES = frozenset({T.WAITING, T.UPLOADING, T.STAGED})
_OUTPUT = "output of job"


@dataclass(frozen=True, slots=True)
class StorageNodeNeed:
    """What the jobs of one store want of its node, each with a reason that names a job; empty: nothing."""

    start: str = ""
    keep: str = ""


def storage_node_need(rows: Iterable[Staging], slots: Collection[str], affordable: AbstractSet[str]) -> StorageNodeNeed:
    """Of all live rows of one store, oldest first. ``slots`` are the names of all cloud nodes.

    ``affordable``: the jobs for whose input a node may be paid (affordable_inputs.py).
    """
    start = keep = ""
    for row in rows:
        wants = _start_reason(row, slots) if row.job_id in affordable or row.state not in _INPUT_STATES else ""
        start = start or wants
        keep = keep or wants or _keep_reason(row)
    return StorageNodeNeed(start, keep)


def _start_reason(row: Staging, slots: Collection[str]) -> str:
    """Why the row cannot go on without a node."""
    match row.state:
        case T.WAITING | T.UPLOADING if row.directives.input_names:
            return f"input of job {row.name} waits for it"
        case T.STAGED | T.FETCHING if row.trees or row.checkpoints:
            return f"input of job {row.name} is to be on it"
        case T.FETCHED if row.directives.checkpoint and any(node in slots for node in row.nodes):
            return f"checkpoints of job {row.name} go to it"
        case T.COLLECTING if any(node in slots for node in row.nodes):
            return f"output of job {row.name} is to be fetched to it"
        case _:
            return ""


def _keep_reason(row: Staging) -> str:
    """Why the row would lose something with the node; cached trees that no job needs keep none."""
    if row.state is T.HELD and row.resume in {state.value for state in _OUTPUT_STATES} and row.outputs:
        return f"{_OUTPUT} {row.name} is on it, held: {row.error}"
    if row.state is T.DELIVERING and row.outputs:
        return f"{_OUTPUT} {row.name} is on its way home from it"
    if row.state is T.FETCHED and row.trees:
        return f"job {row.name} has its input from it"
    return ""


def storage_node_steps(snapshot: Snapshot, tuning: Tuning) -> list[Action]:
    """The next step of every storage node, and those to be launched."""
    if not snapshot.storage_claims and not snapshot.storage_nodes:
        return []
    view = _view_without_slurm_nodes(snapshot)
    nodes = {node.pool.name: node for node in snapshot.storage_nodes}
    # VALIDATING ends in another way than that of a node of Slurm's.
    actions = advance_claims(
        _view_of_claims(view, [c for c in snapshot.storage_claims if c.state is not S.VALIDATING]), tuning
    )
    moved = {action.claim_id for action in actions if isinstance(action, ChangeClaimState)}
    for claim in snapshot.storage_claims:
        if claim.id not in moved:
            actions += _step(claim, view, nodes.get(claim.pool), tuning)
    return [*actions, *_new_claims(snapshot)]


def _view_without_slurm_nodes(snapshot: Snapshot) -> SnapshotView:
    """The storage nodes as if Slurm had no node at all: nothing of theirs waits for Slurm."""
    pools = {node.pool.name: node.pool for node in snapshot.storage_nodes if node.pool.rules}
    no_nodes = SlurmView((), {}, (), read_at=snapshot.now)
    storage_only = replace(snapshot, claims=snapshot.storage_claims, pools=pools, slurm=no_nodes, bound={}, data={})
    # With output on it too: that of other jobs waits on their nodes for another storage node.
    return replace(build_view(storage_only, ""), doubted=doubted_lists(snapshot))


def _view_of_claims(view: SnapshotView, claims: Iterable[Claim]) -> SnapshotView:
    return replace(view, snapshot=replace(view.snapshot, claims=tuple(claims)))


def _new_claims(snapshot: Snapshot) -> list[Action]:
    if snapshot.paused:
        return []
    taken = {claim.slot for claim in snapshot.storage_claims}
    made: list[Action] = []
    for node in snapshot.storage_nodes:
        (slot,) = node.pool.slots
        offers = usable_offers(snapshot, node.pool) if node.start_reason and slot not in taken else ()
        if offers:
            image = image_for(snapshot, node.pool, offers[0])
            want = Want(node.pool.name, 1, Cause.STORAGE, node.start_reason, offers)
            made.append(MakeClaim(planned_claim(want, slot, offers[0], snapshot.cluster, snapshot.now, image)))
    return made


def _step(claim: Claim, view: SnapshotView, node: StorageNodeView | None, tuning: Tuning) -> list[Action]:
    needed = (node.start_reason or node.keep_reason) if node else ""
    match claim.state:
        case S.VALIDATING:
            return _validating(claim, view, tuning)
        case S.READY:
            return [ChangeClaimState(claim.id, S.READY, S.IN_SERVICE, "in service as the storage node")]
        case S.IN_SERVICE if node is not None and not needed and not view.snapshot.paused:
            idle = view.now - max(node.idle_since, claim.in_service_from or claim.since)
            if idle < node.idle_s:
                return []
            return [
                ChangeClaimState(claim.id, S.IN_SERVICE, S.DRAINING, f"no job's data has needed it for {idle:.0f} s")
            ]
        case S.DRAINING if needed:
            return [ChangeClaimState(claim.id, S.DRAINING, S.READY, f"needed again: {needed}")]
        case S.DRAINING:
            return [ChangeClaimState(claim.id, S.DRAINING, S.TERMINATING, claim.reason)]
        case _:
            return []


def _validating(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    if gone := steps_if_lost(claim, view):
        return gone
    progress = view.snapshot.runtime_state
    if claim.id in progress.validated:
        return [ChangeClaimState(claim.id, S.VALIDATING, S.READY, "ssh answers and its folder is there")]
    instance = view.by_claim.get(claim.id)
    if instance is not None and instance.state is InstanceState.ERROR:
        return fail_claim(claim, instance.cause or "boot", with_detail("the instance is in error", instance.error))
    if view.now - max(claim.since, progress.process_start) > tuning.validation_timeout_s:
        reason = f"not made a storage node within {tuning.validation_timeout_s:.0f} s"
        return fail_claim(claim, "validation_timeout", reason)
    if claim.pool not in view.snapshot.pools:
        return fail_claim(claim, "pool", f"store {claim.pool} is no longer configured")
    if claim.id in progress.busy or not claim.address or view.cloud(claim) is None:
        return []
    if view.other_node_at(claim.address, claim):
        return []
    return [ValidateNode(claim.id, "set up as a storage node")]


def storage_node_alarms(snapshot: Snapshot) -> list[str]:
    """Sentences on nodes that are wanted and cannot be had, and on such that only a person can end."""
    alarms: list[str] = []
    claims = {claim.slot: claim for claim in snapshot.storage_claims}
    for node in snapshot.storage_nodes:
        (slot,) = node.pool.slots
        claim = claims.get(slot)
        if not node.pool.rules and claim is not None and (node.start_reason or node.keep_reason):
            why = node.keep_reason or node.start_reason
            alarms.append(f"the storage node {slot} stays, at {claim.offer.price} {claim.offer.currency}/h: {why}, and "
                          f"its store is no longer configured: restore [staging.stores.{node.store}]")  # fmt: skip
        elif node.start_reason and claim is None and not snapshot.paused and _offers_are_known(snapshot, node):
            judged = evaluate_offers(snapshot, node.pool)
            if all(j.rejected_because for j in judged):
                alarms.append(f"the storage node {slot} cannot be launched: {no_offer_reason(judged)}")
    return alarms


def _offers_are_known(snapshot: Snapshot, node: StorageNodeView) -> bool:
    """Whether the offers of its providers were read since burstd started."""
    clouds = [snapshot.clouds.get(rule.provider) for rule in node.pool.rules]
    return all(c is not None and not (isinstance(c.offers, Unavailable) and not c.offers.since) for c in clouds)
