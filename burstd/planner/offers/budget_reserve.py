"""What is held back for a machine before its launch."""

from __future__ import annotations

from decimal import Decimal

from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import Want


def machine_reserve(want: Want, offer: Offer, alternatives: tuple[Offer, ...]) -> tuple[Decimal, Decimal]:
    """The most that one machine of the want may cost, and what of it is for output; zeros where no budget pays.

    ``alternatives`` are offers that the launch may move it to: the dearest counts.
    """
    if not want.reserved:
        return Decimal(0), Decimal(0)
    may_be = {offer.id, *(other.id for other in alternatives)}
    known = [reserve for reserve in want.reserved if reserve.offer in may_be]
    # An offer that no budget has seen is taken to cost as much as the dearest that it has.
    some = known if len(known) >= len(may_be) else want.reserved
    return max(r.amount for r in some), max(r.egress for r in some)
