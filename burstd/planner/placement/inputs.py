"""What placement depends on besides the queue. Where it is the same as the last time, most of the answer is as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter, is_

from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.offers.dedicated import words_of
from burstd.planner.offers.offers import Judged, candidates
from burstd.planner.placement.first_fit import Doubts, doubts

_CLAIM = attrgetter("id", "pool", "slot", "state", "created", "since", "opened", "jobs", "gang")


@dataclass(frozen=True, slots=True)
class World:
    """One of them. ``same`` says whether another would be answered alike."""

    pools: Mapping[str, Pool]
    judged: Mapping[str, tuple[Judged, ...]]
    nodes: Mapping[str, Node]
    reserved: frozenset[str]
    """Nodes that a reservation holds now."""
    claims: tuple[Claim, ...]
    held: frozenset[str]
    bound: Mapping[str, frozenset[str]]
    private: Mapping[str, tuple[str, ...]]
    doubts: Doubts
    interruptions: Mapping[str, frozenset[int]]
    spot_interruptions: int
    told: tuple[object, ...]
    """What ``judged`` was made from."""

    def same(self, other: World) -> bool:
        """True where placement answers alike, given the same queue. Neither waits for anything that time brings."""
        return (
            (self.spot_interruptions, self.held, self.reserved, self.doubts)
            == (other.spot_interruptions, other.held, other.reserved, other.doubts)
            and self.bound == other.bound
            and self.private == other.private
            and self.interruptions == other.interruptions
            and self.judged == other.judged
            and self.pools == other.pools
            and self.nodes == other.nodes
            and _alike(self.claims, other.claims)
        )


def world_of(snapshot: Snapshot, slurm: SlurmView, spot_interruptions: int, last: World | None) -> World:
    """The world of a snapshot."""
    clouds = {name: cloud.offers for name, cloud in snapshot.clouds.items()}
    told = (snapshot.pools, snapshot.images, clouds)
    if last is not None and not snapshot.breakers and told == last.told:
        judged = last.judged
    else:
        judged = {name: candidates(snapshot, pool) for name, pool in snapshot.pools.items()}
    return World(
        pools=snapshot.pools,
        judged=judged,
        nodes=slurm.nodes,
        reserved=frozenset(
            name
            for r in slurm.reservations
            if r.start <= snapshot.now and (not r.end or snapshot.now < r.end)
            for name in r.nodes
        ),
        claims=snapshot.claims,
        held=snapshot.held_slots,
        bound=snapshot.bound,
        private=words_of(snapshot, slurm),
        doubts=doubts(snapshot),
        interruptions=snapshot.interruptions,
        spot_interruptions=spot_interruptions,
        # What a breaker says changes with every second.
        told=() if snapshot.breakers else told,
    )


def usable(judged: Mapping[str, tuple[Judged, ...]]) -> dict[str, tuple[Offer, ...]]:
    """By pool the offers that may fill it, best first."""
    return {name: tuple(j.offer for j in some if j.offer and not j.refused) for name, some in judged.items()}


def _alike(some: tuple[Claim, ...], others: tuple[Claim, ...]) -> bool:
    if len(some) != len(others):
        return False
    return all(map(is_, some, others)) or all(_CLAIM(a) == _CLAIM(b) for a, b in zip(some, others, strict=True))
