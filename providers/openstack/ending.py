"""Ends servers, with the ports and floating IPs that were made for them.

A port that was there before its server outlives it. By Neutron's newer policies a project may delete it only when Nova
has let go of it, a second or so later. What is not free in good time is found again as a leftover. A volume goes with
its server, by its own flag.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from burstd.model.errors import BadRequest, NotFound, ProviderError
from providers.openstack.calls import Calls
from providers.openstack.ours import FLOATING, PORTS, Ours
from providers.openstack.pace import Pace
from providers.openstack.settings import OpenStackSettings

_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_WAIT_S = 10.0
"""How long one ``terminate`` waits for Nova to let go of ports."""
_PAUSE_S = 0.5


class Ending:
    """The only one who ends servers. ``clock`` and ``sleep`` as in ``time``."""

    def __init__(
        self,
        cluster: str,
        settings: OpenStackSettings,
        calls: Calls,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._ours = Ours(cluster, settings, calls)
        self._clock = clock
        self._sleep = sleep

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """All are tried; what is gone already is no error; the first error is raised at the end.

        What has not the form of an id is BadRequest, and is never sent.
        """
        ids = list(dict.fromkeys(instance_ids))
        errors: list[ProviderError] = []
        strange = [one for one in ids if not _ID.fullmatch(one)]
        if strange:
            errors.append(BadRequest(f"no server of Nova has such an id: {', '.join(strange)}"))
            ids = [one for one in ids if _ID.fullmatch(one)]
        used: dict[str, list[str]] = {}
        try:
            # First: a port that Nova has let go of does not say any more whose it was.
            used = self._ports(ids)
        except ProviderError as error:
            errors.append(error)  # The servers end all the same: they are what costs.
        pace = Pace(self._settings.side_by_side)
        results = pace.each(partial(self._end, "compute", "server"), ids)
        errors += [one for one in results if isinstance(one, ProviderError)]
        ending = [one for one, result in zip(ids, results, strict=True) if result is None and one in used]
        try:
            errors += self._free({server: used[server] for server in ending}, pace)
        except ProviderError as error:
            errors.append(error)
        if errors:
            raise errors[0]

    def _free(self, used: Mapping[str, Sequence[str]], pace: Pace) -> list[ProviderError]:
        """Deletes the ports of servers that are on their way out, and the floating IPs that lead to them."""
        addresses = self._floating([port for ports in used.values() for port in ports])
        results = pace.each(partial(self._end, "network", "floatingip"), addresses)
        until = self._clock() + _WAIT_S
        waiting = list(used)
        while waiting:
            bound = self._ports(waiting)
            free = [port for server in waiting if server not in bound for port in used[server]]
            results += pace.each(partial(self._end, "network", "port"), free)
            waiting = list(bound)
            if waiting and self._clock() >= until:
                break
            if waiting:
                self._sleep(_PAUSE_S)
        return [one for one in results if isinstance(one, ProviderError)]

    def _ports(self, servers: Sequence[str]) -> dict[str, list[str]]:
        """By the server that they are in use by."""
        found: dict[str, list[str]] = {}
        for port in self._ours.where(PORTS, "device_id", servers):
            found.setdefault(port["device_id"], []).append(port["id"])
        return found

    def _floating(self, ports: Sequence[str]) -> list[str]:
        """Of these ports."""
        if not self._settings.floating_network:
            return []
        return [one["id"] for one in self._ours.where(FLOATING, "port_id", ports)]

    def _end(self, service: str, kind: str, thing: str) -> None:
        try:
            self._calls.tell(service, "DELETE", f"/{kind}s/{thing}", f"delete {kind} {thing}")
        except NotFound:
            return
