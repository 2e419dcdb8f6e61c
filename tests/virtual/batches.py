"""A simulated provider whose launch call serves many claims, and whose machines then do not say whose they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from burstd.domain.cloud.instance import TAG_BATCH, TAG_CLAIM, TAG_CLUSTER, TAG_SLOT
from burstd.domain.errors import BadRequest, InsufficientCapacity, OutcomeUnknown, ProviderError
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from tests.virtual.cloud import SimInstance
from tests.virtual.provider import SimProvider

_BATCH = 3


class BatchProvider(SimProvider):
    """See burstd.domain.plugins.provider.LaunchPreparer. A batch's id is its token."""

    def prepare(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchRequest]:
        """Puts at most three alike together; a call to the cloud, as where an image is looked up."""
        self._check_up()
        batches: dict[str, list[LaunchRequest]] = {}
        for request in requests:
            batches.setdefault(f"{request.offer.id} {request.gang}", []).append(request)
        made: dict[str, LaunchRequest] = {}
        for alike in batches.values():
            for start in range(0, len(alike), _BATCH):
                some = alike[start : start + _BATCH]
                recipe = json.dumps([request.claim_id for request in some])
                made |= {r.claim_id: replace(r, batch=some[0].claim_id, recipe=recipe) for r in some}
        return [made[request.claim_id] for request in requests]

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """See Provider."""
        self._check_up()
        answers = {request.batch: request for request in requests}
        served = {batch: self._serve_batch(request) for batch, request in answers.items()}
        return tuple(self._outcome_for(r, served[r.batch]) for r in requests)

    def _outcome_for(self, request: LaunchRequest, answer: Sequence[SimInstance] | ProviderError) -> LaunchOutcome:
        if isinstance(answer, ProviderError):
            return LaunchOutcome(request.claim_id, answer)
        given = {one.offer for one in answer}
        none_left = InsufficientCapacity("no more are left")
        offers = (request.offer, *request.others)
        # Those before the last that was given were tried, as were all where it did not suffice.
        short = len(answer) < len(json.loads(request.recipe))
        tried = offers if short else offers[: max(offers.index(offer) for offer in given)]
        warnings = tuple((offer, none_left) for offer in tried)
        place = json.loads(request.recipe).index(request.claim_id)
        if place >= len(answer):
            return LaunchOutcome(request.claim_id, none_left, warnings=warnings)
        return LaunchOutcome(request.claim_id, self._listed(answer[place]), answer[place].offer, warnings)

    def _serve_batch(self, request: LaunchRequest) -> Sequence[SimInstance] | ProviderError:
        if request.tags.get(TAG_CLUSTER) != self._cluster or not request.batch:
            return BadRequest(f"the request for claim {request.claim_id} was not prepared")
        faults = self.faults
        if faults.lost_requests:
            faults.lost_requests -= 1
            return OutcomeUnknown("the connection was reset")
        if faults.late_requests:
            clock = self.cloud.clock
            clock.at(clock.now() + faults.late_requests.popleft(), lambda: self._later(request))
            return OutcomeUnknown("the answer did not come in time")
        if faults.refuse:
            return faults.refuse.popleft()
        made = self._make_all(request)
        if faults.lost_answers:
            faults.lost_answers -= 1
            return OutcomeUnknown("the connection was reset")
        return made

    def _later(self, request: LaunchRequest) -> None:
        """Nobody hears the answer."""
        self._make_all(request)

    def _make_all(self, request: LaunchRequest) -> Sequence[SimInstance]:
        """The same machines for the same token; fewer than were asked for where the cloud has no more."""
        known = self._tokens.get(request.batch)
        if known is not None:
            return [self.cloud.instances[instance_id] for instance_id in known.split()]
        claims = json.loads(request.recipe)
        made: list[SimInstance] = []
        for claim_id in claims:
            tags = {**request.tags, TAG_CLAIM: claim_id, TAG_BATCH: request.batch}
            if len(claims) > 1:
                del tags[TAG_CLAIM], tags[TAG_SLOT]  # nothing is said that is not true of all
            one = self._make_one(replace(request, claim_id=claim_id, tags=tags))
            if one is None:
                break
            made.append(one)
        self._tokens[request.batch] = " ".join(one.id for one in made)
        return made

    def _make_one(self, request: LaunchRequest) -> SimInstance | None:
        """By the first of its offers that is left."""
        for offer in (request.offer, *request.others):
            try:
                made = self.cloud.launch(replace(request, offer=offer))
            except InsufficientCapacity:
                continue
            made.launched_for = request.claim_id
            return made
        return None
