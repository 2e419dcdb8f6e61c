"""Which version of an image new machines start from, and nodes of another version, which make way when idle.

A provider tells the versions of an image's word, newest first (``VersionedImages``). The newest is taken,
until a machine of it fails for a reason that may be the image's, and none of it ever became a node: then a breaker
names the version, and the one before it is taken. A version of which there was a node is never to blame.

A machine that nobody reaches after its launch may have a bad host or network. It speaks against its version only as
the second one of it, where another version of the word has been a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plugins.policy import NodeRelease, Remark, Target
from burstd.domain.snapshot import CircuitBreaker, SlurmView, Snapshot
from burstd.planner.lifecycle.output_retention import retained_nodes
from burstd.planner.offers.offers import LAUNCH_CAUSES, configured_image, extended_breaker, open_breakers

VERSION_CAUSE = "version"
"""Cause of a breaker that names a version of an image."""
FIRST_BACKOFF_S = 3600.0
MAX_BACKOFF_S = 86400.0
HANG = "boot_timeout"
"""Cause of a machine that was not reached within its time."""
HANGS = 2
"""Machines that must hang before their version is to blame."""
_NOT_THE_IMAGE = (LAUNCH_CAUSES - {"image"}) | {
    "auth",
    "clock",
    "health",
    "hostkey",
    "interrupted",
    "lost",
    "node_down",
    "validation_timeout",
    "ssh",
}
"""Causes that clouds, networks and slurmctld bring about too."""
_COMING = frozenset(
    {ClaimState.PLANNED, ClaimState.LAUNCHING, ClaimState.BOOTING, ClaimState.VALIDATING, ClaimState.READY}
)
_GOING = frozenset({ClaimState.DRAINING, ClaimState.FAILED, ClaimState.LOST, ClaimState.TERMINATING})


def image_for(snapshot: Snapshot, pool: Pool, offer: Offer) -> str:
    """What a machine of this offer is to be launched from for the pool: a version, or the word where none are known."""
    image = configured_image(pool, offer)
    return (
        choose_version(_versions(snapshot, offer.provider, image), offer.provider, snapshot.breakers, snapshot.now)
        or image
    )


def choose_version(versions: Sequence[str], provider: str, breakers: Sequence[CircuitBreaker], now: float) -> str:
    """The newest version that has not failed lately; where all have, the newest; empty: there is none."""
    open_keys = {b.key for b in breakers if b.cause == VERSION_CAUSE and b.until > now}
    good = (version for version in versions if image_breaker_key(provider, version) not in open_keys)
    return next(good, next(iter(versions), ""))


def image_breaker_key(provider: str, version: str) -> str:
    """Of a version's breaker. It has no more than three parts, so that it never covers an offer."""
    return f"{provider}/image/{version.replace('/', '%2F')}"


def image_at_fault(
    claim: Claim, cause: str, versions: Sequence[str], *, validated: Callable[[str], bool], hung: int
) -> bool:
    """Whether a machine that did not become a node speaks against its image's version, and not against its offer.

    ``versions``: of its word; ``validated``: whether there was a node of a version; ``hung``: machines of the claim's
    version that were never reached, this one too.
    """
    others = [version for version in versions if version != claim.image]
    if claim.image not in versions or not others or validated(claim.image) or cause in _NOT_THE_IMAGE:
        return False
    return cause != HANG or (hung >= HANGS and any(map(validated, others)))


def next_version_breaker(known: CircuitBreaker | None, claim: Claim, now: float, error: str) -> CircuitBreaker:
    """The breaker of the claim's version after one more failure; ``known``: the one that there is."""
    return extended_breaker(
        known,
        image_breaker_key(claim.offer.provider, claim.image),
        VERSION_CAUSE,
        FIRST_BACKOFF_S,
        MAX_BACKOFF_S,
        now,
        error,
    )


def drain_outdated_nodes(snapshot: Snapshot, target: Target, retention_s: float) -> Target:
    """Lets idle nodes of another version go, one of a pool at a time, while no node of the pool comes or goes.

    None goes whose like cannot be had now.
    """
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView) or not snapshot.images:
        return target
    going = {release.claim_id for release in target.releases}
    assigned = {name for names in target.placements.values() for name in names}
    bound = frozenset().union(*snapshot.bound.values()) if snapshot.bound else frozenset()
    retained = retained_nodes(snapshot, retention_s)
    breakers = open_breakers(snapshot)
    moving = {c.pool for c in snapshot.claims if c.state in _COMING | _GOING or c.id in going}
    releases, remarks = [], []
    for claim in snapshot.claims:
        # What costs least to look at comes first: there may be thousands of claims.
        if claim.state is not ClaimState.IN_SERVICE or claim.pool in moving:
            continue
        node = slurm.nodes.get(claim.slot)
        if node is None or node.busy or claim.slot in assigned or claim.slot in bound or claim.id in retained:
            continue
        newer = newer_version(snapshot, claim)
        if newer and target.offers.get(claim.pool) and not breakers.breakers_for(claim.offer, claim.pool):
            moving.add(claim.pool)
            why = f"it runs {claim.image}, and new nodes start from {newer}"
            releases.append(NodeRelease(claim.id, claim.pool, why))
            remarks.append(Remark("images", f"claim:{claim.id}", "release", why))
    return replace(target, releases=(*target.releases, *releases), remarks=(*target.remarks, *remarks))


def newer_version(snapshot: Snapshot, claim: Claim) -> str:
    """The version that a new machine in the claim's place would start from, where that is another; empty: it is not."""
    pool = snapshot.pools.get(claim.pool)
    if pool is None or not claim.image:
        return ""
    versions = _versions(snapshot, claim.offer.provider, configured_image(pool, claim.offer))
    best = choose_version(versions, claim.offer.provider, snapshot.breakers, snapshot.now)
    return best if best and best != claim.image and claim.image != configured_image(pool, claim.offer) else ""


def _versions(snapshot: Snapshot, provider: str, image: str) -> Sequence[str]:
    return snapshot.images.get(provider, {}).get(image, ())
