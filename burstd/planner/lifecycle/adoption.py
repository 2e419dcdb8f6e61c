"""Machines with our tag that the record never knew: it was lost, or is older than they are.

Every launch is on record before a cloud hears of it, and the ids of claims bear burstd's mark. So an instance with such
an id that the record does not know, not even as GONE, is no orphan: the record has lost it. It is adopted where it can
be told which slot it is for: by its address, which Slurm has for the node, or by its tags, and not where these two
differ. Where Slurm's node answers at that address it is adopted IN_SERVICE, and its jobs run to their end; else
BOOTING, to be validated like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import TAG_POOL, TAG_SLOT, Instance, InstanceState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plan import AdoptMachine
from burstd.domain.slurm.job import users_and_accounts
from burstd.domain.snapshot import CloudView, SlurmView, Snapshot, Unavailable
from burstd.planner.lifecycle.listing import abbreviated_list
from burstd.planner.offers.reuse import sources_of, started_on
from burstd.planner.snapshot_view import SnapshotView, is_on

_EXISTING = frozenset({InstanceState.PENDING, InstanceState.RUNNING, InstanceState.UNKNOWN})
_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN"})
MAX_BACKDATED_S = 31 * 86400.0
"""A machine that is adopted is billed for no longer than this before: no cloud's word uses a budget of years up."""


@dataclass(frozen=True, slots=True)
class _UnknownMachine:
    """A machine that the record does not know, and the slot that it is for."""

    instance: Instance
    pool: Pool
    slot: str
    is_node: bool
    """Slurm's node of the slot is at its address, and up or busy."""
    current_claim: Claim | None
    """The live claim of the slot, whose machine is not listed."""
    cause: Cause


def adoptable_machines(snapshot: Snapshot, view: SnapshotView) -> frozenset[tuple[str, str]]:
    """Provider and id of the machines that are, or are still to be, adopted: nobody may remove them."""
    return frozenset((found.instance.provider, found.instance.id) for found in _unknown_machines(snapshot, view))


def plan_adoptions(snapshot: Snapshot, view: SnapshotView) -> list[AdoptMachine]:
    """A claim for each of them whose slot is free, and whose price can be known."""
    adoptions: dict[str, AdoptMachine] = {}
    for found in sorted(_unknown_machines(snapshot, view), key=lambda one: (not one.is_node, one.instance.id)):
        cloud = snapshot.clouds[found.instance.provider]
        # A record that is in no doubt is believed: its claim ends like any other, and then the slot is free.
        must_wait = found.current_claim is not None and not (found.is_node and snapshot.record_doubt)
        if found.slot in adoptions or must_wait or isinstance(cloud.offers, Unavailable):
            continue
        adoptions[found.slot] = AdoptMachine(
            _claim(found, cloud, snapshot), found.current_claim.id if found.current_claim else ""
        )
    return list(adoptions.values())


def unlisted_slots(snapshot: Snapshot) -> tuple[str, ...]:
    """Slots whose node Slurm hears while no machine on record is at its address: a cloud does not list it (yet).

    While the record is in doubt one list is no witness that all machines are on record again.
    """
    if not isinstance(snapshot.slurm, SlurmView):
        return ()
    # Of a claim from before its machine had an address the list says it.
    known_addresses = {claim.address for claim in snapshot.claims} | {
        one.address
        for cloud in snapshot.clouds.values()
        for one in (() if isinstance(cloud.instances, Unavailable) else cloud.instances)
        if not one.state.ended and (one.provider, one.id) not in snapshot.unrecorded_instances
    }
    known_addresses.discard("")
    nodes = ((slot, snapshot.slurm.nodes.get(slot)) for pool in snapshot.pools.values() for slot in pool.slots)
    return tuple(slot for slot, node in nodes if node and node.responding and node.address not in known_addresses)


def doubt_alarm(snapshot: Snapshot) -> str:
    """Why the record is in doubt, and which nodes keep it there; empty: it is not."""
    slots = unlisted_slots(snapshot) if snapshot.record_doubt else ()
    if not slots:
        return snapshot.record_doubt
    return (
        f"{snapshot.record_doubt}; Slurm hears {abbreviated_list(slots)}, and no cloud lists the machine. "
        "If it is gone, set its node down in Slurm (scontrol update nodename=NODE state=down reason=REASON)"
    )


def foreign_alarms(snapshot: Snapshot) -> list[str]:
    """Sentences on machines that somebody else has given our tags."""
    alarms = []
    for name, cloud in snapshot.clouds.items():
        listed = () if isinstance(cloud.instances, Unavailable) or not snapshot.foreign_tags else cloud.instances
        foreign = [
            one.id
            for one in listed
            if not one.state.ended
            and (one.claim_id or one.batch) in snapshot.foreign_tags
            and (one.claim_id or one.batch) not in {claim.id for claim in snapshot.claims}
        ]
        if foreign:
            alarms.append(
                f"{name} lists machines with the tags of cluster {snapshot.cluster} that burstd did not launch "
                f"({abbreviated_list(foreign)}): remove the tags or, if it did with an earlier ssh_key, terminate them "
                "with the cloud's own tools"
            )
    return alarms


def _unknown_machines(snapshot: Snapshot, view: SnapshotView) -> Iterator[_UnknownMachine]:
    if not snapshot.unrecorded_instances or view.slurm is None:
        return
    pools = {slot: (pool, Cause.DEMAND) for pool in snapshot.pools.values() for slot in pool.slots}
    pools |= {slot: (n.pool, Cause.STORAGE) for n in snapshot.storage_nodes for slot in n.pool.slots}
    claims_by_slot = {claim.slot: claim for claim in (*snapshot.claims, *snapshot.storage_claims)}
    # A node whose machine was handed over may keep its address until it is powered down.
    nodes = sorted(view.slurm.nodes.values(), key=is_on)
    by_address = {node.address: node.name for node in nodes if node.address}
    for cloud in snapshot.clouds.values():
        for instance in () if isinstance(cloud.instances, Unavailable) else cloud.instances:
            if (instance.provider, instance.id) not in snapshot.unrecorded_instances or instance.state not in _EXISTING:
                continue
            tagged = instance.tags.get(TAG_SLOT, "")
            slot = by_address.get(instance.address, "") or tagged
            handed_over = slot != tagged and _was_handed_over(instance, tagged, slot, view)
            if tagged in pools and slot != tagged and not handed_over:
                continue  # Its address is another node's: one of the two is not so, and which one nobody can tell.
            if slot not in pools:
                continue
            if not handed_over and instance.tags.get(TAG_POOL, pools[slot][0].name) != pools[slot][0].name:
                continue
            # A cloud has no say in slots that it may not fill, and what bears no id of a launch was none of ours.
            allowed_providers = {rule.provider for rule in pools[slot][0].rules}
            if (allowed_providers and instance.provider not in allowed_providers) or not (
                instance.claim_id or instance.batch
            ):
                continue
            node, current_claim = view.node(slot), claims_by_slot.get(slot)
            is_node = node is not None and node.address == instance.address and (node.up or node.busy)
            is_node = is_node and node is not None and not node.flags & _OFF
            if current_claim is not None and not _machine_is_unlisted(current_claim, view):
                continue
            if node is not None and node.up and not is_node:
                continue  # Another machine is this node.
            yield _UnknownMachine(instance, pools[slot][0], slot, is_node, current_claim, pools[slot][1])


def _was_handed_over(instance: Instance, tagged: str, slot: str, view: SnapshotView) -> bool:
    """Its tags are those of its launch: since then it may have become a node of a pool that reuses such machines."""
    pools = view.snapshot.pools
    pool, node = view.snapshot.pool_of(slot), view.node(slot)
    if pool is None or instance.tags.get(TAG_POOL, "") not in sources_of(pool.name, pools):
        return False
    return is_on(node) and node is not None and node.address == instance.address and not is_on(view.node(tagged))


def _machine_is_unlisted(claim: Claim, view: SnapshotView) -> bool:
    cloud = view.cloud(claim)
    if cloud is None or isinstance(cloud.instances, Unavailable):
        return False
    instance = view.by_claim.get(claim.id)
    return instance is None or instance.state.ended


def _claim(found: _UnknownMachine, cloud: CloudView, snapshot: Snapshot) -> Claim:
    instance = found.instance
    jobs = [] if isinstance(snapshot.slurm, Unavailable) else started_on(found.slot, snapshot.slurm.jobs)
    tagged = instance.tags.get(TAG_SLOT, found.slot)
    launched = min(max(instance.launched or snapshot.now, snapshot.now - MAX_BACKDATED_S), snapshot.now)
    offer = _offer(found, cloud)
    price = "" if offer.price else "; its price is not known"
    users, accounts = users_and_accounts(jobs)
    return Claim(
        id=instance.claim_id, cluster=snapshot.cluster, pool=found.pool.name, slot=found.slot, offer=offer,
        cause=found.cause, state=S.IN_SERVICE if found.is_node else S.BOOTING, created=launched, since=snapshot.now,
        reason=f"instance {instance.id} has burstd's tag and is not on record: adopted{price}",
        jobs=tuple(job.id for job in jobs), users=users, accounts=accounts,
        batch=instance.batch, instance_id=instance.id, address=instance.address, launch_called=launched,
        billed_from=launched, in_service_from=snapshot.now if found.is_node else None, attempts=1,
        reused_from=tagged if tagged != found.slot else "",
    )  # fmt: skip


def _offer(found: _UnknownMachine, cloud: CloudView) -> Offer:
    one, offers = found.instance, () if isinstance(cloud.offers, Unavailable) else cloud.offers
    for offer in offers:
        if (offer.zone, offer.instance_type, offer.spot) == (one.zone, one.instance_type, one.spot):
            return offer
    currency = offers[0].currency if offers else "EUR"
    return Offer(one.provider, "", one.zone, one.instance_type, one.spot, found.pool.shape, Decimal(0), currency)
