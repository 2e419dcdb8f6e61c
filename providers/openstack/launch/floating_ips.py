"""Floating IPs, made for a machine's first port, so that they are there before it.

https://docs.openstack.org/api-ref/network/v2/#floating-ips-floatingips
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from burstd.domain.errors import BadRequest, CloudUnavailable, NotFound, OutcomeUnknown, ProviderError, QuotaExceeded
from providers.batch_calls import BatchCall
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.launch.ports import NO_ADDRESSES, ClaimPorts
from providers.openstack.servers import metadata
from providers.openstack.servers.owned_resources import FLOATING, OwnedResources, claim_id_of
from providers.openstack.settings import OpenStackSettings

Resource = Mapping[str, Any]


class FloatingIps:
    """Of one cluster. Used only where the settings name a network for them."""

    def __init__(
        self, cluster: str, settings: OpenStackSettings, calls: OpenStackCalls, networks: ProjectNetworks
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._networks = networks
        self._owned = OwnedResources(cluster, settings, calls)

    def ensure(self, ports: Mapping[str, ClaimPorts]) -> dict[str, str | ProviderError]:
        """For each claim the id of its floating IP, that of an earlier try first of all, or why it has none."""
        try:
            network = self._networks.floating_network_id()
            known = self._earlier([claim for claim, one in ports.items() if one.asked_before])
        except ProviderError as error:
            return dict.fromkeys(ports, error)

        def ensure_one(claim: str) -> str:
            if claim in known:
                return self._move(known[claim], ports[claim].ids[0])
            return self._make(network, claim, ports[claim].ids[0])

        made = BatchCall(self._settings.side_by_side).call_each(ensure_one, list(ports))
        return dict(zip(ports, made, strict=True))

    def remove(self, floating_id: str) -> None:
        """That of a claim that has no machine."""
        with suppress(NotFound):
            self._calls.mutate("network", "DELETE", f"/floatingips/{floating_id}", f"delete floating IP {floating_id}")

    def _earlier(self, claims: Sequence[str]) -> dict[str, Resource]:
        """By claim."""
        words = [metadata.owner_description(self._cluster, claim) for claim in claims]
        return {claim_id_of(one): one for one in self._owned.list_where(FLOATING, "description", words)}

    def _move(self, known: Resource, port: str) -> str:
        """One of an earlier try, to the port of today."""
        one = str(known["id"])
        if known["port_id"] != port:
            body = {"floatingip": {"port_id": port}}
            self._calls.mutate("network", "PUT", f"/floatingips/{one}", f"move floating IP {one}", body=body)
        return one

    def _make(self, network: str, claim: str, port: str) -> str:
        """Without an answer there may be one, which its mark finds, but surely no server."""
        body = {
            "floating_network_id": network,
            "port_id": port,
            "description": metadata.owner_description(self._cluster, claim),
        }
        try:
            answer = self._calls.mutate(
                "network", "POST", "/floatingips", "make a floating IP", body={"floatingip": body}
            )
        except OutcomeUnknown as error:
            raise CloudUnavailable(
                f"no server was asked for, whether it has a floating IP is not known: {error}"
            ) from error
        except NotFound as error:
            raise BadRequest(
                "no router leads from the first of the settings' networks to floating_network, "
                f"or one of them is gone: {error}"
            ) from error
        except ProviderError as error:
            if NO_ADDRESSES in str(error):
                raise QuotaExceeded(f"floating_network is full: {error}") from error
            raise
        return str(answer["floatingip"]["id"])
