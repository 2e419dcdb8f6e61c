"""What binds the nodes of one job to each other, in words."""

from __future__ import annotations

from collections.abc import Sequence

from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import Offer, Pool

_PLACEMENTS = {
    "placement-group": "a cluster placement group",
    "server-group": "a server group",
    "topology-key": "an affinity of their pods",
}


def offer_binding(offer: Offer, pool: Pool | None) -> tuple[str, str]:
    """Placement and fabric of machines of this offer for one job: by the settings where the provider cannot tell."""
    hardware = offer.hardware
    return hardware.placement, hardware.fabric or (pool.fabric if pool is not None else "")


def claim_binding(claim: Claim, pool: Pool | None) -> tuple[str, str]:
    """Those of a claim's machine. One that was not made for a job of several nodes is in no group."""
    placement, fabric = offer_binding(claim.offer, pool)
    if claim.gang:
        return placement, fabric
    return "", fabric if pool is not None and pool.fabric else ""


def gang_fabric_text(offers: Sequence[Offer], bindings: Sequence[tuple[str, str]], pools: Sequence[Pool | None]) -> str:
    """Of all nodes of a job: ``its 4 nodes: a cluster placement group, efa``; empty: there are not several."""
    in_pool = all(pool is not None and pool.fabric for pool in pools)
    if len(bindings) < 2:
        return ""
    places = {(offer.provider, offer.region, offer.zone) for offer in offers}
    if len(places) > 1:
        where = " and ".join(sorted("/".join(place) for place in places))
        return f"its {len(bindings)} nodes: nothing binds them, they are in {where}"
    return f"its {len(bindings)} nodes: {'; '.join(dict.fromkeys(_words(*one, in_pool) for one in bindings))}"


def _words(placement: str, fabric: str, in_pool: bool) -> str:
    """``in_pool``: they are of pools with a fabric, each of which is in one zone."""
    alone = "all in one zone" if in_pool else "nothing keeps them near each other"
    near = _PLACEMENTS.get(placement, placement) or alone
    network = {"": "a network of which nothing is known", "none": "the common network"}.get(fabric, fabric)
    return f"{near}, {network}"
