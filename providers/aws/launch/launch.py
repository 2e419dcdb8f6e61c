"""Carries recipes out: one call for each batch, and what its answer means for each claim."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from burstd.domain.cloud.instance import TAG_BATCH, Instance, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import (
    ClientTokenSpent,
    CloudUnavailable,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from providers.aws import tags
from providers.aws.calls import AwsCalls
from providers.aws.launch import answers
from providers.aws.launch.placement_groups import PlacementGroups
from providers.aws.launch.recipe import FLEET, LaunchRecipe
from providers.aws.launch.template import LaunchTemplates
from providers.aws.settings import AwsSettings

MAX_PARALLEL_BATCHES = 4


class InstanceLauncher:
    """The launches of one provider."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: AwsSettings,
        calls: AwsCalls,
        templates: LaunchTemplates,
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

    def launch_batches(self, requests: Sequence[LaunchRequest]) -> dict[str, LaunchOutcome]:
        """The outcome of each claim; all requests have their recipe. Batches are served side by side.

        Once Amazon says that calls are too many, batches that have not been asked for are left for later.
        """
        batches: dict[str, list[LaunchRequest]] = {}
        for request in {request.claim_id: request for request in requests}.values():
            batches.setdefault(request.batch, []).append(request)
        throttled = threading.Event()
        if len(batches) < 2:
            done = [self._launch_batch(batch, throttled) for batch in batches.values()]
        else:
            with ThreadPoolExecutor(min(len(batches), MAX_PARALLEL_BATCHES)) as pool:
                done = list(pool.map(lambda batch: self._launch_batch(batch, throttled), batches.values()))
        return {outcome.claim_id: outcome for outcomes in done for outcome in outcomes}

    def _launch_batch(self, batch: Sequence[LaunchRequest], throttled: threading.Event) -> list[LaunchOutcome]:
        """Whatever goes wrong, it goes wrong for this batch alone."""
        found: ProviderError = RateLimited("left for later: Amazon said of another call that they are too many")
        if throttled.is_set():
            return [LaunchOutcome(request.claim_id, found) for request in batch]
        try:
            recipe = LaunchRecipe.from_text(batch[0].recipe)
            made, refused = self._carry_out(recipe, batch[0].user_data)
            return self._outcomes(batch, recipe, made, refused)
        except ProviderError as error:
            if isinstance(error, RateLimited) and not isinstance(error, ClientTokenSpent):
                throttled.set()
            found = error
        except Exception as error:  # noqa: BLE001 - an answer of a strange form must not cost the others their outcomes
            found = OutcomeUnknown(f"Amazon's answer to the launch cannot be understood: {error!r}")
        return [LaunchOutcome(request.claim_id, found) for request in batch]

    def _carry_out(
        self, recipe: LaunchRecipe, user_data: str
    ) -> tuple[list[answers.LaunchedInstance], list[answers.PoolRefusal]]:
        try:
            answer = self._send(recipe, user_data)
        except NotFound:
            # Template or group was removed since this process last saw it. Nothing was made: the same again.
            self._forget(recipe)
            try:
                answer = self._send(recipe, user_data)
            except NotFound as error:
                self._forget(recipe)
                raise CloudUnavailable(f"what the launch needs has vanished twice: {error}") from error
        except ClientTokenSpent as error:
            # Machines of this token have ended; of several, some may live.
            return sorted(self._find_by_batch_tag(recipe, sure=True), key=lambda one: one.id), [
                answers.PoolRefusal(None, error)
            ]
        if recipe.operation == FLEET:
            made, refused = (
                list(answers.instances_from_fleet(answer, recipe)),
                list(answers.refusals_from_fleet(answer, recipe)),
            )
            if any(isinstance(refusal.error, NotFound) for refusal in refused):
                self._forget(recipe)
        else:
            made, refused = list(answers.instances_from_run(answer, recipe)), []
        if not made:
            made = self._find_by_batch_tag(recipe, sure=bool(refused))
        return sorted(made, key=lambda one: one.id), refused

    def _find_by_batch_tag(self, recipe: LaunchRecipe, *, sure: bool) -> list[answers.LaunchedInstance]:
        """The machines of a batch by their tag, where an answer names none: it may be that to a repeated call, and
        Amazon promises that it makes no more, not that it names them again.

        ``sure``: Amazon said why there are none, so that an empty list is believed. Raises OutcomeUnknown while some
        may yet be missing in lists, and where they cannot be listed.
        """
        filters = [*tags.cluster_filters(self._cluster), {"Name": f"tag:{TAG_BATCH}", "Values": [recipe.claims[0]]}]
        try:
            listed = list(self._calls.pages("ec2", "describe_instances", "Reservations", Filters=filters))
        except ProviderError as error:
            raise OutcomeUnknown(f"whether the launch made machines cannot be seen: {error}") from error
        young = self._clock() - self._settings.settle_s
        launched = [one["LaunchTime"].timestamp() for some in listed for one in some["Instances"]]
        if not launched and not sure:
            raise OutcomeUnknown("Amazon's answer names neither instances nor errors")
        if launched and len(launched) < len(recipe.claims) and max(launched) > young:
            raise OutcomeUnknown("Amazon does not list all machines of the launch yet")
        return [one for some in listed for one in answers.instances_from_run(some, recipe)]

    def _send(self, recipe: LaunchRecipe, user_data: str) -> Mapping[str, Any]:
        self._templates.ensure(recipe.template, recipe.content, user_data)
        if recipe.gang:
            self._groups.ensure(recipe.gang)
        return self._calls.mutate("ec2", recipe.operation, **recipe.words)

    def _forget(self, recipe: LaunchRecipe) -> None:
        self._templates.forget(recipe.template)
        if recipe.gang:
            self._groups.forget(recipe.gang)

    def _outcomes(
        self,
        batch: Sequence[LaunchRequest],
        recipe: LaunchRecipe,
        made: Sequence[answers.LaunchedInstance],
        refused: Sequence[answers.PoolRefusal],
    ) -> list[LaunchOutcome]:
        machine_of = dict(zip(recipe.claims, made, strict=False))
        warnings = answers.pool_warnings(batch[0], refused)
        outcomes = []
        for request in batch:
            one = machine_of.get(request.claim_id)
            if one is None:
                error = answers.error_for_claim(request.offer, refused)
                outcomes.append(LaunchOutcome(request.claim_id, error, warnings=warnings))
            elif one.ended:
                error = ClientTokenSpent(f"the machine that Amazon made for this claim has ended already ({one.id})")
                outcomes.append(LaunchOutcome(request.claim_id, error, warnings=warnings))
            else:
                given = answers.offer_at(request, one.where) or request.offer
                instance = self._instance(request, given, one)
                other = given if given != request.offer else None
                outcomes.append(LaunchOutcome(request.claim_id, instance, other, warnings))
            warnings = ()
        return outcomes

    def _instance(self, request: LaunchRequest, given: Offer, one: answers.LaunchedInstance) -> Instance:
        return Instance(
            id=one.id, provider=self._name, state=InstanceState.PENDING, claim_id=request.claim_id, tags=request.tags,
            name=request.name, zone=given.zone, instance_type=given.instance_type, spot=given.spot,
            address=one.address, launched=self._clock(), batch=request.batch,
        )  # fmt: skip
