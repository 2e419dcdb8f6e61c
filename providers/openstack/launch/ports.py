"""The ports of machines, made before them.

A port that Nova makes by itself bears no mark of ours; one that is made first does, from the very call that makes it.

And it keeps a claim from having two machines. A call for a server may be carried out minutes after its answer was given
up. When the claim is asked for again, and no server of it shows, the ports of that call are deleted before new ones are
made: should it be carried out after all, it ends in an error for want of them. They are not used again, for Nova looks
only at its door whether a port is free, and the later of two servers takes it away from the first.
https://docs.openstack.org/api-ref/network/v2/#ports
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from burstd.domain.errors import (
    AuthFailed,
    CloudUnavailable,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchRequest
from providers.batch_calls import BatchCall
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.client.errors import OpenStackConflict
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.servers import metadata
from providers.openstack.servers.owned_resources import PORTS, OwnedResources, claim_id_of
from providers.openstack.servers.project_servers import ProjectServers
from providers.openstack.settings import OpenStackSettings

PortJson = Mapping[str, Any]
_MAX_PORTS = 50
"""Ports to one call, which must fit into its time limit; those of one claim go together."""
NO_ADDRESSES = "No more IP addresses available"
_OF_ALL = (AuthFailed, CloudUnavailable, RateLimited)
"""What says nothing of one request in particular."""


@dataclass(frozen=True, slots=True)
class ClaimPorts:
    """The ports of one claim, in the order of the networks. ``again``: it was asked for before, and may have more."""

    ids: tuple[str, ...]
    asked_before: bool = False


NO_PORTS = ClaimPorts(())


class Ports:
    """Of one cluster."""

    def __init__(
        self, cluster: str, settings: OpenStackSettings, calls: OpenStackCalls, networks: ProjectNetworks
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._networks = networks
        self._owned = OwnedResources(cluster, settings, calls)
        self._servers = ProjectServers(settings, calls)

    def ensure(
        self, requests: Sequence[LaunchRequest], without_server: AbstractSet[str]
    ) -> dict[str, ClaimPorts | ProviderError]:
        """For each claim its ports, or why it has none.

        ``unasked``: claims for which surely no server was asked for, whose ports are used again. OutcomeUnknown: an
        earlier call has made a server.
        """
        done: dict[str, ClaimPorts | ProviderError] = {}
        over: ProviderError | None = None
        step = max(1, _MAX_PORTS // len(self._settings.networks))
        for start in range(0, len(requests), step):
            part = requests[start : start + step]
            found = (
                self._ensure(part, without_server) if over is None else dict.fromkeys((r.claim_id for r in part), over)
            )
            over = over or next((one for one in found.values() if isinstance(one, _OF_ALL)), None)
            done.update(found)
        return done

    def remove(self, port_id: str) -> None:
        """One of a claim that has no machine."""
        with suppress(NotFound):
            self._calls.mutate("network", "DELETE", f"/ports/{port_id}", f"delete port {port_id}")

    def _ensure(
        self, part: Sequence[LaunchRequest], without_server: AbstractSet[str]
    ) -> Mapping[str, ClaimPorts | ProviderError]:
        try:
            networks, groups = self._networks.network_ids(), self._networks.security_group_ids()
            found = self._existing_ports(part, len(networks))
            again = [request for request in part if request.claim_id in found.keys() - without_server]
            servers = self._servers_by_claim() if again else {}
        except ProviderError as error:
            return dict.fromkeys((request.claim_id for request in part), error)
        done: dict[str, ClaimPorts | ProviderError] = {}
        stale = []
        for request in again:
            claim = request.claim_id
            used = servers.get(claim) or next((one["device_id"] for one in found[claim] if one["device_id"]), "")
            if used:
                done[claim] = OutcomeUnknown(f"an earlier call has made server {used} of this claim")
            else:
                stale.append(claim)

        def remove_ports(claim: str) -> None:
            for one in found[claim]:
                self.remove(one["id"])

        removed = BatchCall(self._settings.side_by_side).call_each(remove_ports, stale)
        done.update((claim, one) for claim, one in zip(stale, removed, strict=True) if isinstance(one, ProviderError))
        known: dict[str, dict[str, str]] = {}
        wanted: dict[str, list[dict[str, Any]]] = {}
        for request in part:
            claim = request.claim_id
            if claim in done:
                continue
            reused = found.get(claim, ()) if claim in without_server else ()
            known[claim] = {one["network_id"]: one["id"] for one in reused}
            lacking = [(place, network) for place, network in enumerate(networks) if network not in known[claim]]
            if lacking:
                wanted[claim] = [self._body(request, place, network, groups) for place, network in lacking]
        made = self._make(wanted) if wanted else {}
        for claim, ports in known.items():
            fresh = made.get(claim, {})
            if isinstance(fresh, ProviderError):
                done[claim] = fresh
                continue
            both = {**ports, **fresh}
            if all(network in both for network in networks):
                done[claim] = ClaimPorts(tuple(both[network] for network in networks), asked_before=claim in found)
            else:
                done[claim] = CloudUnavailable("Neutron's answer does not name the ports that were asked for")
        return done

    def _existing_ports(self, part: Sequence[LaunchRequest], networks: int) -> dict[str, list[PortJson]]:
        """Ports of earlier calls, by claim."""
        names = [_name(request, place) for request in part for place in range(networks)]
        claims = {request.claim_id for request in part}
        found: dict[str, list[PortJson]] = {}
        for port in self._owned.list_where(PORTS, "name", names):
            if (claim := claim_id_of(port)) in claims:
                found.setdefault(claim, []).append(port)
        return found

    def _servers_by_claim(self) -> dict[str, str]:
        """Ids of our servers, by claim. By a filter Nova would find fewer; servers.py says why."""
        found: dict[str, str] = {}
        for server in self._servers.list_servers():
            owner = metadata.parse_metadata(server["metadata"])
            if owner is not None and metadata.belongs_to_cluster(owner, self._cluster):
                found[owner.claim] = server["id"]
        return found

    def _body(self, request: LaunchRequest, place: int, network: str, groups: Sequence[str]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "name": _name(request, place),
            "description": metadata.owner_description(self._cluster, request.claim_id),
            "network_id": network,
            "binding:vnic_type": self._settings.vnic_type,
        }
        if not self._settings.port_security:
            body |= {"port_security_enabled": False, "security_groups": []}
        elif groups:
            body["security_groups"] = list(groups)
        return body

    def _make(self, wanted: Mapping[str, Sequence[dict[str, Any]]]) -> Mapping[str, dict[str, str] | ProviderError]:
        """By one call, which makes all or none; where there is not room for all, by one for each claim, so that some
        have theirs.
        """
        try:
            return self._call([body for bodies in wanted.values() for body in bodies])
        except ProviderError as error:
            if len(wanted) == 1 or not isinstance(error, QuotaExceeded | OpenStackConflict):
                return dict.fromkeys(wanted, error)
        made: dict[str, dict[str, str] | ProviderError] = {}
        over: ProviderError | None = None
        for claim, bodies in wanted.items():
            if over is None:
                try:
                    made.update(self._call(bodies))
                    continue
                except ProviderError as error:
                    made[claim] = error
                    over = error if isinstance(error, (*_OF_ALL, QuotaExceeded)) else None
            else:
                made[claim] = over
        return made

    def _call(self, bodies: Sequence[dict[str, Any]]) -> dict[str, dict[str, str]]:
        """By claim and network. Without an answer there may be ports, which their mark finds, but surely no server."""
        try:
            answer = self._calls.mutate("network", "POST", "/ports", "make ports", body={"ports": list(bodies)})
        except OutcomeUnknown as error:
            raise CloudUnavailable(f"no server was asked for, whether it has ports is not known: {error}") from error
        except ProviderError as error:
            if NO_ADDRESSES in str(error):
                raise QuotaExceeded(f"a network is full: {error}") from error
            raise
        made: dict[str, dict[str, str]] = {}
        for port in (answer or {}).get("ports", ()):
            owner = metadata.parse_description(port.get("description"))
            if owner is not None:
                made.setdefault(owner.claim, {})[port["network_id"]] = port["id"]
        return made


def _name(request: LaunchRequest, place: int) -> str:
    return f"{request.name}-{place + 1}" if place else request.name
