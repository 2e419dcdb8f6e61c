"""The decision: a snapshot and the policies in, a plan out."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from burstd.domain.cloud.offer import Offer
from burstd.domain.plan import Action, MakeClaim, Move, Plan
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.lifecycle.adoption import adopt
from burstd.planner.lifecycle.gate import hold_ready, move_gate
from burstd.planner.lifecycle.interruption import notice_remarks, notice_steps
from burstd.planner.lifecycle.lifecycle import advance
from burstd.planner.lifecycle.orphans import remove_orphans, reset_slots
from burstd.planner.offers.budget_reserve import reserve_of
from burstd.planner.offers.dedicated import kept_to_its_time
from burstd.planner.offers.image_rollout import image_for
from burstd.planner.offers.offers import others_of
from burstd.planner.policy_chain import Memory, make_target
from burstd.planner.snapshot_view import View, look
from burstd.planner.staging.storage_node import storage_steps
from burstd.planner.timeouts import Tuning


class Decider:
    """Decides again and again, with less to do where little has changed. Its plans are those of ``decide``.

    What did not change must be the very same objects (jobs, nodes): it is by these that it knows. One thread at a time.
    """

    def __init__(self) -> None:
        self._memory = Memory()

    def decide(self, snapshot: Snapshot, policies: Sequence[Policy], tuning: Tuning) -> Plan:
        """See ``decide``."""
        return decide(snapshot, policies, tuning, self._memory)


def decide(snapshot: Snapshot, policies: Sequence[Policy], tuning: Tuning, memory: Memory | None = None) -> Plan:
    """Everything that is to be done now, each step with its reason. Pure: the same plan for the same arguments.

    ``memory`` is for Decider: the plan is the same with it and without.

    While Slurm cannot be read nothing is wanted and nothing released; claims under way go on as far as the clouds
    alone can take them.
    """
    with _uncollected():
        return _decide(snapshot, policies, tuning, memory)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for garbage: there is none while plans are made, and it takes as long as making them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _decide(snapshot: Snapshot, policies: Sequence[Policy], tuning: Tuning, memory: Memory | None) -> Plan:
    view = look(snapshot, tuning.gate, tuning.keep_node_s)
    adoptions = adopt(snapshot, view)
    if snapshot.doubt:
        # What the record says of machines and slots may be long over: nothing is done on its word.
        return Plan(tuple(adoptions))
    read = isinstance(snapshot.slurm, SlurmView)
    target = Target()
    if read:
        target = make_target(snapshot, policies, tuning.keep_node_s, tuning.spot_interruptions, memory)
    steps = [*notice_steps(view), *advance(view, tuning), *hold_ready(view, target)]
    moving = frozenset(step.claim_id for step in steps if isinstance(step, Move))
    actions: list[Action] = [
        *adoptions,
        *steps,
        *move_gate(view, target, tuning, moving),
        *kept_to_its_time(view),
        *([] if snapshot.paused else make_claims(view, target)),
        *reset_slots(view, tuning),
        *remove_orphans(snapshot, view, tuning),
        *storage_steps(snapshot, tuning),
    ]
    return Plan(tuple(actions), target, (*target.remarks, *notice_remarks(view)))


def make_claims(view: View, target: Target) -> list[MakeClaim]:
    """A claim for each machine that is wanted, on the slots that the target gave it, from its best offer."""
    made: list[MakeClaim] = []
    known: dict[tuple[str, int], tuple[str, tuple[Offer, ...]]] = {}
    for want in target.wants:
        if not want.offers:
            continue
        offer, key = want.offers[0], (want.pool, id(want.offers))
        if key not in known:
            pool = view.snapshot.pools[want.pool]
            known[key] = image_for(view.snapshot, pool, offer), others_of(pool, want.offers)
        image, others = known[key]
        reserved, egress = reserve_of(want, offer, others)
        made += [
            MakeClaim(
                want.pool, slot, offer, want.cause, want.reason, image, want.jobs, want.users, want.gang, others,
                want.accounts, reserved, egress, want.alone,
            )
            for slot in want.slots
        ]  # fmt: skip
    return made
