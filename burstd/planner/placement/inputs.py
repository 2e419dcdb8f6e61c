"""What placement depends on besides the queue. Where it is the same as the last time, most of the answer is as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter, is_

from burstd.domain.billing.rates import Rates
from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.offers.dedicated import dedicated_consumers
from burstd.planner.offers.offers import OfferEvaluation, evaluate_offers, fabric_places
from burstd.planner.placement.first_fit import StuckJobs, find_stuck_jobs
from burstd.planner.placement.node_users import NodeUsers, node_users

_CLAIM = attrgetter("id", "pool", "slot", "state", "created", "since", "in_service_from", "jobs", "gang")


@dataclass(frozen=True, slots=True)
class PlacementInputs:
    """One of them. ``equivalent_to`` says whether another would be answered alike."""

    pools: Mapping[str, Pool]
    evaluations: Mapping[str, tuple[OfferEvaluation, ...]]
    nodes: Mapping[str, Node]
    reserved: frozenset[str]
    """Nodes that a reservation holds now."""
    claims: tuple[Claim, ...]
    held_slots: frozenset[str]
    drained_by: Mapping[str, str]
    bound: Mapping[str, frozenset[str]]
    dedicated: Mapping[str, tuple[str, ...]]
    node_users: Mapping[str, NodeUsers]
    exclusive_partitions: frozenset[str]
    stuck_jobs: StuckJobs
    interruptions: Mapping[str, frozenset[int]]
    spot_interruptions: int
    rates: Rates
    evaluated_from: tuple[object, ...]
    """What ``evaluations`` was made from."""

    def equivalent_to(self, other: PlacementInputs) -> bool:
        """True where placement answers alike, given the same queue. Neither waits for anything that time brings."""
        return (
            (self.spot_interruptions, self.held_slots, self.drained_by, self.reserved, self.stuck_jobs)
            == (other.spot_interruptions, other.held_slots, other.drained_by, other.reserved, other.stuck_jobs)
            and self.exclusive_partitions == other.exclusive_partitions
            and self.bound == other.bound
            and self.rates == other.rates
            and self.dedicated == other.dedicated
            and self.interruptions == other.interruptions
            and self.evaluations == other.evaluations
            and self.pools == other.pools
            and self.nodes == other.nodes
            and self.node_users == other.node_users
            and _alike(self.claims, other.claims)
        )


def placement_inputs(
    snapshot: Snapshot,
    slurm: SlurmView,
    spot_interruptions: int,
    exclusive_partitions: frozenset[str],
    previous: PlacementInputs | None,
) -> PlacementInputs:
    """The world of a snapshot. ``exclusive_partitions`` are Demand's."""
    clouds = {name: cloud.offers for name, cloud in snapshot.clouds.items()}
    places = {name: fabric_places(snapshot, pool) for name, pool in snapshot.pools.items() if pool.fabric}
    evaluated_from = (snapshot.rates, snapshot.pools, snapshot.images, clouds, snapshot.places, places)
    if previous is not None and not snapshot.breakers and evaluated_from == previous.evaluated_from:
        evaluations = previous.evaluations
    else:
        evaluations = {name: evaluate_offers(snapshot, pool) for name, pool in snapshot.pools.items()}
    return PlacementInputs(
        pools=snapshot.pools,
        evaluations=evaluations,
        nodes=slurm.nodes,
        reserved=frozenset(
            name
            for r in slurm.reservations
            if r.start <= snapshot.now and (not r.end or snapshot.now < r.end)
            for name in r.nodes
        ),
        claims=snapshot.claims,
        held_slots=snapshot.drained_slots,
        drained_by=snapshot.drained_by,
        bound=snapshot.bound,
        dedicated=dedicated_consumers(snapshot, slurm),
        node_users=node_users(slurm, exclusive_partitions),
        exclusive_partitions=exclusive_partitions,
        stuck_jobs=find_stuck_jobs(snapshot),
        interruptions=snapshot.interruptions,
        spot_interruptions=spot_interruptions,
        rates=snapshot.rates,
        # What a breaker says changes with every second.
        evaluated_from=() if snapshot.breakers else evaluated_from,
    )


def usable_by_pool(evaluations: Mapping[str, tuple[OfferEvaluation, ...]]) -> dict[str, tuple[Offer, ...]]:
    """By pool the offers that may fill it, best first."""
    return {
        name: tuple(j.offer for j in some if j.offer and not j.rejected_because) for name, some in evaluations.items()
    }


def _alike(some: tuple[Claim, ...], others: tuple[Claim, ...]) -> bool:
    if len(some) != len(others):
        return False
    return all(map(is_, some, others)) or all(_CLAIM(a) == _CLAIM(b) for a, b in zip(some, others, strict=True))
