"""What bears the cluster's mark and is no server: found in a few pages, removed once it was looked at again.

Nothing is removed that does not bear exactly the cluster's mark when it is asked for by its id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from burstd.model.errors import BadRequest, NotFound, ProviderError
from burstd.model.instance import TAG_CLUSTER, Leftover
from providers.openstack import marks
from providers.openstack.calls import Calls
from providers.openstack.errors import Conflict
from providers.openstack.pace import Pace
from providers.openstack.settings import OpenStackSettings

PORT, FLOATING, VOLUME, GROUP = "port", "floating-ip", "volume", "server-group"
_KINDS = (FLOATING, PORT, VOLUME, GROUP)
"""In the order in which they go: a floating IP before the port that it leads to."""
_PART = 50
"""Ids to one call: they must fit into its address."""
_FIELDS = {
    PORT: ("id", "description", "device_id"),
    FLOATING: ("id", "description", "port_id"),
}
_NETWORK = {PORT: "ports", FLOATING: "floatingips"}
_GOING = ("deleting",)
_DELETABLE = ("available", "error", "error_deleting")
_SERVERS = "2.69"
"""From there on Nova names, in a list without limit, servers of a cell that is down, too."""
_WHOLE_PAGE = 1000
Thing = Mapping[str, Any]


class Leftovers:
    """Of one cluster."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: OpenStackSettings,
        calls: Calls,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._clock = clock

    def listed(self) -> Iterator[Leftover]:
        """Ports, floating IPs and volumes with the server that uses them; server groups that are empty and old."""
        ports = {one["id"]: one for one in self._network(PORT)}
        addresses = list(self._network(FLOATING))
        volumes = list(self._volumes())
        groups = [one for one in self._groups() if self._spare(one)]
        used = any(_server_of(kind, one) for kind, some in ((PORT, ports.values()), (VOLUME, volumes)) for one in some)
        # Last, so that a server is in the list whose port is.
        servers = self._servers() if used else frozenset()

        def left(kind: str, thing: Thing, user: str) -> Leftover:
            mark = _mark(kind, thing)
            claim = mark.claim if isinstance(mark, marks.Mark) else ""
            return Leftover(kind, thing["id"], self._name, claim, user)

        def user(kind: str, thing: Thing) -> str:
            server = _server_of(kind, thing)
            return server if server in servers else ""

        for one in addresses:
            port = one.get("port_id") or ""
            # Of a port that is not ours somebody else has made use of it.
            yield left(FLOATING, one, user(PORT, ports[port]) if port in ports else port)
        for one in ports.values():
            yield left(PORT, one, user(PORT, one))
        for one in volumes:
            yield left(VOLUME, one, user(VOLUME, one))
        for one in groups:
            yield left(GROUP, one, "")

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks at all of them first. What is in use by now is an error, what a launch may need again is left alone.

        Raises BadRequest, and removes nothing, where one is not ours; else the first error when all were tried.
        """
        unknown = sorted({left.kind for left in leftovers} - set(_KINDS))
        if unknown:
            raise BadRequest(f"no such kind of thing in OpenStack: {', '.join(unknown)}")
        found = {kind: self._named(kind, leftovers) for kind in _KINDS}
        strange = [
            f"{kind} {one['id']}"
            for kind, things in found.items()
            for one in things
            if not marks.is_ours(_mark(kind, one), self._cluster)
        ]
        if strange:
            raise BadRequest(f"this does not bear the mark of cluster {self._cluster}: {', '.join(strange)}")
        errors: list[ProviderError] = []
        for kind, things in found.items():
            spare = [one for one in things if kind != GROUP or self._spare(one)]
            results = Pace(self._settings.side_by_side).each(partial(self._end, kind), spare)
            errors += [one for one in results if isinstance(one, ProviderError)]
        if errors:
            raise errors[0]

    def _end(self, kind: str, thing: Thing) -> None:
        if kind == VOLUME and thing.get("status") in _GOING:
            return
        if kind == VOLUME and thing.get("status") not in _DELETABLE:
            raise Conflict(f"volume {thing['id']} is {thing.get('status')}: it can be deleted when it is available")
        if kind == PORT and self._is_there(_server_of(kind, thing)):
            raise Conflict(f"port {thing['id']} is in use by server {_server_of(kind, thing)}")
        service, path = _place(kind, thing["id"])
        try:
            self._calls.tell(service, "DELETE", path, f"delete {kind} {thing['id']}")
        except NotFound:
            return

    def _is_there(self, server: str) -> bool:
        if not server:
            return False
        try:
            self._calls.ask("compute", f"/servers/{server}", "look at a server", version=_SERVERS)
        except NotFound:
            return False
        return True

    def _servers(self) -> frozenset[str]:
        """Ids of all of the project's."""
        page = self._settings.page
        query = {} if page >= _WHOLE_PAGE else {"limit": page}
        listed = self._calls.pages("compute", "/servers", "servers", "list servers", version=_SERVERS, **query)
        return frozenset(one["id"] for one in listed)

    def _network(self, kind: str) -> Iterator[Thing]:
        """Ours."""
        listed = self._calls.pages(
            "network", f"/{_NETWORK[kind]}", _NETWORK[kind], f"list {kind}s", limit=self._settings.page,
            fields=list(_FIELDS[kind]),
        )  # fmt: skip
        try:
            for one in listed:
                if marks.is_ours(_mark(kind, one), self._cluster):
                    yield one
        except NotFound:
            if kind != FLOATING:
                raise
            # A cloud without routers has no such list.

    def _volumes(self) -> Iterator[Thing]:
        """Ours. Asked for where the cloud has a service for volumes, whether or not the settings use it still."""
        if not self._calls.has("block-storage"):
            return iter(())
        ours = json.dumps({TAG_CLUSTER: self._cluster})
        listed = self._calls.pages(
            "block_storage", "/volumes/detail", "volumes", "list volumes", limit=self._settings.page, metadata=ours
        )
        return (one for one in listed if marks.is_ours(_mark(VOLUME, one), self._cluster))

    def _groups(self) -> list[Thing]:
        """Ours. Nova has no pages of them; a project has ten, as a rule."""
        listed = self._calls.ask("compute", "/os-server-groups", "list server groups")["server_groups"]
        return [one for one in listed if marks.is_ours(_mark(GROUP, one), self._cluster)]

    def _spare(self, group: Thing) -> bool:
        """Whether it is empty and old. One whose name says a time far ahead is old too: else it stayed for ever."""
        mark = marks.of_group(group["name"])
        old = mark is not None and abs(self._clock() - mark.made) >= self._settings.unused_s
        return old and not group.get("members")

    def _named(self, kind: str, leftovers: Sequence[Leftover]) -> list[Thing]:
        """Those that are there, whoever's they are."""
        wanted = sorted({left.id for left in leftovers if left.kind == kind})
        found: list[Thing] = []
        if kind in _NETWORK:
            for start in range(0, len(wanted), _PART):
                found += self._calls.pages(
                    "network", f"/{_NETWORK[kind]}", _NETWORK[kind], f"look at {kind}s",
                    id=wanted[start : start + _PART], fields=list(_FIELDS[kind]),
                )  # fmt: skip
            return [one for one in found if one["id"] in wanted]
        for one in wanted:
            service, path = _place(kind, one)
            try:
                answer = self._calls.ask(service, path, f"look at {kind} {one}")
            except NotFound:
                continue
            found.append(answer[kind.replace("-", "_")])
        return found


def _mark(kind: str, thing: Thing) -> marks.Mark | marks.GroupMark | None:
    if kind == GROUP:
        return marks.of_group(thing.get("name") or "")
    return (
        marks.of_metadata(thing.get("metadata")) if kind == VOLUME else marks.of_description(thing.get("description"))
    )


def _server_of(kind: str, thing: Thing) -> str:
    """By the thing's own word; empty: none."""
    if kind == VOLUME:
        return next((one["server_id"] for one in thing.get("attachments") or () if one.get("server_id")), "")
    return thing.get("device_id") or ""


def _place(kind: str, thing_id: str) -> tuple[str, str]:
    """Service and path."""
    if kind in _NETWORK:
        return "network", f"/{_NETWORK[kind]}/{thing_id}"
    safe = quote(thing_id, safe="")
    return ("block_storage", f"/volumes/{safe}") if kind == VOLUME else ("compute", f"/os-server-groups/{safe}")
