"""Ends servers, with the ports and floating IPs that were made for them.

A port that was there before its server outlives it. By Neutron's newer policies a project may delete it only when Nova
has let go of it, a second or so later. What is not free in good time is found again as a leftover. A volume goes with
its server, by its own flag.

Which server a port is for, Nova writes into it some time after the server was taken, and wipes out where its build
fails. Then the claim tells.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from burstd.domain.errors import BadRequest, NotAllowed, NotFound, ProviderError
from providers.batch_calls import BatchCall
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.client.errors import OpenStackConflict
from providers.openstack.servers import metadata
from providers.openstack.servers.owned_resources import FLOATING, PORTS, OwnedResources, claim_id_of
from providers.openstack.servers.project_servers import ProjectServers
from providers.openstack.settings import OpenStackSettings

_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_WAIT_S = 10.0
"""How long one ``terminate`` waits for Nova to let go of ports."""
_PAUSE_S = 0.5


class ServerTerminator:
    """The only one who ends servers. ``clock`` and ``sleep`` as in ``time``."""

    def __init__(
        self,
        cluster: str,
        settings: OpenStackSettings,
        calls: OpenStackCalls,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._owned = OwnedResources(cluster, settings, calls)
        self._servers = ProjectServers(settings, calls)
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
            for server, ports in self._ports_made_for(
                [one for one in ids if not self._is_whole(used.get(one, ()))]
            ).items():
                used[server] = list({*used.get(server, ()), *ports})
        except ProviderError as error:
            errors.append(error)  # The servers end all the same: they are what costs.
        batch = BatchCall(self._settings.side_by_side)
        results = batch.call_each(partial(self._delete, "compute", "server"), ids)
        errors += [one for one in results if isinstance(one, ProviderError)]
        terminated = [one for one, result in zip(ids, results, strict=True) if result is None and one in used]
        try:
            errors += self._delete_addresses({server: used[server] for server in terminated}, batch)
        except ProviderError as error:
            errors.append(error)
        if errors:
            raise errors[0]

    def _delete_addresses(self, used: Mapping[str, Sequence[str]], batch: BatchCall) -> list[ProviderError]:
        """Deletes the ports of servers that are on their way out, and the floating IPs that lead to them."""
        addresses = self._floating([port for ports in used.values() for port in ports])
        results = batch.call_each(partial(self._delete, "network", "floatingip"), addresses)
        errors = [one for one in results if isinstance(one, ProviderError)]
        until = self._clock() + _WAIT_S
        waiting = list(used)
        while waiting:
            bound = self._ports(waiting)
            free = [(server, port) for server in waiting if server not in bound for port in used[server]]
            results = batch.call_each(partial(self._delete, "network", "port"), [port for _, port in free])
            # One that Nova takes in between, for a server that it is just building.
            taken = {
                server: one
                for (server, _), one in zip(free, results, strict=True)
                if isinstance(one, NotAllowed | OpenStackConflict)
            }
            errors += [one for one in results if isinstance(one, ProviderError) and one not in taken.values()]
            waiting = [*bound, *taken]
            if waiting and self._clock() >= until:
                errors += taken.values()
                break
            if waiting:
                self._sleep(_PAUSE_S)
        return errors

    def _is_whole(self, ports: Sequence[str]) -> bool:
        return len(ports) >= len(self._settings.networks)

    def _ports_made_for(self, servers: Sequence[str]) -> dict[str, list[str]]:
        """Ports that were made for these servers, whether or not they are in use by them yet or still, by server.

        None of a claim that has another server too, which may be about to use them.
        """
        if not servers:
            return {}
        of_claim: dict[str, set[str]] = {}
        for said in self._servers.list_servers():
            owner = metadata.parse_metadata(said["metadata"])
            if owner is not None and metadata.belongs_to_cluster(owner, self._cluster):
                of_claim.setdefault(owner.claim, set()).add(said["id"])
        only_servers = {claim: min(ids) for claim, ids in of_claim.items() if len(ids) == 1 and min(ids) in servers}
        found: dict[str, list[str]] = {}
        for port in self._owned.list_all(PORTS) if only_servers else ():
            server = only_servers.get(claim_id_of(port), "")
            # Nova may have written it down by now.
            if server and port["device_id"] in ("", server):
                found.setdefault(server, []).append(port["id"])
        return found

    def _ports(self, servers: Sequence[str]) -> dict[str, list[str]]:
        """By the server that they are in use by."""
        found: dict[str, list[str]] = {}
        for port in self._owned.list_where(PORTS, "device_id", servers):
            found.setdefault(port["device_id"], []).append(port["id"])
        return found

    def _floating(self, ports: Sequence[str]) -> list[str]:
        """Of these ports."""
        if not self._settings.floating_network:
            return []
        return [one["id"] for one in self._owned.list_where(FLOATING, "port_id", ports)]

    def _delete(self, service: str, kind: str, thing: str) -> None:
        try:
            self._calls.mutate(service, "DELETE", f"/{kind}s/{thing}", f"delete {kind} {thing}")
        except NotFound:
            return
