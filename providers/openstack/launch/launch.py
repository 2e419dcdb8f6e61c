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
    NoSuchImage,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from providers.batch_calls import BatchCall
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.launch.floating_ips import FloatingIps
from providers.openstack.launch.images import OpenStackImage, OpenStackImages
from providers.openstack.launch.ports import NO_PORTS, ClaimPorts, Ports
from providers.openstack.launch.server_groups import ServerGroups
from providers.openstack.launch.volumes import RootVolumes
from providers.openstack.servers import metadata
from providers.openstack.settings import OpenStackSettings

_VERSION = "2.72"
"""The first microversion that takes ports with a promised bandwidth. Tags are taken from 2.52 on: Nova 16, of 2017."""
_USER_DATA_MAX = 65535
"""Characters, as base64."""
_REMEMBERED = 10_000
_GONE = (" {} could not be found", "failed to get volume {}")
"""In Nova's refusals, with an id: what was there minutes ago, when it was looked up or made."""
_NO_IMAGE = ("Can not find requested image", "Image {} could not be found", "Image {} is not active")
"""In Nova's refusals: the image was deleted, or deactivated, since it was looked up."""
_TAKEN = ("is still in use", "to reserve, but the current status is")
"""In Nova's refusals: a port, or a volume, that a server has."""
Prerequisite = TypeVar("Prerequisite")


@dataclass(slots=True)
class _ServerPlan:
    """What one claim's server is made of, as far as it is there."""

    request: LaunchRequest
    flavor: str
    image: OpenStackImage
    group: str = ""
    ports: ClaimPorts = NO_PORTS
    floating: str = ""
    volume: str = ""

    def used_ids(self) -> tuple[str, ...]:
        """Ids of what Nova is told to use."""
        return (self.flavor, self.image.id, self.volume, *self.ports.ids)


class ServerLauncher:
    """The launches of one provider."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: OpenStackSettings,
        calls: OpenStackCalls,
        catalog: OpenStackCatalog,
        images: OpenStackImages,
        groups: ServerGroups,
        ports: Ports,
        floating: FloatingIps,
        volumes: RootVolumes,
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
        self._without_server: set[str] = set()
        """Claims for which there are ports, and surely no server was asked for."""

    def launch_servers(self, requests: Sequence[LaunchRequest]) -> dict[str, LaunchOutcome]:
        """The outcome of each claim. What was made for one that surely has no server is removed at once, where that
        can be done.
        """
        wanted = {request.claim_id: request for request in requests}
        done: dict[str, Instance | ProviderError] = {}
        plans: dict[str, _ServerPlan] = {}
        stopped_by: ProviderError | None = None
        for claim, request in wanted.items():
            try:
                if stopped_by is not None:
                    raise stopped_by
                plans[claim] = self._plan(request)
            except BadRequest as error:
                done[claim] = error
            except ProviderError as error:
                # What one cannot look up the others cannot: each would wait for it as long.
                done[claim] = stopped_by = error
        ready = self._with_prerequisites(plans, done)
        batch = BatchCall(self._settings.side_by_side)
        for some in self._bootable(plans, ready, done):
            done.update(zip(some, batch.call_each(self._create, [plans[claim] for claim in some]), strict=True))
        self._remember(plans, done)
        self._remove_prerequisites([plan for claim, plan in plans.items() if _has_no_server(done[claim])])
        return {claim: LaunchOutcome(claim, _as_bad_request(done[claim])) for claim in wanted}

    def _plan(self, request: LaunchRequest) -> _ServerPlan:
        """Raises BadRequest where the request can never be served."""
        offer = request.offer
        flavor = self._catalog.flavor(offer.instance_type)
        if flavor is None:
            raise BadRequest(f"no flavor that the site allows is named '{offer.instance_type}'")
        if not self._catalog.knows_zone(offer.zone):
            raise BadRequest(f"this cloud has no availability zone '{offer.zone}'")
        if len(_base64(request.user_data)) > _USER_DATA_MAX:
            raise BadRequest(f"the user data is longer than Nova takes: {_USER_DATA_MAX} bytes as base64")
        return _ServerPlan(request, flavor.id, self._images.find_image(request.image))

    def _with_prerequisites(
        self, plans: Mapping[str, _ServerPlan], done: dict[str, Instance | ProviderError]
    ) -> list[str]:
        """Gives each plan its group, ports, floating IP; the claims that have all. The others are done, with why."""
        if not plans:
            return []
        groups = _without_errors(self._groups.ensure([plan.request for plan in plans.values()]), done)
        for claim, group in groups.items():
            plans[claim].group = group
        ports_by_claim = _without_errors(
            self._ports.ensure([plans[claim].request for claim in groups], self._take_without_server(groups.keys())),
            done,
        )
        for claim, ports in ports_by_claim.items():
            plans[claim].ports = ports
        if not self._settings.floating_network:
            return list(ports_by_claim)
        floating = _without_errors(self._floating.ensure(ports_by_claim), done)
        for claim, one in floating.items():
            plans[claim].floating = one
        return list(floating)

    def _bootable(
        self, plans: Mapping[str, _ServerPlan], ready: Sequence[str], done: dict[str, Instance | ProviderError]
    ) -> Iterator[list[str]]:
        """Claims whose server can be asked for now: all of them, or some at a time as their volumes are filled."""
        root = self._settings.root
        if root is None:
            yield list(ready)
            return
        again = frozenset(claim for claim in ready if plans[claim].ports.asked_before)
        requests = [plans[claim].request for claim in ready]
        images = {claim: plans[claim].image for claim in ready}
        volumes = _without_errors(self._volumes.ensure(requests, root, images, again), done)
        for claim, volume in volumes.items():
            plans[claim].volume = volume
        for some in self._volumes.wait_until_filled(volumes):
            yield list(_without_errors(some, done))

    def _create(self, plan: _ServerPlan) -> Instance:
        request = plan.request
        try:
            answer = self._calls.mutate(
                "compute", "POST", "/servers", f"create server {request.name}", body=self._body(plan), version=_VERSION
            )
        except ProviderError as error:
            raise _translate_refusal(error, plan) from error
        offer = request.offer
        return Instance(
            id=answer["server"]["id"], provider=self._name, state=InstanceState.PENDING, claim_id=request.claim_id,
            tags=request.tags, name=request.name, zone=offer.zone, instance_type=offer.instance_type,
            launched=self._clock(),
        )  # fmt: skip

    def _body(self, plan: _ServerPlan) -> dict[str, Any]:
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
        scheduler_hints = {"os:scheduler_hints": {"group": plan.group}} if plan.group else {}
        return {"server": server, **scheduler_hints}

    def _take_without_server(self, claims: AbstractSet[str]) -> AbstractSet[str]:
        """Which of these are known to be unasked for; from now on none of them is."""
        with self._lock:
            found = self._without_server & claims
            self._without_server -= claims
            return found

    def _remember(self, plans: Mapping[str, _ServerPlan], done: Mapping[str, Instance | ProviderError]) -> None:
        """Those that were throttled are asked for again at once."""
        with self._lock:
            if len(self._without_server) > _REMEMBERED:
                self._without_server.clear()
            throttled = (claim for claim, one in done.items() if isinstance(one, RateLimited))
            self._without_server.update(claim for claim in throttled if claim in plans and plans[claim].ports.ids)

    def _remove_prerequisites(self, plans: Sequence[_ServerPlan]) -> None:
        """Best effort: what cannot be removed now is a leftover, found by its mark."""
        BatchCall(self._settings.side_by_side).call_each(self._remove_plan, [plan for plan in plans if plan.ports.ids])

    def _remove_plan(self, plan: _ServerPlan) -> None:
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


def _without_errors(
    found: Mapping[str, Prerequisite | ProviderError], done: dict[str, Instance | ProviderError]
) -> dict[str, Prerequisite]:
    """What is there; errors are done."""
    there: dict[str, Prerequisite] = {}
    for claim, one in found.items():
        if isinstance(one, ProviderError):
            done[claim] = one
        else:
            there[claim] = one
    return there


def _has_no_server(result: Instance | ProviderError) -> bool:
    """Whether there is no server, and none will come. After "too many calls" the same is asked for again at once."""
    return isinstance(result, ProviderError) and not isinstance(result, OutcomeUnknown | RateLimited)


def _translate_refusal(error: ProviderError, plan: _ServerPlan) -> ProviderError:
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
    if any(words.format(plan.image.id) in text for words in _NO_IMAGE):
        return NoSuchImage(str(error))
    if any(one and words.format(one) in text for one in plan.used_ids() for words in _GONE):
        return CloudUnavailable(f"what this server needs was removed meanwhile: {error}")
    return error


def _as_bad_request(result: Instance | ProviderError) -> Instance | ProviderError:
    """What a launch needs and is not there, a network that was deleted say, is for people to mend."""
    return BadRequest(str(result)) if isinstance(result, NotFound) else result
