"""Launches machines: the claim and the exact request are committed before a cloud is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from burstd.daemon.memory import Memory
from burstd.daemon.trust import Trust
from burstd.daemon.workers import Workers
from burstd.model.claim import Claim
from burstd.model.claim import ClaimState as S
from burstd.model.clock import Clock
from burstd.model.errors import BurstdError, OutcomeUnknown, ProviderError, RateLimited
from burstd.model.instance import TAG_CLAIM, TAG_CLUSTER, Instance
from burstd.model.offer import Pool
from burstd.model.plan import Launch, MakeClaim
from burstd.model.provider import LaunchOutcome, LaunchRequest, Provider
from burstd.store import Store

log = structlog.get_logger(__name__)

_NOT_SAID = OutcomeUnknown("the provider did not say")


class Launcher:
    """Turns wants into claims and claims into launch calls."""

    def __init__(
        self,
        *,
        cluster: str,
        store: Store,
        providers: Mapping[str, Provider],
        workers: Workers,
        clock: Clock,
        memory: Memory,
        user_data: Callable[[Pool, str], str],
        pools: Callable[[], Mapping[str, Pool]],
        new_id: Callable[[], str],
        trust: Trust,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._providers = providers
        self._workers = workers
        self._clock = clock
        self._memory = memory
        self._user_data = user_data
        self._pools = pools
        self._new_id = new_id
        self._trust = trust

    def make(self, actions: Iterable[MakeClaim]) -> None:
        """Writes the claims down in one transaction, then launches them."""
        now = self._clock.now()
        taken = {c.slot for c in self._store.claims()}
        claims = []
        for a in actions:
            if a.slot in taken:
                continue
            taken.add(a.slot)
            claims.append(
                Claim(
                    id=self._new_id(), cluster=self._cluster, pool=a.pool, slot=a.slot, offer=a.offer, cause=a.cause,
                    state=S.PLANNED, created=now, since=now, reason=a.reason, jobs=a.jobs, users=a.users,
                    gang=a.gang, image=a.image,
                )
            )  # fmt: skip
        if claims:
            self._store.make_claims(claims)
            self._launch(claims)

    def again(self, action: Launch) -> int:
        """Launches a claim that is still PLANNED, or repeats the call whose answer was lost."""
        claim = self._store.claim(action.claim_id)
        if claim.state not in (S.PLANNED, S.LAUNCHING) or claim.id in self._memory.calling:
            return 0
        self._launch([claim])
        return 0

    def _launch(self, claims: Sequence[Claim]) -> None:
        by_provider: dict[str, list[LaunchRequest]] = {}
        # One flush to the disk for all: a thousand would keep the loop for seconds.
        with self._store.batch():
            for claim in claims:
                request = self._store.request(claim.id) if claim.state is S.LAUNCHING else None
                if request is None:
                    try:
                        request = self._request(claim)
                    except (BurstdError, OSError) as error:
                        self._give_up(claim, f"its user data cannot be made: {error}")
                        continue
                # The request is on record before the cloud hears of it; a repeat is word for word the same.
                self._store.record_request(claim.id, request)
                by_provider.setdefault(claim.offer.provider, []).append(request)
        for name, requests in by_provider.items():
            self._call(name, requests)

    def _give_up(self, claim: Claim, reason: str) -> None:
        """A file of the site's is in the way, which must not keep the rest of the plan from being done."""
        log.error("machine cannot be asked for", slot=claim.slot, pool=claim.pool, reason=reason)
        with self._store.batch():
            self._store.move(claim.id, S.PLANNED, S.GONE, reason, error="user_data")
            self._trust.broke(claim.offer, "user_data", reason)

    def _request(self, claim: Claim) -> LaunchRequest:
        tags = {TAG_CLUSTER: self._cluster, TAG_CLAIM: claim.id, "burstd-slot": claim.slot, "burstd-pool": claim.pool}
        name = f"{self._cluster}-{claim.slot}-{claim.id[-6:]}".lower().replace("_", "-")
        user_data = self._user_data(self._pools()[claim.pool], claim.offer.provider)
        return LaunchRequest(claim.id, name, claim.offer, claim.image, user_data, tags)

    def _call(self, name: str, requests: Sequence[LaunchRequest]) -> None:
        provider = self._providers[name]

        def done(result: Sequence[LaunchOutcome] | Exception) -> None:
            for request in requests:
                self._memory.calling.discard(request.claim_id)
            if isinstance(result, Exception):
                if not isinstance(result, ProviderError):
                    log.error("provider broke while launching", provider=name, exc_info=result)
                # Whatever it was: what the cloud has done of it is not known.
                error = result if isinstance(result, ProviderError) else OutcomeUnknown(repr(result))
                result = [LaunchOutcome(r.claim_id, error) for r in requests]
            answered = {outcome.claim_id: outcome.result for outcome in result}
            with self._store.batch():
                for request in requests:
                    self._settle(request, answered.get(request.claim_id, _NOT_SAID))

        # Not before: where the record of a later claim fails, these were never asked for and must be taken up again.
        self._memory.calling.update(request.claim_id for request in requests)
        self._workers.submit(name, lambda: provider.launch(requests), done)

    def _settle(self, request: LaunchRequest, result: Instance | ProviderError) -> None:
        claim = self._store.claim(request.claim_id)
        if claim.state is not S.LAUNCHING:
            return  # A listing was faster, or the claim was ended meanwhile.
        now = self._clock.now()
        if isinstance(result, Instance):
            self._memory.succeeded(claim.id)
            reason = f"{request.offer.id} gave instance {result.id}"
            self._store.move(
                claim.id, S.LAUNCHING, S.BOOTING, reason,
                instance_id=result.id, address=result.address, billed_from=now, launch_called=now,
            )  # fmt: skip
            self._trust.worked(claim.offer, ready=False)
        elif isinstance(result, OutcomeUnknown | RateLimited):
            self._memory.back_off(claim.id, now, result.retry_after_s)
            data = {"claim": claim.id}
            with self._store.batch():
                # It waited in its lane: the cloud may have heard of it as late as now.
                self._store.touch(claim.id, launch_called=now)
                self._store.append(
                    f"slot:{claim.slot}", new="unanswered", reason=str(result), cause=result.cause, data=data
                )
        else:
            self._memory.succeeded(claim.id)
            with self._store.batch():
                self._store.move(claim.id, S.LAUNCHING, S.FAILED, str(result), error=result.cause)
                if claim.attempts <= 1:
                    # Nothing was made and nothing is on its way: the slot is free for the next offer at once.
                    self._store.move(claim.id, S.FAILED, S.TERMINATING, "the cloud refused it")
                    self._store.move(claim.id, S.TERMINATING, S.GONE, "the cloud refused it, nothing was made")
            self._trust.broke(claim.offer, result.cause, str(result), result.retry_after_s)
