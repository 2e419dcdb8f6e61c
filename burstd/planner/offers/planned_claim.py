"""A machine's claim before its launch, with what a budget holds back for it."""

from __future__ import annotations

from decimal import Decimal

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import Want


def planned_claim(
    want: Want, slot: str, offer: Offer, cluster: str, now: float, image: str = "", alternatives: tuple[Offer, ...] = ()
) -> Claim:
    """The claim of one machine of the want, without an id. ``alternatives``: offers that the launch may move it to."""
    reserved, egress = _machine_reserve(want, offer, alternatives)
    return Claim(
        id="", cluster=cluster, pool=want.pool, slot=slot, offer=offer, cause=want.cause, state=ClaimState.PLANNED,
        created=now, since=now, reason=want.reason, jobs=want.jobs, users=want.users, gang=want.gang, image=image,
        accounts=want.accounts, reserved=reserved, egress=egress, dedicated_by_policy=want.dedicated,
    )  # fmt: skip


def _machine_reserve(want: Want, offer: Offer, alternatives: tuple[Offer, ...]) -> tuple[Decimal, Decimal]:
    """The most that it may cost, and what of it is for output; zeros where no budget pays. The dearest offer counts."""
    if not want.reserved:
        return Decimal(0), Decimal(0)
    may_be = {offer.id, *(other.id for other in alternatives)}
    known = [reserve for reserve in want.reserved if reserve.offer in may_be]
    # An offer that no budget has seen is taken to cost as much as the dearest that it has.
    some = known if len(known) >= len(may_be) else want.reserved
    return max(r.amount for r in some), max(r.egress for r in some)
