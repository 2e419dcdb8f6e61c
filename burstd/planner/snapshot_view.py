"""Questions to a snapshot that several steps of a decision ask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, Leftover
from burstd.domain.plan import HandOver
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import CloudView, SlurmView, Snapshot, Unavailable
from burstd.planner.demand.demand import has_task
from burstd.planner.lifecycle.listing import DoubtedList, doubted_lists
from burstd.planner.lifecycle.output_retention import RETENTION_S, NodeRetention, retained_nodes
from burstd.planner.lifecycle.ownership import Ownership
from burstd.planner.lifecycle.spot_notices import NodeNotice, notice_of_node

WAITING = frozenset({JobState.PENDING, JobState.CONFIGURING, JobState.REQUEUED})
_POWER_FLAGS = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"})
_WITH_ADDRESS = (S.BOOTING, S.VALIDATING, S.READY, S.DRAINING, S.IN_SERVICE)
"""States of claims whose machine has an address, those that came furthest last."""
_BOOTING = frozenset({S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING})
CLAIM_PHASES = ("booting", "ready", "busy", "idle", "leaving", "failed")
"""What ``claim_phase`` may return."""


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot with its indexes, built once a decision."""

    snapshot: Snapshot
    slurm: SlurmView | None
    """None: Slurm could not be read."""
    jobs: Callable[[], Mapping[str, Job]] = dict
    """Jobs by id; indexed when the first is asked for."""
    notices: Callable[[], Mapping[str, NodeNotice]] = dict
    """By slot, the notice of its node; parsed when the first is asked for."""
    by_claim: Mapping[str, Instance] = field(default_factory=dict)
    leftovers: Mapping[str, tuple[Leftover, ...]] = field(default_factory=dict)
    """Unattached leftovers by claim id."""
    gated: frozenset[str] = frozenset()
    """Slots that the gate holds now."""
    gate_ends: float = float("inf")
    """When Slurm would end the gate's reservation by itself."""
    slots: frozenset[str] = frozenset()
    """Every slot that Slurm knows, and those of claims whose pool is not configured any more."""
    claimed: Mapping[str, Claim] = field(default_factory=dict)
    """Live claims by slot."""
    retained: Mapping[str, NodeRetention] = field(default_factory=dict)
    """Claims whose machine holds output of a job."""
    doubted: Mapping[str, DoubtedList] = field(default_factory=dict)
    """Providers whose lists are not believed now."""

    handovers: Mapping[str, HandOver] = field(default_factory=dict)
    """By claim, where its machine goes once its node is proven idle."""
    nodes_on: Callable[[], Mapping[str, str]] = dict
    """By address the node that Slurm has there, up or with a job."""
    address_owners: Callable[[], Mapping[str, tuple[str, str]]] = dict
    """By address the claim's id (empty: none of ours) and the name of the node that is there."""
    unknown_addresses: Callable[[], frozenset[str]] = frozenset
    """Addresses of living machines that the record does not know (``Snapshot.unrecorded_instances``)."""

    @property
    def now(self) -> float:
        """The snapshot's moment."""
        return self.snapshot.now

    def node(self, slot: str) -> Node | None:
        """Slurm's node of a slot; None: Slurm cannot be read or has none of the name."""
        return self.slurm.nodes.get(slot) if self.slurm else None

    def notice(self, slot: str) -> NodeNotice | None:
        """The notice that the node of a slot bears; None: none."""
        return self.notices().get(slot)

    def cloud(self, claim: Claim) -> CloudView | None:
        """What the claim's provider showed; None: it is not configured any more or was not read yet."""
        return self.snapshot.clouds.get(claim.offer.provider)

    def other_node_at(self, address: str, claim: Claim) -> str:
        """Another node that has the address, whatever a cloud says of the claim's machine; empty: none."""
        holder, name = self.address_owners().get(address, (claim.id, ""))
        return "" if holder == claim.id else name

    def job(self, job_id: str) -> Job | None:
        """A job by its id; for a task of an array that waits with the others (``123_4``) the row of them all."""
        jobs = self.jobs()
        found = jobs.get(job_id)
        array, _, task = job_id.partition("_")
        if found is None and task and (row := jobs.get(array)) is not None and has_task(row.array_tasks, task):
            return row
        return found

    def is_waiting(self, job_id: str) -> bool:
        """True while the job (or a task of the array, or any component of the het job) is pending."""
        job = self.job(job_id)
        return job is not None and job.state in WAITING


def build_view(snapshot: Snapshot, gate: str, retention_s: float = RETENTION_S) -> SnapshotView:
    """Builds the indexes. ``gate`` is the name of the gate's reservation; ``retention_s`` is Tuning's."""
    slurm = snapshot.slurm if isinstance(snapshot.slurm, SlurmView) else None
    by_claim: dict[str, Instance] = {}
    every_claim = (*snapshot.claims, *snapshot.storage_claims)
    recorded = {c.id: c.instance_id for c in every_claim if c.instance_id}
    listings = [c.instances for c in snapshot.clouds.values() if not isinstance(c.instances, Unavailable)]
    ownership = Ownership(every_claim, (instance for listing in listings for instance in listing))
    leftovers: dict[str, list[Leftover]] = {}
    for cloud in snapshot.clouds.values():
        if not isinstance(cloud.instances, Unavailable):
            for instance in cloud.instances:
                # Of two instances with one claim the recorded one counts, else one that lives; the other is a stray.
                owner = ownership.claim_of(instance)
                known, recorded_id = by_claim.get(owner), recorded.get(owner)
                better = instance.id == recorded_id and (known is None or known.id != recorded_id or known.state.ended)
                if owner and (known is None or better or (known.state.ended and known.id != recorded_id)):
                    by_claim[owner] = instance
        if not isinstance(cloud.leftovers, Unavailable):
            for leftover in cloud.leftovers:
                if not leftover.attached_to:
                    leftovers.setdefault(leftover.claim_id, []).append(leftover)
    every = {slot for pool in snapshot.pools.values() for slot in pool.slots} | {c.slot for c in snapshot.claims}
    gate_reservation = next((r for r in slurm.reservations if r.name == gate), None) if slurm else None
    return SnapshotView(
        snapshot=snapshot,
        slurm=slurm,
        jobs=cache(partial(_jobs_by_id, slurm.jobs if slurm else ())),
        notices=cache(partial(_notices, slurm)),
        by_claim=by_claim,
        leftovers={claim: tuple(rest) for claim, rest in leftovers.items()},
        gated=gate_reservation.nodes if gate_reservation else frozenset(),
        gate_ends=gate_reservation.end if gate_reservation and gate_reservation.end else float("inf"),
        slots=frozenset(slot for slot in every if slurm and slot in slurm.nodes),
        claimed={claim.slot: claim for claim in snapshot.claims},
        retained=retained_nodes(snapshot, retention_s),
        doubted=doubted_lists(snapshot),
        address_owners=cache(partial(_address_owners, every_claim, slurm, every)),
        nodes_on=cache(partial(_nodes_on, slurm)),
        unknown_addresses=cache(partial(_unknown_addresses, snapshot)),
    )


def _unknown_addresses(snapshot: Snapshot) -> frozenset[str]:
    if not snapshot.unrecorded_instances:
        return frozenset()
    return frozenset(
        i.address
        for cloud in snapshot.clouds.values()
        if not isinstance(cloud.instances, Unavailable)
        for i in cloud.instances
        if i.address and not i.state.ended and (i.provider, i.id) in snapshot.unrecorded_instances
    )


def claim_phase(claim: Claim, snapshot: Snapshot) -> str:
    """How a machine stands, in the words of ``burstctl status``: one of CLAIM_PHASES."""
    if claim.state in _BOOTING:
        return "booting"
    if claim.state is S.READY:
        return "ready"
    if claim.state is S.IN_SERVICE:
        node = snapshot.slurm.nodes.get(claim.slot) if isinstance(snapshot.slurm, SlurmView) else None
        return "busy" if node is None or node.busy else "idle"
    # A claim keeps its error until it is gone.
    return "failed" if claim.state is S.FAILED or claim.error else "leaving"


def is_on(node: Node | None) -> bool:
    """Slurm has a machine behind it: it is up, or a job runs there."""
    return node is not None and (node.up or node.busy) and node.flags.isdisjoint(_POWER_FLAGS)


def _nodes_on(slurm: SlurmView | None) -> dict[str, str]:
    return {node.address: node.name for node in slurm.nodes.values() if is_on(node)} if slurm else {}


def _address_owners(
    claims: Iterable[Claim], slurm: SlurmView | None, slots: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Of claims with one address it is whose that came furthest, or first; a node that is none of ours has its own."""
    with_address = [claim for claim in claims if claim.state in _WITH_ADDRESS and claim.address]
    with_address.sort(key=lambda claim: (_WITH_ADDRESS.index(claim.state), -claim.created, claim.id))
    found = {claim.address: (claim.id, claim.slot) for claim in with_address}
    others = [node for node in slurm.nodes.values() if node.name not in slots] if slurm else []
    return found | {node.address: ("", node.name) for node in others if node.address}


def _notices(slurm: SlurmView | None) -> dict[str, NodeNotice]:
    drained = [node for node in slurm.nodes.values() if "DRAIN" in node.flags] if slurm else []
    return {node.name: notice for node in drained if (notice := notice_of_node(node)) is not None}


def _jobs_by_id(jobs: tuple[Job, ...]) -> dict[str, Job]:
    """Jobs by id; the leader of a het job and the pending rest of an array by their bare number as well."""
    index = {job.id: job for job in jobs}
    for job in jobs:
        for bare in (job.array_job_id, job.het_job_id):
            if bare and (bare not in index or (index[bare].state not in WAITING and job.state in WAITING)):
                index[bare] = job
    return index
