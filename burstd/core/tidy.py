"""Slots without a machine that Slurm believes in, and machines without a claim."""

from __future__ import annotations

from burstd.core.images import image_for
from burstd.core.offers import others_of
from burstd.core.tuning import Tuning
from burstd.core.view import View
from burstd.model.claim import Cause
from burstd.model.plan import Action, MakeClaim, PowerDown, RemoveOrphans
from burstd.model.policy import Target
from burstd.model.snapshot import Snapshot, Unavailable

ORPHAN_TIMES = 2
_GIVEN_UP = ("ResumeTimeout reached", "Not responding", "burstd:")
"""Reasons for DOWN that are Slurm's or our own, not a person's."""


def serve_slurm(view: View, target: Target) -> list[Action]:
    """Slurm powers slots up by itself (the gate was missing, an administrator asked): they get their machines."""
    actions: list[Action] = []
    if view.snapshot.paused or target.failed:
        return actions
    for pool in view.snapshot.pools.values():
        offers = target.offers.get(pool.name, ())
        for slot in pool.slots:
            node = view.node(slot)
            if node is None or slot in view.claimed or not offers or slot in view.snapshot.held_slots:
                continue
            if node.flags & {"POWERING_UP", "POWER_UP"} and "POWERING_DOWN" not in node.flags:
                reason = f"Slurm powers {slot} up by itself"
                image = image_for(view.snapshot, pool, offers[0])
                others = others_of(pool, offers)
                actions.append(MakeClaim(pool.name, slot, offers[0], Cause.SLURM, reason, image, others=others))
    return actions


def reset_slots(view: View, tuning: Tuning) -> list[Action]:
    """Slots that Slurm has as up, down or failed while no claim stands behind them are powered down in Slurm.

    A slot whose boot Slurm gave up is DOWN and POWERED_DOWN at once: nothing else would ever make it usable again.
    One that a person set down while it was off is left to them.
    """
    told = view.snapshot.progress.tidied
    slots = []
    for pool in view.snapshot.pools.values():
        for slot in pool.slots:
            node = view.node(slot)
            if node is None or slot in view.claimed or node.busy:
                continue
            if node.powered_down and not (node.state == "DOWN" and node.reason.startswith(_GIVEN_UP)):
                continue
            if node.flags & {"POWERING_UP", "POWER_UP", "POWERING_DOWN", "POWER_DOWN"}:
                continue
            if view.now - told.get(slot, float("-inf")) >= tuning.tidy_every_s:
                slots.append(slot)
    return [PowerDown(tuple(slots), True, "no machine stands behind it")] if slots else []


def remove_orphans(snapshot: Snapshot, view: View, tuning: Tuning) -> list[Action]:
    """What bears our tag, has no live claim, was seen twice and is older than the grace period.

    A machine on whose address Slurm has a busy node is left alone, whatever the record says: a job runs there.
    """
    strays = snapshot.progress.strays

    def ripe(provider: str, thing: str) -> bool:
        seen = strays.get(f"{provider}/{thing}")
        return seen is not None and seen.times >= ORPHAN_TIMES and snapshot.now - seen.first >= tuning.orphan_grace_s

    at_work = {n.address for n in view.slurm.nodes.values() if n.busy} if view.slurm else None
    actions: list[Action] = []
    for name, cloud in snapshot.clouds.items():
        if isinstance(cloud.instances, Unavailable) or at_work is None:
            continue
        instances = tuple(i for i in cloud.instances if ripe(name, i.id) and i.address not in at_work)
        rest = () if isinstance(cloud.leftovers, Unavailable) else cloud.leftovers
        leftovers = tuple(left for left in rest if not left.attached_to and ripe(name, left.id))
        if instances or leftovers:
            actions.append(RemoveOrphans(name, instances, leftovers, "it bears our tag and has no claim"))
    return actions
