"""Circuit breakers of offers and image versions, kept in the store: open after a failure, closed by a success."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import NoSuchImage, ProviderError
from burstd.domain.snapshot import CircuitBreaker
from burstd.planner.offers import image_rollout, reuse
from burstd.planner.offers.offers import breaker_key, breakers_closed_by, next_breaker
from burstd.reconciler.context import LoopContext

log = structlog.get_logger(__name__)


class CircuitBreakers:
    """Opens and closes circuit breakers as offers and images fail and succeed."""

    def __init__(self, context: LoopContext, versions: Callable[[], Mapping[str, Mapping[str, Sequence[str]]]]) -> None:
        """``versions``: those of images, newest first, by provider and the image's name in the settings."""
        self._context, self._store = context, context.store
        self._versions = versions
        self._validated_images: set[str] = set()
        """Versions from which a node came up since this process began."""

    def record_machine_failure(self, claim: Claim, cause: str, error: str) -> None:
        """A machine did not become a node: opens the breaker of its image version if that is new, else of its offer.

        One that was a node before speaks against handing machines over, not against its offer.
        """
        if claim.being_handed_over:
            key = reuse.breaker_key(claim.pool)
            breaker = reuse.next_breaker(self._find_breaker(key, reuse.CAUSE), claim, self._context.clock.now(), error)
            self._store.save_breaker(breaker)
            log.error("machine that was handed over failed", pool=claim.pool, was=claim.reused_from, error=error)
            return
        versions = self._versions_of(claim)
        hung = self._hung_claims(claim) if versions and cause == image_rollout.HANG else ()
        if not image_rollout.image_at_fault(claim, cause, versions, validated=self._was_node, hung=len(hung)):
            self.record_offer_failure(claim.offer, cause, error, pool=claim.pool)
            return
        self._record_image_failure(claim, cause, error)
        # The offers of those that hung before are not to blame.
        for key in {breaker_key(one.offer, cause) for one in hung}:
            if self._find_breaker(key, cause) is not None:
                self._store.clear_breakers("burstd", key, cause)

    def record_refusal(self, claim: Claim, error: ProviderError) -> None:
        """A cloud refused a launch: opens the breaker of its image version if that is not there, else of its offer."""
        if error.cause == NoSuchImage.cause and self._is_withdrawn(claim):
            log.info("image was withdrawn, another version is taken", image=claim.image, error=str(error))
        elif error.cause == NoSuchImage.cause and len(self._versions_of(claim)) > 1:
            self._record_image_failure(claim, error.cause, str(error))
        else:
            self.record_offer_failure(claim.offer, error.cause, str(error), error.retry_after_s)

    def _hung_claims(self, claim: Claim) -> Sequence[Claim]:
        """Machines of its version, in its cloud, that were never reached; the claim itself is on record as one."""
        found = self._store.failed_claims(claim.image, image_rollout.HANG)
        return [one for one in found if one.offer.provider == claim.offer.provider]

    def _is_withdrawn(self, claim: Claim) -> bool:
        """Whether its image was a version when the machine was planned, and is none any more."""
        known = self._versions().get(claim.offer.provider, {})
        return bool(known) and claim.image not in known and not any(claim.image in some for some in known.values())

    def _versions_of(self, claim: Claim) -> Sequence[str]:
        """Those of its image's word; none where it has none."""
        known = self._versions().get(claim.offer.provider, {}).values()
        return next((some for some in known if claim.image in some), ())

    def _record_image_failure(self, claim: Claim, cause: str, error: str) -> None:
        key, now = image_rollout.image_breaker_key(claim.offer.provider, claim.image), self._context.clock.now()
        breaker = image_rollout.next_version_breaker(
            self._find_breaker(key, image_rollout.VERSION_CAUSE), claim, now, error
        )
        self._store.save_breaker(breaker)
        log.error("image failed, another version is taken", image=claim.image, cause=cause, error=error,
                  again_in_s=round(breaker.until - now))  # fmt: skip

    def record_machine_success(self, claim: Claim) -> None:
        """A machine became a node: closes the breakers of its image's version and of its offer."""
        if claim.being_handed_over:
            key = reuse.breaker_key(claim.pool)
            if self._find_breaker(key, reuse.CAUSE) is not None:
                self._store.clear_breakers("burstd", key, reuse.CAUSE)
            return
        self.record_offer_success(claim.offer, ready=True, pool=claim.pool)
        if claim.image:
            self._validated_images.add(claim.image)
            key = image_rollout.image_breaker_key(claim.offer.provider, claim.image)
            if self._find_breaker(key, image_rollout.VERSION_CAUSE) is not None:
                self._store.clear_breakers("burstd", key, image_rollout.VERSION_CAUSE)

    def _was_node(self, image: str) -> bool:
        return image in self._validated_images or self._store.image_was_in_service(image)

    def _find_breaker(self, key: str, cause: str) -> CircuitBreaker | None:
        return next((b for b in self._store.breakers() if b.key == key and b.cause == cause), None)

    def record_offer_failure(
        self, offer: Offer, cause: str, error: str, retry_after_s: float = 0.0, pool: str = ""
    ) -> None:
        """Opens the breaker of an offer, and of the offers that its cause covers; ``pool``: that it was for."""
        now, key = self._context.clock.now(), breaker_key(offer, cause, pool)
        breaker = next_breaker(self._find_breaker(key, cause), offer, cause, now, error, retry_after_s, pool)
        self._store.save_breaker(breaker)
        log.warning("offer failed", offer=offer.id, cause=cause, error=error, again_in_s=round(breaker.until - now))

    def record_offer_success(self, offer: Offer, *, ready: bool, pool: str = "") -> None:
        """Closes breakers after a launch, or (``ready``) after a validated node of a pool."""
        for breaker in breakers_closed_by(self._store.breakers(), offer, ready=ready, pool=pool):
            self._store.clear_breakers("burstd", breaker.key, breaker.cause)
