"""Carries recipes out: one call for each batch, and what its answer means for each claim."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from burstd.model.errors import (
    CloudUnavailable,
    InsufficientCapacity,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
    TokenSpent,
)
from burstd.model.instance import TAG_BATCH, Instance, InstanceState
from burstd.model.offer import Offer
from burstd.model.provider import LaunchOutcome, LaunchRequest
from providers.aws import tags
from providers.aws.calls import Calls
from providers.aws.errors import of_code
from providers.aws.placement import PlacementGroups
from providers.aws.recipe import FLEET, Recipe
from providers.aws.settings import AwsSettings
from providers.aws.template import Templates

SIDE_BY_SIDE = 4
Where = tuple[str, str]
"""Instance type and zone."""


@dataclass(frozen=True, slots=True)
class Made:
    """One machine of an answer."""

    id: str
    where: Where
    address: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One error of an answer that is not an error as a whole. ``where`` None: it is of no pool in particular."""

    where: Where | None
    error: ProviderError


class Launching:
    """The launches of one provider."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: AwsSettings,
        calls: Calls,
        templates: Templates,
        groups: PlacementGroups,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._templates = templates
        self._groups = groups
        self._clock = clock

    def serve(self, requests: Sequence[LaunchRequest]) -> dict[str, LaunchOutcome]:
        """The outcome of each claim; all requests have their recipe. Batches are served side by side.

        Once Amazon says that calls are too many, batches that have not been asked for are left for later.
        """
        batches: dict[str, list[LaunchRequest]] = {}
        for request in {request.claim_id: request for request in requests}.values():
            batches.setdefault(request.batch, []).append(request)
        throttled = threading.Event()
        if len(batches) < 2:
            done = [self._serve(batch, throttled) for batch in batches.values()]
        else:
            with ThreadPoolExecutor(min(len(batches), SIDE_BY_SIDE)) as pool:
                done = list(pool.map(lambda batch: self._serve(batch, throttled), batches.values()))
        return {outcome.claim_id: outcome for outcomes in done for outcome in outcomes}

    def _serve(self, batch: Sequence[LaunchRequest], throttled: threading.Event) -> list[LaunchOutcome]:
        try:
            if throttled.is_set():
                raise RateLimited("left for later: Amazon said of another call that they are too many")
            recipe = Recipe.of(batch[0].recipe)
            made, refusals = self._carry_out(recipe, batch[0].user_data)
        except ProviderError as error:
            if isinstance(error, RateLimited):
                throttled.set()
            return [LaunchOutcome(request.claim_id, error) for request in batch]
        return self._outcomes(batch, recipe, made, refusals)

    def _carry_out(self, recipe: Recipe, user_data: str) -> tuple[list[Made], list[Refusal]]:
        try:
            answer = self._ask(recipe, user_data)
        except NotFound:
            # Template or group was removed since this process last saw it. Nothing was made: the same again.
            self._forget(recipe)
            try:
                answer = self._ask(recipe, user_data)
            except NotFound as error:
                self._forget(recipe)
                raise CloudUnavailable(f"what the launch needs has vanished twice: {error}") from error
        if recipe.operation == FLEET:
            made, refusals = list(_of_fleet(answer, recipe)), list(_refusals(answer, recipe))
            if any(isinstance(refusal.error, NotFound) for refusal in refusals):
                self._forget(recipe)
        else:
            made, refusals = list(_of_run(answer, recipe)), []
        if not made and not refusals:
            made = self._look(recipe)
        return sorted(made, key=lambda one: one.id), refusals

    def _look(self, recipe: Recipe) -> list[Made]:
        """The machines of a batch by their tag, where a repeated call was answered without them: Amazon promises that
        it makes no more, not that it names them again. Raises OutcomeUnknown while some may yet be missing in lists.
        """
        filters = [*tags.ours(self._cluster), {"Name": f"tag:{TAG_BATCH}", "Values": [recipe.claims[0]]}]
        listed = list(self._calls.pages("ec2", "describe_instances", "Reservations", Filters=filters))
        young = self._clock() - self._settings.settle_s
        launched = [one["LaunchTime"].timestamp() for some in listed for one in some["Instances"]]
        if len(launched) < len(recipe.claims) and (not launched or max(launched) > young):
            raise OutcomeUnknown("Amazon's answer names neither instances nor errors")
        return [one for some in listed for one in _of_run(some, recipe)]

    def _ask(self, recipe: Recipe, user_data: str) -> Mapping[str, Any]:
        self._templates.ensure(recipe.template, recipe.content, user_data)
        if recipe.gang:
            self._groups.ensure(recipe.gang)
        return self._calls.tell("ec2", recipe.operation, **recipe.words)

    def _forget(self, recipe: Recipe) -> None:
        self._templates.forget(recipe.template)
        if recipe.gang:
            self._groups.forget(recipe.gang)

    def _outcomes(
        self, batch: Sequence[LaunchRequest], recipe: Recipe, made: Sequence[Made], refusals: Sequence[Refusal]
    ) -> list[LaunchOutcome]:
        machine_of = dict(zip(recipe.claims, made, strict=False))
        warnings = _warnings(batch[0], refusals)
        outcomes = []
        for request in batch:
            one = machine_of.get(request.claim_id)
            if one is None:
                outcomes.append(LaunchOutcome(request.claim_id, _error(request.offer, refusals), warnings=warnings))
            else:
                given = _named(request, one.where) or request.offer
                instance = self._instance(request, given, one)
                other = given if given != request.offer else None
                outcomes.append(LaunchOutcome(request.claim_id, instance, other, warnings))
            warnings = ()
        return outcomes

    def _instance(self, request: LaunchRequest, given: Offer, one: Made) -> Instance:
        return Instance(
            id=one.id, provider=self._name, state=InstanceState.PENDING, claim_id=request.claim_id, tags=request.tags,
            name=request.name, zone=given.zone, instance_type=given.instance_type, spot=given.spot,
            address=one.address, launched=self._clock(), batch=request.batch,
        )  # fmt: skip


def _of_fleet(answer: Mapping[str, Any], recipe: Recipe) -> Iterator[Made]:
    for some in answer.get("Instances", ()):
        where = _where({**_override(some), **{k: v for k, v in some.items() if v}}, recipe)
        for instance_id in some.get("InstanceIds", ()):
            yield Made(instance_id, where or ("", ""))


def _of_run(answer: Mapping[str, Any], recipe: Recipe) -> Iterator[Made]:
    for one in answer.get("Instances", ()):
        zone = one.get("Placement", {}).get("AvailabilityZone") or recipe.zones.get(one.get("SubnetId", ""), "")
        yield Made(one["InstanceId"], (one.get("InstanceType", ""), zone), one.get("PrivateIpAddress", ""))


def _refusals(answer: Mapping[str, Any], recipe: Recipe) -> Iterator[Refusal]:
    for said in answer.get("Errors", ()):
        code = said.get("ErrorCode", "")
        status = 500 if code.startswith("Internal") else 400
        error = of_code(code, said.get("ErrorMessage", ""), status, CloudUnavailable)
        yield Refusal(_where(_override(said), recipe), error)


def _override(said: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = said.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return found


def _where(said: Mapping[str, Any], recipe: Recipe) -> Where | None:
    kind = said.get("InstanceType", "")
    zone = said.get("AvailabilityZone") or recipe.zones.get(said.get("SubnetId", ""), "")
    return (kind, zone) if kind and zone else None


def _named(request: LaunchRequest, where: Where | None) -> Offer | None:
    """The offer that this is; none where Amazon does not say."""
    offers = (request.offer, *request.others)
    return next((offer for offer in offers if (offer.instance_type, offer.zone) == where), None)


def _warnings(request: LaunchRequest, refusals: Sequence[Refusal]) -> tuple[tuple[Offer, ProviderError], ...]:
    """One for each pool that was refused for a reason of its own; throttling is none."""
    found: dict[str, tuple[Offer, ProviderError]] = {}
    for refusal in refusals:
        offer = _named(request, refusal.where)
        if offer is not None and not isinstance(refusal.error, RateLimited | NotFound):
            found.setdefault(offer.id, (offer, refusal.error))
    return tuple(found.values())


def _error(asked: Offer, refusals: Sequence[Refusal]) -> ProviderError:
    """Why a claim got no machine although the call went well: what was said of its own offer, else of any.

    Throttling inside the fleet, or a template that the fleet did not see yet, says nothing of the offer; but the same
    call would be answered the same for ever.
    """
    own = (asked.instance_type, asked.zone)
    ranked = sorted(refusals, key=lambda r: (r.where not in (own, None), isinstance(r.error, RateLimited | NotFound)))
    if not ranked:
        return InsufficientCapacity(f"Amazon gave fewer machines than asked for, and no reason ({asked.id})")
    error = ranked[0].error
    if isinstance(error, RateLimited | NotFound):
        return TokenSpent(f"Amazon made nothing for this claim: {error}", retry_after_s=error.retry_after_s)
    return error
