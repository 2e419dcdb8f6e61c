"""The storage node of a store: when one is started, kept and ended, and the next step of its claim.

It is a claim like any other, and what can be lost of it is treated as core/lifecycle.py treats all. But it has no
slot in Slurm: no gate, no registration. READY once it is proved, OPEN at once, CLOSING when nothing needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import InstanceState
from burstd.domain.plan import Action, MakeClaim, Move, Prove
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.domain.staging import StageState as T
from burstd.domain.staging import Staging
from burstd.domain.storage_node import StoreNode
from burstd.planner.lifecycle.lifecycle import advance, failed, lost, sentence
from burstd.planner.lifecycle.listing import doubted
from burstd.planner.offers.image_rollout import image_for
from burstd.planner.offers.offers import candidates, usable_offers, why_none
from burstd.planner.snapshot_view import View, look
from burstd.planner.timeouts import Tuning

_OWED = frozenset({T.COLLECTING, T.BRINGING})
_BEFORE = frozenset({T.WAITING, T.SENDING, T.STAGED})
_OUTPUT = "output of job"


@dataclass(frozen=True, slots=True)
class Need:
    """What the jobs of one store want of its node, each with a reason that names a job; empty: nothing."""

    start: str = ""
    keep: str = ""


def need(rows: Iterable[Staging], slots: Collection[str], payable: AbstractSet[str]) -> Need:
    """Of all live rows of one store, oldest first. ``slots`` are the names of all cloud nodes.

    ``payable``: the jobs for whose input a node may be paid (payable.py).
    """
    start = keep = ""
    for row in rows:
        wants = _start(row, slots) if row.job_id in payable or row.state not in _BEFORE else ""
        start = start or wants
        keep = keep or wants or _keep(row)
    return Need(start, keep)


def _start(row: Staging, slots: Collection[str]) -> str:
    """Why the row cannot go on without a node."""
    match row.state:
        case T.WAITING | T.SENDING if row.directives.stage_in:
            return f"input of job {row.job_id} waits for it"
        case T.STAGED | T.PLACING if row.trees:
            return f"input of job {row.job_id} is to be on it"
        case T.COLLECTING if any(node in slots for node in row.nodes):
            return f"output of job {row.job_id} is to be fetched to it"
        case _:
            return ""


def _keep(row: Staging) -> str:
    """Why the row would lose something with the node; cached trees that no job needs keep none."""
    if row.state is T.HELD and row.resume in {state.value for state in _OWED} and row.outputs:
        return f"{_OUTPUT} {row.job_id} is on it, held: {row.error}"
    if row.state is T.BRINGING and row.outputs:
        return f"{_OUTPUT} {row.job_id} is on its way home from it"
    if row.state is T.PLACED and row.trees:
        return f"job {row.job_id} has its input from it"
    return ""


def storage_steps(snapshot: Snapshot, tuning: Tuning) -> list[Action]:
    """The next step of every storage node, and those to be launched."""
    if not snapshot.storage and not snapshot.store_nodes:
        return []
    view = _alone(snapshot)
    nodes = {node.pool.name: node for node in snapshot.store_nodes}
    # PROVING ends in another way than that of a node of Slurm's.
    actions = advance(_only(view, [c for c in snapshot.storage if c.state is not S.PROVING]), tuning)
    moved = {action.claim_id for action in actions if isinstance(action, Move)}
    for claim in snapshot.storage:
        if claim.id not in moved:
            actions += _step(claim, view, nodes.get(claim.pool), tuning)
    return [*actions, *_starts(snapshot)]


def _alone(snapshot: Snapshot) -> View:
    """The storage nodes as if Slurm had no node at all: nothing of theirs waits for Slurm."""
    pools = {node.pool.name: node.pool for node in snapshot.store_nodes if node.pool.rules}
    nowhere = SlurmView((), {}, (), read=snapshot.now)
    alone = replace(snapshot, claims=snapshot.storage, pools=pools, slurm=nowhere, bound={}, data={})
    # With output on it too: that of other jobs waits on their nodes for another storage node.
    return replace(look(alone, ""), doubted=doubted(snapshot))


def _only(view: View, claims: Iterable[Claim]) -> View:
    return replace(view, snapshot=replace(view.snapshot, claims=tuple(claims)))


def _starts(snapshot: Snapshot) -> list[Action]:
    if snapshot.paused:
        return []
    taken = {claim.slot for claim in snapshot.storage}
    made: list[Action] = []
    for node in snapshot.store_nodes:
        (slot,) = node.pool.slots
        offers = usable_offers(snapshot, node.pool) if node.start and slot not in taken else ()
        if offers:
            image = image_for(snapshot, node.pool, offers[0])
            made.append(MakeClaim(node.pool.name, slot, offers[0], Cause.STORAGE, node.start, image))
    return made


def _step(claim: Claim, view: View, node: StoreNode | None, tuning: Tuning) -> list[Action]:
    needed = (node.start or node.keep) if node else ""
    match claim.state:
        case S.PROVING:
            return _proving(claim, view, tuning)
        case S.READY:
            return [Move(claim.id, S.READY, S.OPEN, "it is the storage node now")]
        case S.OPEN if node is not None and not needed and not view.snapshot.paused:
            idle = view.now - max(node.idle_since, claim.opened or claim.since)
            if idle < node.idle_s:
                return []
            return [Move(claim.id, S.OPEN, S.CLOSING, f"no job's data has needed it for {idle:.0f} s")]
        case S.CLOSING if needed:
            return [Move(claim.id, S.CLOSING, S.READY, f"needed again: {needed}")]
        case S.CLOSING:
            return [Move(claim.id, S.CLOSING, S.TERMINATING, claim.reason)]
        case _:
            return []


def _proving(claim: Claim, view: View, tuning: Tuning) -> list[Action]:
    if gone := lost(claim, view):
        return gone
    progress = view.snapshot.progress
    if claim.id in progress.proved:
        return [Move(claim.id, S.PROVING, S.READY, "ssh answers and its folder is there")]
    instance = view.by_claim.get(claim.id)
    if instance is not None and instance.state is InstanceState.ERROR:
        return failed(claim, instance.cause or "boot", sentence("the instance is in error", instance.error))
    if view.now - max(claim.since, progress.born) > tuning.prove_timeout_s:
        return failed(claim, "proof_timeout", f"not made a storage node within {tuning.prove_timeout_s:.0f} s")
    if claim.pool not in view.snapshot.pools:
        return failed(claim, "pool", f"store {claim.pool} is not configured any more")
    if claim.id in progress.busy or not claim.address or view.cloud(claim) is None:
        return []
    if view.other_at(claim.address, claim):
        return []
    return [Prove(claim.id, "to be made a storage node")]


def storage_alarms(snapshot: Snapshot) -> list[str]:
    """Sentences on nodes that are wanted and cannot be had, and on such that only a person can end."""
    alarms: list[str] = []
    claims = {claim.slot: claim for claim in snapshot.storage}
    for node in snapshot.store_nodes:
        (slot,) = node.pool.slots
        claim = claims.get(slot)
        if not node.pool.rules and claim is not None and (node.start or node.keep):
            why = node.keep or node.start
            alarms.append(f"the storage node {slot} stays, at {claim.offer.price} {claim.offer.currency}/h: {why}, and "
                          f"its store is not configured any more: put [staging.stores.{node.store}] back")  # fmt: skip
        elif node.start and claim is None and not snapshot.paused and _read(snapshot, node):
            judged = candidates(snapshot, node.pool)
            if all(j.refused for j in judged):
                alarms.append(f"the storage node {slot} cannot be launched: {why_none(judged)}")
    return alarms


def _read(snapshot: Snapshot, node: StoreNode) -> bool:
    """Whether the offers of its providers were read since burstd started."""
    clouds = [snapshot.clouds.get(rule.provider) for rule in node.pool.rules]
    return all(c is not None and not (isinstance(c.offers, Unavailable) and not c.offers.since) for c in clouds)
