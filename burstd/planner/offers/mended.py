"""Circuit breakers that a person's hand takes away: by a reload that mends what failed, or by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from burstd.domain.snapshot import CircuitBreaker
from burstd.planner.offers import reuse
from burstd.planner.offers.offers import BACKOFF

_OF_THE_MACHINE = frozenset({"health", "node_down", "lost", "ended"})
"""Causes that no setting brings about."""
_OFFER_FIELDS = 5
"""Of a breaker's key; a sixth one is its pool."""


def breakers_mended_by_reload(
    breakers: Iterable[CircuitBreaker], changed_pools: Collection[str], *, checks_changed: bool
) -> list[CircuitBreaker]:
    """Those of these pools, and, where the settings of all checks changed, those of validations that failed."""
    changed = {pool.replace("/", "%2F") for pool in changed_pools}
    handed_over = {reuse.breaker_key(pool) for pool in changed_pools}
    found = []
    for breaker in breakers:
        fields = breaker.key.split("/")
        of_pool = breaker.key in handed_over or (len(fields) > _OFFER_FIELDS and fields[-1] in changed)
        of_check = (
            len(fields) >= _OFFER_FIELDS and breaker.cause not in BACKOFF and breaker.cause not in _OF_THE_MACHINE
        )
        if of_pool or (checks_changed and of_check):
            found.append(breaker)
    return found


def breakers_of_place(
    breakers: Iterable[CircuitBreaker], provider: str, zone: str, instance_type: str
) -> list[CircuitBreaker]:
    """Those of offers that name the provider and, where they are not empty, the zone and the type.

    One that holds in every zone does not name this one.
    """
    wanted = [part.replace("/", "%2F") for part in (provider, zone, instance_type)]
    return [
        breaker
        for breaker in breakers
        for fields in [breaker.key.split("/")]
        if len(fields) >= _OFFER_FIELDS
        and all(not one or one == other for one, other in zip(wanted, (fields[0], fields[2], fields[3]), strict=True))
    ]
