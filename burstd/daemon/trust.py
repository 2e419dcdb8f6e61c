"""Which offers are not to be tried for a while: the breakers, kept in the store."""

from __future__ import annotations

import structlog

from burstd.core.offers import breaker_key, mended_by, next_breaker
from burstd.model.clock import Clock
from burstd.model.offer import Offer
from burstd.store import Store

log = structlog.get_logger(__name__)


class Trust:
    """Notes failures and successes of offers."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def broke(self, offer: Offer, cause: str, error: str, retry_after_s: float = 0.0) -> None:
        """An offer failed: the next loop leaves it, and what the cause says of its like, alone for a while."""
        now, key = self._clock.now(), breaker_key(offer, cause)
        known = next((b for b in self._store.breakers() if b.key == key and b.cause == cause), None)
        breaker = next_breaker(known, offer, cause, now, error, retry_after_s)
        self._store.save_breaker(breaker)
        log.warning("offer failed", offer=offer.id, cause=cause, error=error, again_in_s=round(breaker.until - now))

    def worked(self, offer: Offer, *, ready: bool) -> None:
        """A launch went well, or (``ready``) brought a proven node."""
        for breaker in mended_by(self._store.breakers(), offer, ready=ready):
            self._store.clear_breakers("burstd", breaker.key, breaker.cause)
