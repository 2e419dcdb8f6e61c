"""Ends servers, with the ports and floating IPs that were made for them.

A port that was there before its server outlives it; a volume that a server was made with goes with it, by its own flag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from burstd.model.errors import BadRequest, NotFound, ProviderError
from providers.openstack import marks
from providers.openstack.calls import Calls
from providers.openstack.pace import Pace
from providers.openstack.settings import OpenStackSettings

_PART = 50
"""Ids to one call: they must fit into its address."""
_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


class Ending:
    """The only one who ends servers."""

    def __init__(self, cluster: str, settings: OpenStackSettings, calls: Calls) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """All are tried; what is gone already is no error; the first error is raised at the end.

        What has not the form of an id is BadRequest, and is never sent. What belongs to a server that cannot be ended
        now stays: it is found again as a leftover once the server is gone.
        """
        ids = list(dict.fromkeys(instance_ids))
        strange = [one for one in ids if not _ID.fullmatch(one)]
        errors: list[ProviderError] = []
        if strange:
            errors.append(BadRequest(f"no server of Nova has such an id: {', '.join(strange)}"))
        ids = [one for one in ids if _ID.fullmatch(one)]
        pace = Pace(self._settings.side_by_side)
        for start in range(0, len(ids), _PART):
            errors += self._batch(ids[start : start + _PART], pace)
        if errors:
            raise errors[0]

    def _batch(self, ids: Sequence[str], pace: Pace) -> list[ProviderError]:
        """The ports are looked up first: a port whose server is gone does not say any more whose it was."""
        errors: list[ProviderError] = []
        ports: dict[str, list[str]] = {}
        floating: dict[str, list[str]] = {}
        try:
            ports = self._ports(ids)
            floating = self._floating([port for of_one in ports.values() for port in of_one])
        except ProviderError as error:
            errors.append(error)  # The servers end all the same: they are what costs.
        results = pace.each(partial(self._end, "compute", "server"), ids)
        kept = {one for one, result in zip(ids, results, strict=True) if isinstance(result, ProviderError)}
        loose = [port for server, of_one in ports.items() if server not in kept for port in of_one]
        results += pace.each(
            partial(self._end, "network", "floatingip"), [one for port in loose for one in floating.get(port, ())]
        )
        results += pace.each(partial(self._end, "network", "port"), loose)
        return [*errors, *(one for one in results if isinstance(one, ProviderError))]

    def _end(self, service: str, kind: str, thing: str) -> None:
        try:
            self._calls.tell(service, "DELETE", f"/{kind}s/{thing}", f"delete {kind} {thing}")
        except NotFound:
            return

    def _ports(self, servers: Sequence[str]) -> dict[str, list[str]]:
        """Ours only, by server."""
        found: dict[str, list[str]] = {}
        for port in self._calls.pages("network", "/ports", "ports", "list ports", device_id=list(servers)):
            if marks.is_ours(marks.of_description(port.get("description")), self._cluster):
                found.setdefault(port["device_id"], []).append(port["id"])
        return found

    def _floating(self, ports: Sequence[str]) -> dict[str, list[str]]:
        """Ours only, by port."""
        found: dict[str, list[str]] = {}
        if not self._settings.floating_network:
            return found
        for start in range(0, len(ports), _PART):
            some = list(ports[start : start + _PART])
            for one in self._calls.pages("network", "/floatingips", "floatingips", "list floating IPs", port_id=some):
                if marks.is_ours(marks.of_description(one.get("description")), self._cluster):
                    found.setdefault(one["port_id"], []).append(one["id"])
        return found
