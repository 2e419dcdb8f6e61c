"""What bears the cluster's mark and is no server: found in a few pages, removed once it was looked at again.

Nothing is removed that does not bear exactly the cluster's mark when it is asked for by its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from burstd.domain.cloud.instance import Leftover
from burstd.domain.errors import NotFound
from providers.batch_calls import BatchCall
from providers.leftovers import remove_leftovers
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.client.errors import OpenStackConflict
from providers.openstack.servers import metadata
from providers.openstack.servers.owned_resources import FLOATING as ADDRESSES
from providers.openstack.servers.owned_resources import PORTS, OwnedResources
from providers.openstack.servers.project_servers import ProjectServers
from providers.openstack.settings import OpenStackSettings

PORT, FLOATING, VOLUME, GROUP = "port", "floating-ip", "volume", "server-group"
_KINDS = (FLOATING, PORT, VOLUME, GROUP)
"""In the order in which they go: a floating IP before the port that it leads to."""
_NETWORK = {PORT: PORTS, FLOATING: ADDRESSES}
_GOING = ("deleting",)
_DELETABLE = ("available", "error")
_ATTACHED_STATES = ("reserved", "attaching", "in-use", "detaching")
_SOFT_DELETED = "SOFT_DELETED"
_ATTACHMENTS = "3.27"
"""The first microversion of Cinder's that shows them."""
Resource = Mapping[str, Any]


class OpenStackLeftovers:
    """Of one cluster."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: OpenStackSettings,
        calls: OpenStackCalls,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._servers = ProjectServers(settings, calls)
        self._owned = OwnedResources(cluster, settings, calls)

    def list_leftovers(self) -> Iterator[Leftover]:
        """Ports, floating IPs and volumes with the server that uses them; server groups that are empty and old."""
        ports = {one["id"]: one for one in self._owned.list_all(PORTS)}
        addresses = self._addresses()
        volumes = list(self._volumes())
        groups = [one for one in self._groups() if self._spare(one)]
        # Last, so that a server is in the list whose port is.
        servers, makers = self._servers_by_claim() if ports or volumes else (frozenset(), {})

        def leftover(kind: str, thing: Resource, user: str) -> Leftover:
            owner = _owner_of(kind, thing)
            claim = owner.claim if isinstance(owner, metadata.ResourceOwner) else ""
            return Leftover(kind, thing["id"], self._name, claim, user)

        def user(kind: str, thing: Resource) -> str:
            server = _server_of(kind, thing)
            if not server:
                owner = _owner_of(kind, thing)
                return makers.get(owner.claim, "") if isinstance(owner, metadata.ResourceOwner) else ""
            return server if server in servers else ""

        for one in addresses:
            port = one.get("port_id") or ""
            # Of a port that is not ours somebody else has made use of it.
            yield leftover(FLOATING, one, user(PORT, ports[port]) if port in ports else port)
        for one in ports.values():
            yield leftover(PORT, one, user(PORT, one))
        for one in volumes:
            yield leftover(VOLUME, one, user(VOLUME, one))
        for one in groups:
            yield leftover(GROUP, one, "")

    def _servers_by_claim(self) -> tuple[frozenset[str], dict[str, str]]:
        """All servers; and ours by claim: what was made for one is not in use by it while it is built, or in error."""
        servers: set[str] = set()
        makers: dict[str, str] = {}
        for said in self._servers.list_servers():
            servers.add(said["id"])
            owner = metadata.parse_metadata(said["metadata"])
            if owner is not None and owner.claim and metadata.belongs_to_cluster(owner, self._cluster):
                makers[owner.claim] = said["id"]
        return frozenset(servers), makers

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks at all of them first. What is in use by now is an error, what a launch may need again is left alone.

        Raises BadRequest, and removes nothing, where one is not ours; else the first error when all were tried.
        """
        mark = f"mark of cluster {self._cluster}, or is another project's"
        remove_leftovers(leftovers, _KINDS, "OpenStack", mark, self._named, self._strange, self._delete_spare)

    def _strange(self, kind: str, thing: Resource) -> str:
        if kind in _NETWORK:
            ours = self._owned.owns(thing)
        else:
            ours = metadata.belongs_to_cluster(_owner_of(kind, thing), self._cluster)
        return "" if ours else str(thing["id"])

    def _delete_spare(self, kind: str, things: Sequence[Resource]) -> Sequence[object]:
        spare = [one for one in things if kind != GROUP or self._spare(one)]
        return BatchCall(self._settings.side_by_side).call_each(partial(self._delete, kind), spare)

    def _delete(self, kind: str, thing: Resource) -> None:
        service, path = _service_and_path(kind, thing["id"])
        try:
            if kind == VOLUME:
                if thing.get("status") in _GOING:
                    return
                self._detach(thing)
            if kind == PORT and (server := _server_of(kind, thing)):
                self._check_gone(server, f"port {thing['id']}")
                # Nova has not let go of it, and Neutron deletes no port that says it is a machine's.
                free = {"port": {"device_id": "", "device_owner": ""}}
                self._calls.mutate(service, "PUT", path, f"free {kind} {thing['id']}", body=free)
            self._calls.mutate(service, "DELETE", path, f"delete {kind} {thing['id']}")
        except NotFound:
            return

    def _detach(self, volume: Resource) -> None:
        """From servers that are gone. Raises Conflict where it can not be deleted."""
        name, state = f"volume {volume['id']}", volume.get("status")
        if state in _DELETABLE:
            return
        if state not in _ATTACHED_STATES:
            raise OpenStackConflict(
                f"{name} is {state}: it can be deleted when it is available; else the cloud's operator can"
            )
        listed = self._calls.pages(
            "block_storage", "/attachments", "attachments", f"look at what uses {name}",
            version=_ATTACHMENTS, volume_id=volume["id"],
        )  # fmt: skip
        # An operator can take that filter away.
        attachments = [one for one in listed if one["volume_id"] == volume["id"]]
        if not attachments or not all(one.get("instance") for one in attachments):
            raise OpenStackConflict(f"{name} is {state}, and Cinder does not say by which server")
        for one in attachments:
            self._check_gone(one["instance"], name)
        for one in attachments:
            self._calls.mutate(
                "block_storage", "DELETE", f"/attachments/{one['id']}", f"detach {name}", version=_ATTACHMENTS
            )

    def _check_gone(self, server: str, what: str) -> None:
        """Raises Conflict where it is not. One of ours that the cloud keeps for a while is ended for good by this."""
        said = self._servers.find_server(server)
        if said is None:
            return
        if said.get("status") == _SOFT_DELETED and metadata.belongs_to_cluster(
            metadata.parse_metadata(said["metadata"]), self._cluster
        ):
            self._calls.mutate(
                "compute", "POST", f"/servers/{server}/action", f"end server {server}", body={"forceDelete": None}
            )
        raise OpenStackConflict(f"{what} is in use by server {server}")

    def _addresses(self) -> list[Resource]:
        try:
            return list(self._owned.list_all(ADDRESSES))
        except NotFound:
            return []  # A cloud without routers has no such list.

    def _volumes(self) -> Iterator[Resource]:
        """Asked for where the cloud has a service for volumes, whether or not the settings use it still."""
        return self._owned.list_volumes() if self._calls.has_service("block-storage") else iter(())

    def _groups(self) -> list[Resource]:
        """Ours. Nova has no pages of them; a project has ten, as a rule."""
        listed = self._calls.query("compute", "/os-server-groups", "list server groups")["server_groups"]
        return [one for one in listed if metadata.belongs_to_cluster(_owner_of(GROUP, one), self._cluster)]

    def _spare(self, group: Resource) -> bool:
        """Whether it is empty and old. One whose name says a time far ahead is old too: else it stayed for ever."""
        owner = metadata.parse_group_name(group["name"])
        old = owner is not None and abs(self._clock() - owner.made) >= self._settings.unused_s
        return old and not group.get("members")

    def _named(self, kind: str, wanted: Sequence[str]) -> list[Resource]:
        """Those that are there, whoever's they are."""
        if kind in _NETWORK:
            return list(self._owned.list_by_id(_NETWORK[kind], wanted))
        found: list[Resource] = []
        for one in wanted:
            service, path = _service_and_path(kind, one)
            try:
                answer = self._calls.query(service, path, f"look at {kind} {one}")
            except NotFound:
                continue
            found.append(answer[kind.replace("-", "_")])
        return found


def _owner_of(kind: str, thing: Resource) -> metadata.ResourceOwner | metadata.ServerGroupOwner | None:
    if kind == GROUP:
        return metadata.parse_group_name(thing.get("name") or "")
    return (
        metadata.parse_metadata(thing.get("metadata"))
        if kind == VOLUME
        else metadata.parse_description(thing.get("description"))
    )


def _server_of(kind: str, thing: Resource) -> str:
    """By the thing's own word; empty: none."""
    if kind == VOLUME:
        return next((one["server_id"] for one in thing.get("attachments") or () if one.get("server_id")), "")
    return thing.get("device_id") or ""


def _service_and_path(kind: str, thing_id: str) -> tuple[str, str]:
    """Service and path."""
    if kind in _NETWORK:
        return "network", f"/{_NETWORK[kind]}/{thing_id}"
    safe = quote(thing_id, safe="")
    return ("block_storage", f"/volumes/{safe}") if kind == VOLUME else ("compute", f"/os-server-groups/{safe}")
