"""Floating IPs, made for a machine's first port, so that they are there before it.

https://docs.openstack.org/api-ref/network/v2/#floating-ips-floatingips
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from burstd.domain.errors import BadRequest, CloudUnavailable, NotFound, OutcomeUnknown, ProviderError, QuotaExceeded
from providers.batch_calls import Pace
from providers.openstack import metadata
from providers.openstack.calls import Calls
from providers.openstack.launch.networks import Networks
from providers.openstack.launch.ports import FULL, Held
from providers.openstack.owned_resources import FLOATING, Ours, claim_of
from providers.openstack.settings import OpenStackSettings

Thing = Mapping[str, Any]


class FloatingIps:
    """Of one cluster. Used only where the settings name a network for them."""

    def __init__(self, cluster: str, settings: OpenStackSettings, calls: Calls, networks: Networks) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._networks = networks
        self._ours = Ours(cluster, settings, calls)

    def ensure(self, held: Mapping[str, Held]) -> dict[str, str | ProviderError]:
        """For each claim the id of its floating IP, that of an earlier try first of all, or why it has none."""
        try:
            network = self._networks.floating()
            known = self._earlier([claim for claim, one in held.items() if one.again])
        except ProviderError as error:
            return dict.fromkeys(held, error)

        def one_of(claim: str) -> str:
            if claim in known:
                return self._move(known[claim], held[claim].ids[0])
            return self._make(network, claim, held[claim].ids[0])

        made = Pace(self._settings.side_by_side).each(one_of, list(held))
        return dict(zip(held, made, strict=True))

    def remove(self, floating_id: str) -> None:
        """That of a claim that has no machine."""
        with suppress(NotFound):
            self._calls.tell("network", "DELETE", f"/floatingips/{floating_id}", f"delete floating IP {floating_id}")

    def _earlier(self, claims: Sequence[str]) -> dict[str, Thing]:
        """By claim."""
        words = [metadata.description(self._cluster, claim) for claim in claims]
        return {claim_of(one): one for one in self._ours.where(FLOATING, "description", words)}

    def _move(self, known: Thing, port: str) -> str:
        """One of an earlier try, to the port of today."""
        one = str(known["id"])
        if known["port_id"] != port:
            body = {"floatingip": {"port_id": port}}
            self._calls.tell("network", "PUT", f"/floatingips/{one}", f"move floating IP {one}", body=body)
        return one

    def _make(self, network: str, claim: str, port: str) -> str:
        """Without an answer there may be one, which its mark finds, but surely no server."""
        body = {
            "floating_network_id": network,
            "port_id": port,
            "description": metadata.description(self._cluster, claim),
        }
        try:
            answer = self._calls.tell(
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
            if FULL in str(error):
                raise QuotaExceeded(f"floating_network is full: {error}") from error
            raise
        return str(answer["floatingip"]["id"])
