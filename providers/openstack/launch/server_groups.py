"""Server groups: the site's own for all machines, or one for each job of many nodes, made at its launch.

A group that burstd made is known by its name alone: groups bear no tags.
https://docs.openstack.org/api-ref/compute/#server-groups-os-server-groups
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from burstd.domain.errors import BadRequest, CloudUnavailable, OutcomeUnknown, ProviderError
from burstd.domain.plugins.provider import LaunchRequest
from providers.cache import CachedValue
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.servers import metadata
from providers.openstack.settings import OpenStackSettings

_CACHE_S = 300.0
_PATH = "/os-server-groups"
_POLICIES = "2.15"
"""The first microversion that knows the soft policies; from 2.64 on they are said in another form."""


class ServerGroups:
    """Of one cluster."""

    def __init__(
        self,
        cluster: str,
        settings: OpenStackSettings,
        calls: OpenStackCalls,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._date = date
        self._lock = threading.Lock()
        self._own = CachedValue(self._read_own, _CACHE_S, clock)

    def configured_group(self) -> str:
        """Id of the group that the settings name; empty where they name none. Raises BadRequest with the remedy."""
        return self._own.get() if self._settings.server_group else ""

    def ensure(self, requests: Sequence[LaunchRequest]) -> dict[str, str | ProviderError]:
        """For each claim the id of its group, empty where it needs none. One list, one call for each new group."""
        try:
            if self._settings.server_group or not self._settings.gang_policy:
                return dict.fromkeys((request.claim_id for request in requests), self.configured_group())
            gangs = sorted({request.gang for request in requests if request.gang})
            of_gang = self._of_gangs(gangs) if gangs else {}
        except ProviderError as error:
            return dict.fromkeys((request.claim_id for request in requests), error)
        return {request.claim_id: of_gang[request.gang] if request.gang else "" for request in requests}

    def _of_gangs(self, gangs: Iterable[str]) -> dict[str, str | ProviderError]:
        """One launch after the other, so that two of one gang find the same group."""
        with self._lock:
            known = self._known()
            done: dict[str, str | ProviderError] = {}
            for gang in gangs:
                try:
                    done[gang] = known.get(gang) or self._make(gang)
                except ProviderError as error:
                    done[gang] = error
            return done

    def _known(self) -> dict[str, str]:
        """By gang: groups with machines in them, and empty ones that will not be removed as leftovers soon."""
        found: dict[str, str] = {}
        for group in sorted(self._list(), key=lambda one: str(one["name"])):
            owner = metadata.parse_group_name(group["name"])
            if owner is None or not metadata.belongs_to_cluster(owner, self._cluster):
                continue
            if group["members"] or 2 * (self._date() - owner.made) < self._settings.unused_s:
                found[owner.gang] = group["id"]
        return found

    def _make(self, gang: str) -> str:
        """Without an answer there may be one, which its name finds, but surely no server."""
        try:
            name = metadata.group_name(self._cluster, gang, self._date())
        except ValueError as error:
            raise BadRequest(f"no server group can be made for job {gang}: {error}") from error
        body = {"server_group": {"name": name, "policies": [self._settings.gang_policy]}}
        try:
            answer = self._calls.mutate("compute", "POST", _PATH, "make a server group", body=body, version=_POLICIES)
        except OutcomeUnknown as error:
            raise CloudUnavailable(f"no server was asked for, whether it has a group is not known: {error}") from error
        return str(answer["server_group"]["id"])

    def _read_own(self) -> str:
        word = self._settings.server_group
        found = [group["id"] for group in self._list() if word in (group["id"], group["name"])]
        if len(found) != 1:
            count = f"{len(found)} server groups are" if found else "no server group is"
            raise BadRequest(f"{count} named '{word}': look at the settings' server_group, or write an id")
        return str(found[0])

    def _list(self) -> list[Mapping[str, Any]]:
        """All of the project. One page: Nova gives a thousand, and a project's quota is ten, if nobody raised it."""
        return list(self._calls.query("compute", _PATH, "list server groups")["server_groups"])
