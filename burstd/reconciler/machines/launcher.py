"""Launches machines: the claim and the exact request are committed before a cloud is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, TAG_POOL, TAG_SLOT, Instance
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.cloud.volume import LaunchDisk
from burstd.domain.errors import (
    BurstdError,
    ClientTokenSpent,
    CloudUnavailable,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
)
from burstd.domain.plan import LaunchMachine, MakeClaim
from burstd.domain.plugins.provider import LaunchOutcome, LaunchPreparer, LaunchRequest, VolumeProvider
from burstd.planner.isolation import action_subjects, node_subject
from burstd.reconciler.context import LoopContext
from burstd.reconciler.machines.circuit_breakers import CircuitBreakers
from burstd.reconciler.machines.progress import ProgressTable
from burstd.staging.volumes.node_mounts import NoVolume, launch_disks

log = structlog.get_logger(__name__)

_NO_OUTCOME = OutcomeUnknown("the provider did not say")
THROTTLED_S = 30.0
"""A request that a cloud does not take up for so long is given up for the next offer."""


class Launcher:
    """Turns wants into claims and claims into launch calls."""

    def __init__(
        self,
        context: LoopContext,
        progress: ProgressTable,
        breakers: CircuitBreakers,
        pools: Callable[[], Mapping[str, Pool]],
    ) -> None:
        self._context, self._store = context, context.store
        self._progress = progress
        self._breakers = breakers
        self._pools = pools

    def make_claims(self, actions: Iterable[MakeClaim]) -> None:
        """Writes the claims down in one transaction, then launches them."""
        if not (wanted := list(actions)):
            return
        now = self._context.clock.now()
        taken = {c.slot for c in self._store.claims()}
        claims, others = [], {}
        for action in wanted:
            planned = action.claim
            if planned.slot in taken:
                continue
            taken.add(planned.slot)
            with self._context.quarantine.contain_errors("MakeClaim", *action_subjects(action, {})):
                claims.append(replace(planned, id=self._context.new_id(), created=now, since=now))
                others[claims[-1].id] = action.others
        if claims:
            self._store.make_claims(claims)
            self._make_requests(claims, others)

    def retry_launches(self, actions: Iterable[LaunchMachine]) -> None:
        """Launches claims that are still PLANNED, and repeats calls whose answer was lost, all of a batch together."""
        claims = [self._store.claim(action.claim_id) for action in actions]
        idle = [claim for claim in claims if not self._progress.claims[claim.id].call.in_flight]
        if not idle:
            return
        self._make_requests([claim for claim in idle if claim.state is S.PLANNED], {})
        asked = [claim for claim in idle if claim.state is S.LAUNCHING]
        self._launch([request for claim in asked if (request := self._store.launch_request(claim.id)) is not None])

    def _make_requests(self, claims: Sequence[Claim], others: Mapping[str, tuple[Offer, ...]]) -> None:
        """Makes the requests; a provider that serves many by one call puts them together first."""
        by_provider: dict[str, list[LaunchRequest]] = {}
        with self._store.batch():
            for claim in claims:
                with self._context.quarantine.contain_errors("Launch", node_subject(claim.slot)):
                    try:
                        if (disks := self._disks(claim)) is None:
                            continue  # It stays PLANNED, and is taken up again in each loop.
                        request = self._request(claim, others.get(claim.id, ()), disks)
                    except NoVolume as error:
                        self._store.transition_claim(claim.id, S.PLANNED, S.GONE, f"{error}; nothing was launched")
                        continue
                    except (BurstdError, OSError) as error:
                        reason = f"its user data cannot be made: {error}"
                        self._give_up(claim, "user_data", reason)
                        self._breakers.record_offer_failure(claim.offer, "user_data", reason)
                        continue
                    by_provider.setdefault(claim.offer.provider, []).append(request)
        for name, requests in by_provider.items():
            provider = self._context.providers[name]
            if isinstance(provider, LaunchPreparer):
                self._prepare(name, provider, requests)
            else:
                self._launch(requests)

    def _prepare(self, name: str, provider: LaunchPreparer, requests: Sequence[LaunchRequest]) -> None:
        def done(result: Sequence[LaunchRequest | ProviderError] | Exception) -> None:
            self._set_in_flight(requests, in_flight=False)
            if isinstance(result, Exception) and not isinstance(result, ProviderError):
                log.error("provider broke while preparing a launch", provider=name, exc_info=result)
                # Nothing was asked for; the next offer is tried, and this cloud again after a while.
                result = CloudUnavailable(f"the provider broke while it prepared the launch: {result!r}")
            answers = [result] * len(requests) if isinstance(result, ProviderError) else result
            ready = []
            with self._store.batch():
                for request, answer in zip(requests, answers, strict=True):
                    claim = self._store.claim(request.claim_id)
                    if claim.state is not S.PLANNED:
                        continue
                    with self._context.quarantine.contain_errors("Launch", node_subject(claim.slot)):
                        if isinstance(answer, LaunchRequest):
                            ready.append(answer)
                        else:
                            self._give_up(claim, answer.cause, str(answer))
                            self._breakers.record_refusal(claim, answer)
            self._launch(ready)

        self._set_in_flight(requests, in_flight=True)
        self._context.workers.submit(name, lambda: provider.prepare(requests), done)

    def _launch(self, requests: Sequence[LaunchRequest]) -> None:
        by_provider: dict[str, list[LaunchRequest]] = {}
        for request in requests:
            by_provider.setdefault(request.offer.provider, []).append(request)
        # The requests are on record before a cloud hears of them; a repeat is word for word the same.
        self._store.record_launch_requests(requests)
        for name, some in by_provider.items():
            self._call(name, some)

    def _give_up(self, claim: Claim, cause: str, reason: str) -> None:
        """It cannot be asked for as things are, which must not keep the rest of the plan from being done."""
        log.error("machine cannot be asked for", slot=claim.slot, pool=claim.pool, reason=reason)
        self._store.transition_claim(claim.id, S.PLANNED, S.GONE, reason, error=cause)

    def _disks(self, claim: Claim) -> tuple[LaunchDisk, ...] | None:
        """What it is launched with; None: not there so far."""
        provider = self._context.providers[claim.offer.provider]
        if not isinstance(provider, VolumeProvider) or not provider.disks_at_launch:
            return ()
        return launch_disks(claim, self._store.stagings(), self._store.volumes())

    def _request(self, claim: Claim, others: tuple[Offer, ...], disks: tuple[LaunchDisk, ...]) -> LaunchRequest:
        tags = {TAG_CLUSTER: self._context.cluster, TAG_CLAIM: claim.id, TAG_SLOT: claim.slot, TAG_POOL: claim.pool}
        name = f"{self._context.cluster}-{claim.slot}-{claim.id[-6:]}".lower().replace("_", "-")
        pool = self._pools()[claim.pool]
        return LaunchRequest(
            claim.id, name, claim.offer, claim.image, self._context.user_data(pool, claim.offer.provider), tags, others,
            claim.gang, fabric=pool.fabric, disks=disks,
        )  # fmt: skip

    def _call(self, name: str, requests: Sequence[LaunchRequest]) -> None:
        provider = self._context.providers[name]

        def done(result: Sequence[LaunchOutcome] | Exception) -> None:
            self._set_in_flight(requests, in_flight=False)
            if isinstance(result, Exception):
                if not isinstance(result, ProviderError):
                    log.error("provider broke while launching", provider=name, exc_info=result)
                # Whatever it was: what the cloud has done of it is not known.
                error = result if isinstance(result, ProviderError) else OutcomeUnknown(repr(result))
                result = [LaunchOutcome(r.claim_id, error) for r in requests]
            answered = {outcome.claim_id: outcome for outcome in result}
            with self._store.batch():
                for request in requests:
                    claim_id = request.claim_id
                    with self._context.quarantine.contain_errors(
                        "answer to a launch", node_subject(self._store.claim(claim_id).slot)
                    ):
                        self._apply_outcome(request, answered.get(claim_id, LaunchOutcome(claim_id, _NO_OUTCOME)))

        # Not before: where the record of a later claim fails, these were never asked for and must be taken up again.
        self._set_in_flight(requests, in_flight=True)
        self._context.workers.submit(name, lambda: provider.launch(requests), done)

    def _set_in_flight(self, requests: Sequence[LaunchRequest], *, in_flight: bool) -> None:
        for request in requests:
            self._progress.claims[request.claim_id].call.in_flight = in_flight

    def _apply_outcome(self, request: LaunchRequest, outcome: LaunchOutcome) -> None:
        for offer, error in outcome.warnings:
            self._breakers.record_offer_failure(offer, error.cause, str(error), error.retry_after_s)
        claim, result = self._store.claim(request.claim_id), outcome.result
        now = self._context.clock.now()
        if claim.state is not S.LAUNCHING:
            # A listing was faster, or the claim was ended meanwhile: then its machine must be found all the same.
            if isinstance(result, Instance) and not claim.instance_id and claim.state is not S.GONE:
                given = outcome.offer or claim.offer
                self._store.update_claim(claim.id, offer=given, instance_id=result.id, address=result.address,
                                  billed_from=self._billing_start(claim, result))  # fmt: skip
            return
        if isinstance(result, Instance):
            self._progress.claims[claim.id].call.succeed()
            given = outcome.offer or claim.offer
            self._store.transition_claim(
                claim.id, S.LAUNCHING, S.BOOTING, f"{given.id} gave instance {result.id}", offer=given,
                instance_id=result.id, address=result.address, billed_from=self._billing_start(claim, result),
                launch_called=now,
            )  # fmt: skip
            self._breakers.record_offer_success(given, ready=False)
            return
        if isinstance(result, RateLimited) and not isinstance(result, ClientTokenSpent):
            # It was not carried out, and is no attempt; whatever else is to be launched goes elsewhere for a while.
            self._breakers.record_offer_failure(claim.offer, result.cause, str(result), result.retry_after_s)
            claim = self._store.update_claim(claim.id, attempts=max(0, claim.attempts - 1))
            if claim.attempts or now - claim.since < THROTTLED_S:
                self._retry_later(claim, "throttled", result)
                return
        elif isinstance(result, OutcomeUnknown):
            self._retry_later(claim, "unanswered", result)
            return
        self._record_refusal(claim, result)

    def _billing_start(self, claim: Claim, made: Instance) -> float:
        """When its cloud began to bill it: the answer may have come, or been read, long after that."""
        now = self._context.clock.now()
        if not made.launched:
            return now
        launched = made.launched + now - self._context.clock.wall()
        return min(max(launched, claim.launch_called or launched), now)

    def _retry_later(self, claim: Claim, what: str, error: ProviderError) -> None:
        """The same request is sent again after a pause: those of a batch together, others at other times."""
        now = self._context.clock.now()
        self._progress.claims[claim.id].call.fail(
            now, self._context.intervals.call_retry_s, at_least_s=error.retry_after_s, spread=claim.batch or claim.id
        )
        # It waited in its lane: the cloud may have heard of it as late as now.
        self._store.update_claim(claim.id, launch_called=now)
        data = {"claim": claim.id}
        self._store.log_event(f"slot:{claim.slot}", new=what, reason=str(error), cause=error.cause, data=data)

    def _record_refusal(self, claim: Claim, error: ProviderError) -> None:
        self._progress.claims[claim.id].call.succeed()
        self._store.transition_claim(claim.id, S.LAUNCHING, S.FAILED, str(error), error=error.cause)
        if claim.attempts <= 1:
            # Nothing was made and nothing is on its way: the slot is free for the next offer at once.
            self._store.transition_claim(claim.id, S.FAILED, S.TERMINATING, "the cloud refused it")
            self._store.transition_claim(claim.id, S.TERMINATING, S.GONE, "the cloud refused it, nothing was made")
        self._breakers.record_refusal(claim, error)
