"""Slots without a machine that Slurm believes in, and machines without a claim."""

from __future__ import annotations

from burstd.domain.claim import Cause
from burstd.domain.cloud.instance import TAG_SLOT, Instance, Leftover
from burstd.domain.plan import Action, PowerDown, RemoveOrphans
from burstd.domain.plugins.policy import Target, Want
from burstd.domain.slurm.job import Job, JobState, users_and_accounts
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import CloudView, SlurmView, Snapshot, Unavailable
from burstd.domain.staging import OUTPUT_ON_NODES
from burstd.planner.lifecycle.adoption import adoptable_machines
from burstd.planner.snapshot_view import SnapshotView
from burstd.planner.timeouts import Tuning

MIN_SIGHTINGS = 2
NO_CLAIM = "it has burstd's tag and no claim"
"""Reason for the removal of what nobody accounts for; what a machine of ours leaves behind has another."""
_STARTED = frozenset({JobState.CONFIGURING, JobState.RUNNING})
_POWERING_UP = frozenset({"POWERING_UP", "POWER_UP"})
_AUTOMATIC_DOWN_REASONS = ("ResumeTimeout reached", "Not responding", "burstd:")
"""Reasons for DOWN that are Slurm's or our own, not a person's."""


def wants_of_slurm(snapshot: Snapshot, slurm: SlurmView, target: Target) -> tuple[Want, ...]:
    """Slurm powers slots up by itself (the gate was missing, an administrator asked): they are to get their machines.

    The jobs that Slurm has put there are those that pay.
    """
    claimed = {claim.slot for claim in snapshot.claims}
    powering_up = [
        (pool, slot)
        for pool in snapshot.pools.values()
        if target.offers.get(pool.name)
        for slot in pool.slots
        if slot not in claimed and slot not in snapshot.drained_slots and _powers_up(slurm.nodes.get(slot))
    ]
    started = _started(slurm) if powering_up else {}
    found: list[Want] = []
    for pool, slot in powering_up:
        jobs = started.get(slot, [])
        users, accounts = users_and_accounts(jobs)
        found.append(
            Want(
                pool.name, 1, Cause.SLURM, f"Slurm powers {slot} up by itself", target.offers[pool.name],
                slots=(slot,), jobs=tuple(job.id for job in jobs), users=users, accounts=accounts,
            )
        )  # fmt: skip
    return tuple(found)


def _powers_up(node: Node | None) -> bool:
    return node is not None and not _POWERING_UP.isdisjoint(node.flags) and "POWERING_DOWN" not in node.flags


def _started(slurm: SlurmView) -> dict[str, list[Job]]:
    """By node the jobs that Slurm has put there."""
    found: dict[str, list[Job]] = {}
    for job in slurm.jobs:
        if job.state in _STARTED:
            for name in job.node_list:
                found.setdefault(name, []).append(job)
    return found


def reset_slots(view: SnapshotView, tuning: Tuning) -> list[Action]:
    """Slots that Slurm has as up, down or failed while no claim stands behind them are powered down in Slurm.

    A slot whose boot Slurm gave up is DOWN and POWERED_DOWN at once: nothing else would ever make it usable again.
    One that a person set down while it was off is left to them. None is while a cloud that may fill it has not been
    listed so far: a machine that the record does not know may stand behind it.
    """
    unlisted_clouds = {name for name, cloud in view.snapshot.clouds.items() if not cloud.instances_listed}
    last_power_down = view.snapshot.runtime_state.power_down_sent_at
    unknown = view.unknown_addresses()
    slots = []
    for pool in view.snapshot.pools.values():
        allowed_providers = {rule.provider for rule in pool.rules} or view.snapshot.clouds.keys()
        for slot in pool.slots if unlisted_clouds.isdisjoint(allowed_providers) else ():
            if slot in view.claimed:
                continue
            node = view.node(slot)
            if node is None or node.busy or node.address in unknown:
                continue
            if node.powered_down and not (node.state == "DOWN" and node.reason.startswith(_AUTOMATIC_DOWN_REASONS)):
                continue
            if node.flags & {"POWERING_UP", "POWER_UP", "POWERING_DOWN", "POWER_DOWN"}:
                continue
            if view.now - last_power_down.get(slot, float("-inf")) >= tuning.power_down_retry_s:
                slots.append(slot)
    return [PowerDown(tuple(slots), True, "the slot has no machine")] if slots else []


def stray_leftovers(snapshot: Snapshot, cloud: CloudView) -> tuple[Leftover, ...]:
    """Leftovers that no machine uses, and no claim on record accounts for; none where they cannot be listed."""
    rest = () if isinstance(cloud.leftovers, Unavailable) else cloud.leftovers
    unused = [left for left in rest if not left.attached_to]
    if not unused:
        return ()
    every_claim = (*snapshot.claims, *snapshot.storage_claims, *snapshot.quarantined_claims)
    accounted_for = {*(claim.id for claim in every_claim), *snapshot.foreign_tags} - {""}
    return tuple(left for left in unused if left.claim_id not in accounted_for)


def remove_orphans(snapshot: Snapshot, view: SnapshotView, tuning: Tuning) -> list[Action]:
    """What bears our tag, has no live claim, was seen twice and is older than the grace period.

    Left alone, whatever the record says: what bears an id that burstd never gave; a machine whose node is busy, or has
    output that is to be brought home (its node by its address, or by its tag where no machine on record is behind that
    node), what hangs on such a machine, and all of a cloud whose list is doubted.
    """
    strays = snapshot.runtime_state.orphan_sightings

    def is_overdue(provider: str, thing: str) -> bool:
        seen = strays.get(f"{provider}/{thing}")
        return seen is not None and seen.times >= MIN_SIGHTINGS and snapshot.now - seen.first >= tuning.orphan_grace_s

    if view.slurm is None:
        return []
    nodes_with_output = {
        node for data in snapshot.data.values() if data.state in OUTPUT_ON_NODES for node in data.nodes
    }
    needed = [n for n in view.slurm.nodes.values() if n.busy or n.name in nodes_with_output]
    addresses = {n.address for n in needed}
    # A list may say any address; behind a node that has its machine on record there is no other.
    slots = {n.name for n in needed if (c := view.claimed.get(n.name)) is None or c.address != n.address}

    unknown = adoptable_machines(snapshot, view)

    def is_protected(instance: Instance) -> bool:
        if (instance.provider, instance.id) in unknown or (
            instance.claim_id or instance.batch
        ) in snapshot.foreign_tags:
            return True
        return instance.address in addresses or instance.tags.get(TAG_SLOT, "") in slots

    actions: list[Action] = []
    for name, cloud in snapshot.clouds.items():
        if isinstance(cloud.instances, Unavailable) or name in view.doubted:
            continue
        instances = tuple(i for i in cloud.instances if is_overdue(name, i.id) and not is_protected(i))
        # A volume may be shown as loose, and be a spared machine's all the same.
        protected_claims = {i.claim_id for i in cloud.instances if not i.state.ended and is_protected(i)} - {""}
        leftovers = tuple(
            left
            for left in stray_leftovers(snapshot, cloud)
            if left.claim_id not in protected_claims and is_overdue(name, left.id)
        )
        if instances or leftovers:
            actions.append(RemoveOrphans(name, instances, leftovers, NO_CLAIM))
    return actions
