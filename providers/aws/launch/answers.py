"""What Amazon's answers to a launch mean: machines, refusals, and why a claim got none. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import (
    ClientTokenSpent,
    CloudUnavailable,
    InsufficientCapacity,
    NotFound,
    ProviderError,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchRequest
from providers.aws.errors import error_for_code, error_message
from providers.aws.launch.recipe import LaunchRecipe

_ENDED = ("shutting-down", "terminated")
_POOL_ONLY = ("InvalidSubnetID.NotFound",)
"""What would be a bad request of a call, but is said of one override of a fleet: the others are as good as before."""
TypeAndZone = tuple[str, str]
"""Instance type and zone."""


@dataclass(frozen=True, slots=True)
class LaunchedInstance:
    """One machine of an answer."""

    id: str
    where: TypeAndZone
    address: str = ""
    ended: bool = False
    """It keeps its place, so that those of the others do not move."""


@dataclass(frozen=True, slots=True)
class PoolRefusal:
    """One error of an answer that is not an error as a whole. ``where`` None: it is of no pool in particular."""

    where: TypeAndZone | None
    error: ProviderError


def instances_from_fleet(answer: Mapping[str, Any], recipe: LaunchRecipe) -> Iterator[LaunchedInstance]:
    """The machines in CreateFleet's answer."""
    for some in answer.get("Instances", ()):
        where = _where({**_override(some), **{k: v for k, v in some.items() if v}}, recipe)
        for instance_id in some.get("InstanceIds", ()):
            yield LaunchedInstance(instance_id, where or ("", ""))


def instances_from_run(answer: Mapping[str, Any], recipe: LaunchRecipe) -> Iterator[LaunchedInstance]:
    """The machines in RunInstances' answer, or in one reservation of DescribeInstances'."""
    for one in answer.get("Instances", ()):
        zone = one.get("Placement", {}).get("AvailabilityZone") or recipe.zones.get(one.get("SubnetId", ""), "")
        ended = one.get("State", {}).get("Name") in _ENDED
        yield LaunchedInstance(
            one["InstanceId"], (one.get("InstanceType", ""), zone), one.get("PrivateIpAddress", ""), ended
        )


def refusals_from_fleet(answer: Mapping[str, Any], recipe: LaunchRecipe) -> Iterator[PoolRefusal]:
    """The errors in CreateFleet's answer."""
    for said in answer.get("Errors", ()):
        code, text = said.get("ErrorCode") or "no code", said.get("ErrorMessage", "")
        where = _where(_override(said), recipe)
        if where and code in _POOL_ONLY:
            yield PoolRefusal(where, InsufficientCapacity(error_message(code, text)))
        else:
            yield PoolRefusal(where, error_for_code(code, text, 400, CloudUnavailable))


def _override(said: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = said.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return found


def _where(said: Mapping[str, Any], recipe: LaunchRecipe) -> TypeAndZone | None:
    kind = said.get("InstanceType", "")
    zone = said.get("AvailabilityZone") or recipe.zones.get(said.get("SubnetId", ""), "")
    return (kind, zone) if kind and zone else None


def offer_at(request: LaunchRequest, where: TypeAndZone | None) -> Offer | None:
    """The offer that this is; none where Amazon does not say."""
    offers = (request.offer, *request.others)
    return next((offer for offer in offers if (offer.instance_type, offer.zone) == where), None)


def pool_warnings(request: LaunchRequest, refused: Sequence[PoolRefusal]) -> tuple[tuple[Offer, ProviderError], ...]:
    """One for each pool that was refused for a reason of its own; throttling is none."""
    found: dict[str, tuple[Offer, ProviderError]] = {}
    for refusal in refused:
        offer = offer_at(request, refusal.where)
        if offer is not None and not isinstance(refusal.error, RateLimited | NotFound):
            found.setdefault(offer.id, (offer, refusal.error))
    return tuple(found.values())


def error_for_claim(asked: Offer, refused: Sequence[PoolRefusal]) -> ProviderError:
    """Why a claim got no machine although the call went well: what was said of its own offer, else of any.

    Throttling inside the fleet, or a template that the fleet did not see yet, says nothing of the offer; but the same
    call would be answered the same for ever.
    """
    own = (asked.instance_type, asked.zone)
    ranked = sorted(refused, key=lambda r: (r.where not in (own, None), isinstance(r.error, RateLimited | NotFound)))
    if not ranked:
        return InsufficientCapacity(f"Amazon gave fewer machines than asked for, and no reason ({asked.id})")
    error = ranked[0].error
    if isinstance(error, RateLimited | NotFound):
        return ClientTokenSpent(f"Amazon made nothing for this claim: {error}", retry_after_s=error.retry_after_s)
    return error
