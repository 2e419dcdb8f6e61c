"""Launches servers: first all that a server needs, then one call for each, some at a time.

Whatever is made bears its claim from the call that makes it, and what a claim needs is made in one order: ports,
floating IP, volume, server. A process that ends in between leaves what ``leftovers()`` shows; the same launch asked for
again looks for the ports first, and where there are some, for all the rest; ports.py says why the ports are made anew.
https://docs.openstack.org/api-ref/compute/#create-server
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeVar

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import (
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from providers.batch_calls import Pace
from providers.openstack import metadata
from providers.openstack.calls import Calls
from providers.openstack.catalog.catalog import Catalog
from providers.openstack.launch.floating_ips import FloatingIps
from providers.openstack.launch.images import Image, Images
from providers.openstack.launch.ports import NONE, Held, Ports
from providers.openstack.launch.server_groups import ServerGroups
from providers.openstack.launch.volumes import Volumes
from providers.openstack.settings import OpenStackSettings

_VERSION = "2.72"
"""The first microversion that takes ports with a promised bandwidth. Tags are taken from 2.52 on: Nova 16, of 2017."""
_USER_DATA_MAX = 65535
"""Characters, as base64."""
_REMEMBERED = 10_000
_GONE = (" {} could not be found", "failed to get volume {}", "Can not find requested image")
"""In Nova's refusals, with an id: what was there minutes ago, when it was looked up or made."""
_TAKEN = ("is still in use", "to reserve, but the current status is")
"""In Nova's refusals: a port, or a volume, that a server has."""
Part = TypeVar("Part")


@dataclass(slots=True)
class _Plan:
    """What one claim's server is made of, as far as it is there."""

    request: LaunchRequest
    flavor: str
    image: Image
    group: str = ""
    ports: Held = NONE
    floating: str = ""
    volume: str = ""

    def looked_up(self) -> tuple[str, ...]:
        """Ids of what Nova is told to use."""
        return (self.flavor, self.image.id, self.volume, *self.ports.ids)


class Launching:
    """The launches of one provider."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: OpenStackSettings,
        calls: Calls,
        catalog: Catalog,
        images: Images,
        groups: ServerGroups,
        ports: Ports,
        floating: FloatingIps,
        volumes: Volumes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._catalog = catalog
        self._images = images
        self._groups = groups
        self._ports = ports
        self._floating = floating
        self._volumes = volumes
        self._clock = clock
        self._lock = threading.Lock()
        self._unasked: set[str] = set()
        """Claims for which there are ports, and surely no server was asked for."""

    def serve(self, requests: Sequence[LaunchRequest]) -> dict[str, LaunchOutcome]:
        """The outcome of each claim. What was made for one that surely has no server is removed at once, where that
        can be done.
        """
        wanted = {request.claim_id: request for request in requests}
        done: dict[str, Instance | ProviderError] = {}
        plans: dict[str, _Plan] = {}
        over: ProviderError | None = None
        for claim, request in wanted.items():
            try:
                if over is not None:
                    raise over
                plans[claim] = self._plan(request)
            except BadRequest as error:
                done[claim] = error
            except ProviderError as error:
                # What one cannot look up the others cannot: each would wait for it as long.
                done[claim] = over = error
        ready = self._with_parts(plans, done)
        pace = Pace(self._settings.side_by_side)
        for some in self._bootable(plans, ready, done):
            done.update(zip(some, pace.each(self._create, [plans[claim] for claim in some]), strict=True))
        self._remember(plans, done)
        self._undo([plan for claim, plan in plans.items() if _surely_none(done[claim])])
        return {claim: LaunchOutcome(claim, _told(done[claim])) for claim in wanted}

    def _plan(self, request: LaunchRequest) -> _Plan:
        """Raises BadRequest where the request can never be served."""
        offer = request.offer
        flavor = self._catalog.flavor(offer.instance_type)
        if flavor is None:
            raise BadRequest(f"no flavor that the site allows is named '{offer.instance_type}'")
        if not self._catalog.knows_zone(offer.zone):
            raise BadRequest(f"this cloud has no availability zone '{offer.zone}'")
        if len(_base64(request.user_data)) > _USER_DATA_MAX:
            raise BadRequest(f"the user data is longer than Nova takes: {_USER_DATA_MAX} bytes as base64")
        return _Plan(request, flavor.id, self._images.find(request.image))

    def _with_parts(self, plans: Mapping[str, _Plan], done: dict[str, Instance | ProviderError]) -> list[str]:
        """Gives each plan its group, ports, floating IP; the claims that have all. The others are done, with why."""
        if not plans:
            return []
        groups = _sorted_out(self._groups.ensure([plan.request for plan in plans.values()]), done)
        for claim, group in groups.items():
            plans[claim].group = group
        held = _sorted_out(
            self._ports.ensure([plans[claim].request for claim in groups], self._take(groups.keys())), done
        )
        for claim, ports in held.items():
            plans[claim].ports = ports
        if not self._settings.floating_network:
            return list(held)
        floating = _sorted_out(self._floating.ensure(held), done)
        for claim, one in floating.items():
            plans[claim].floating = one
        return list(floating)

    def _bootable(
        self, plans: Mapping[str, _Plan], ready: Sequence[str], done: dict[str, Instance | ProviderError]
    ) -> Iterator[list[str]]:
        """Claims whose server can be asked for now: all of them, or some at a time as their volumes are filled."""
        root = self._settings.root
        if root is None:
            yield list(ready)
            return
        again = frozenset(claim for claim in ready if plans[claim].ports.again)
        requests = [plans[claim].request for claim in ready]
        images = {claim: plans[claim].image for claim in ready}
        volumes = _sorted_out(self._volumes.ensure(requests, root, images, again), done)
        for claim, volume in volumes.items():
            plans[claim].volume = volume
        for some in self._volumes.filled(volumes):
            yield list(_sorted_out(some, done))

    def _create(self, plan: _Plan) -> Instance:
        request = plan.request
        try:
            answer = self._calls.tell(
                "compute", "POST", "/servers", f"create server {request.name}", body=self._body(plan), version=_VERSION
            )
        except ProviderError as error:
            raise _meant(error, plan) from error
        offer = request.offer
        return Instance(
            id=answer["server"]["id"], provider=self._name, state=InstanceState.PENDING, claim_id=request.claim_id,
            tags=request.tags, name=request.name, zone=offer.zone, instance_type=offer.instance_type,
            launched=self._clock(),
        )  # fmt: skip

    def _body(self, plan: _Plan) -> dict[str, Any]:
        settings, request = self._settings, plan.request
        server: dict[str, Any] = {
            "name": request.name,
            "flavorRef": plan.flavor,
            "availability_zone": request.offer.zone,
            "networks": [{"port": port} for port in plan.ports.ids],
            "metadata": {**settings.metadata, **request.tags},
            "tags": [metadata.server_tag(self._cluster)],
            "user_data": _base64(request.user_data),
        }
        if plan.volume:
            server["block_device_mapping_v2"] = [
                {
                    "boot_index": 0,
                    "uuid": plan.volume,
                    "source_type": "volume",
                    "destination_type": "volume",
                    "delete_on_termination": True,
                }
            ]
        else:
            server["imageRef"] = plan.image.id
        if settings.key_name:
            server["key_name"] = settings.key_name
        if settings.config_drive:
            server["config_drive"] = True
        hints = {"os:scheduler_hints": {"group": plan.group}} if plan.group else {}
        return {"server": server, **hints}

    def _take(self, claims: AbstractSet[str]) -> AbstractSet[str]:
        """Which of these are known to be unasked for; from now on none of them is."""
        with self._lock:
            found = self._unasked & claims
            self._unasked -= claims
            return found

    def _remember(self, plans: Mapping[str, _Plan], done: Mapping[str, Instance | ProviderError]) -> None:
        """Those that were throttled are asked for again at once."""
        with self._lock:
            if len(self._unasked) > _REMEMBERED:
                self._unasked.clear()
            throttled = (claim for claim, one in done.items() if isinstance(one, RateLimited))
            self._unasked.update(claim for claim in throttled if claim in plans and plans[claim].ports.ids)

    def _undo(self, plans: Sequence[_Plan]) -> None:
        """Best effort: what cannot be removed now is a leftover, found by its mark."""
        Pace(self._settings.side_by_side).each(self._remove, [plan for plan in plans if plan.ports.ids])

    def _remove(self, plan: _Plan) -> None:
        """The volume first: it costs most. A floating IP goes before its port, which would leave it behind."""
        errors: list[ProviderError] = []
        for remove, thing in (
            (self._volumes.remove, plan.volume),
            (self._floating.remove, plan.floating),
            *((self._ports.remove, port) for port in plan.ports.ids),
        ):
            try:
                if thing:
                    remove(thing)
            except ProviderError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _sorted_out(
    found: Mapping[str, Part | ProviderError], done: dict[str, Instance | ProviderError]
) -> dict[str, Part]:
    """What is there; errors are done."""
    there: dict[str, Part] = {}
    for claim, one in found.items():
        if isinstance(one, ProviderError):
            done[claim] = one
        else:
            there[claim] = one
    return there


def _surely_none(result: Instance | ProviderError) -> bool:
    """Whether there is no server, and none will come. After "too many calls" the same is asked for again at once."""
    return isinstance(result, ProviderError) and not isinstance(result, OutcomeUnknown | RateLimited)


def _meant(error: ProviderError, plan: _Plan) -> ProviderError:
    """What Nova's refusal of a server means, where its form alone does not say."""
    text = str(error)
    if isinstance(error, OutcomeUnknown | RateLimited):
        return error
    if any(words in text for words in _TAKEN):
        return OutcomeUnknown(f"what was made for this server is in use: it may be there already ({error})")
    if "availability zone" in text and "not available" in text:
        return InsufficientCapacity(f"no host of zone {plan.request.offer.zone} is up: {error}")
    if plan.group and plan.group in text:
        return CloudUnavailable(f"the job's server group was removed meanwhile: {error}")
    if any(one and words.format(one) in text for one in plan.looked_up() for words in _GONE):
        return CloudUnavailable(f"what this server needs was removed meanwhile: {error}")
    return error


def _told(result: Instance | ProviderError) -> Instance | ProviderError:
    """What a launch needs and is not there, a network that was deleted say, is for people to mend."""
    return BadRequest(str(result)) if isinstance(result, NotFound) else result
