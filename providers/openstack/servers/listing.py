"""Lists our servers, and reads what their consoles say.

Each server that the list before had, and this one lacks, is asked for by its id before it counts as gone: servers.py
says why.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from urllib.parse import quote

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import CloudUnavailable, OutcomeUnknown, ProviderError
from providers.batch_calls import BatchCall
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.client.errors import OpenStackConflict
from providers.openstack.servers import metadata
from providers.openstack.servers.owned_resources import FLOATING, OwnedResources, claim_id_of
from providers.openstack.servers.project_servers import ProjectServers, ServerJson
from providers.openstack.settings import OpenStackSettings

_STATES = {
    "BUILD": InstanceState.PENDING,
    "DELETED": InstanceState.TERMINATED,
    "SOFT_DELETED": InstanceState.STOPPING,
    "ERROR": InstanceState.ERROR,
    **dict.fromkeys(
        ("ACTIVE", "REBOOT", "HARD_REBOOT", "PASSWORD", "MIGRATING", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE"),
        InstanceState.RUNNING,
    ),
    # Nobody stops a machine of ours: it fills its quota and will not run by itself.
    **dict.fromkeys(("SHUTOFF", "PAUSED", "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "RESCUE"), InstanceState.ERROR),
}
_DELETING = ("deleting", "soft-deleting")
_CAUSES = (
    ("capacity", ("No valid host was found", "Exceeded max scheduling attempts", "Exhausted all hosts")),
    ("quota", ("Quota exceeded", "quota exceeded")),
)
_LINES = 2000
"""Of a console's output: the keys of the host are written once, then come the job's own lines."""
FloatingAddresses = Mapping[tuple[str, str], str]
"""Addresses of floating IPs by their claim and the fixed address that they lead to."""


class ServerListing:
    """The servers of one cluster."""

    def __init__(self, name: str, cluster: str, settings: OpenStackSettings, calls: OpenStackCalls) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._servers = ProjectServers(settings, calls)
        self._owned = OwnedResources(cluster, settings, calls)
        self._lock = threading.Lock()
        self._alive: frozenset[str] = frozenset()
        """Ids of ours that were not on their way out in the last whole list."""

    def instances(self) -> Iterator[Instance]:
        """All that bear our mark, page by page, each once. Raises CloudUnavailable where Nova knows some by id only."""
        floating = self._floating() if self._settings.floating_network else None
        with self._lock:
            missing = set(self._alive)
        seen: set[str] = set()
        alive = set()
        for said in self._servers.list_servers():
            missing.discard(said["id"])
            if said["id"] not in seen and (one := self._read(said, floating)) is not None:
                seen.add(one.id)
                if not one.state.ended:
                    alive.add(one.id)
                yield one
        for lost in BatchCall(self._settings.side_by_side).call_each(self._servers.find_server, sorted(missing)):
            if isinstance(lost, ProviderError):
                raise lost
            if lost is not None and (one := self._read(lost, floating)) is not None:
                if not one.state.ended:
                    alive.add(one.id)
                yield one
        with self._lock:
            self._alive = frozenset(alive)

    def console(self, instance_id: str) -> str:
        """The last lines of the output so far, empty while there is none. Raises NotFound."""
        body = {"os-getConsoleOutput": {"length": _LINES}}
        try:
            answer = self._calls.mutate(
                "compute", "POST", f"/servers/{quote(instance_id, safe='')}/action", "read a console", body=body
            )
        except OpenStackConflict:
            return ""  # No host has it yet.
        except OutcomeUnknown as error:
            raise CloudUnavailable(str(error)) from error  # It changes nothing.
        return str((answer or {}).get("output") or "")

    def _read(self, said: ServerJson, floating: FloatingAddresses | None) -> Instance | None:
        """None: it is not ours."""
        owner = metadata.parse_metadata(said["metadata"])
        if owner is None or not metadata.belongs_to_cluster(owner, self._cluster):
            return None
        state = _state(said)
        error, cause = _error_and_cause(said, state)
        return Instance(
            id=said["id"],
            provider=self._name,
            state=state,
            claim_id=owner.claim,
            tags=dict(said["metadata"]),
            name=said.get("name") or "",
            zone=said.get("OS-EXT-AZ:availability_zone") or "",
            instance_type=(said.get("flavor") or {}).get("original_name") or "",
            address=self._address(said) if floating is None else _floating_address(said, owner.claim, floating),
            launched=_seconds(said.get("created")),
            error=error,
            cause=cause,
        )

    def _address(self, said: ServerJson) -> str:
        """In the settings' first network, where it is known by its name; else in the first that Nova names."""
        networks = said.get("addresses") or {}
        first = networks.get(self._settings.networks[0]) or next(iter(networks.values()), ())
        fixed = [one for one in first if one.get("OS-EXT-IPS:type", "fixed") == "fixed"]
        return str(min(fixed, key=lambda one: int(one.get("version", 4)))["addr"]) if fixed else ""

    def _floating(self) -> FloatingAddresses:
        return {
            (claim_id_of(one), one["fixed_ip_address"]): str(one["floating_ip_address"])
            for one in self._owned.list_all(FLOATING)
            if one.get("fixed_ip_address")
        }


def _floating_address(said: ServerJson, claim: str, floating: FloatingAddresses) -> str:
    """Only of a server that has the fixed address: a second one of the same claim has not."""
    inside = [one["addr"] for some in (said.get("addresses") or {}).values() for one in some]
    return next((floating[claim, address] for address in inside if (claim, address) in floating), "")


def _state(said: ServerJson) -> InstanceState:
    if said.get("OS-EXT-STS:task_state") in _DELETING:
        return InstanceState.STOPPING
    return _STATES.get(said.get("status", ""), InstanceState.UNKNOWN)


def _error_and_cause(said: ServerJson, state: InstanceState) -> tuple[str, str]:
    """What Nova says of an error, and the interface's word where it is a launch that is refused late."""
    status, text = said.get("status", ""), str((said.get("fault") or {}).get("message") or "")
    if state is not InstanceState.ERROR:
        return "", ""
    if status != "ERROR":
        return f"Nova says {status}: somebody other than burstd stopped it", ""
    cause = next((cause for cause, words in _CAUSES if any(word in text for word in words)), "")
    return text.strip() or "Nova says ERROR, and not why", cause


def _seconds(text: str | None) -> float:
    """Since 1970, of a time as Nova writes it; 0: it says none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
