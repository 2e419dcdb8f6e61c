"""Lists our servers, and reads what their consoles say.

Asked for with a filter, a limit or a marker, Nova leaves out the servers of a cell that is down, without a word: they
would look gone. Asked for without any, from microversion 2.69 on, it names them, without their details. So the whole
project is listed, the first page without a limit, and a server without details makes it no list at all. Further pages
cannot be had so; nor do they show a server that is given to a host while they are read. Where there are any, each
server that the list before had is asked for by its id before it counts as missing.
https://docs.openstack.org/api-guide/compute/down_cells.html
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any
from urllib.parse import quote

from burstd.model.errors import CloudUnavailable, NotFound, OutcomeUnknown
from burstd.model.instance import Instance, InstanceState
from providers.openstack import marks
from providers.openstack.calls import Calls
from providers.openstack.errors import Conflict
from providers.openstack.settings import OpenStackSettings

VERSION = "2.69"
_WHOLE_PAGE = 1000
"""Nova's own limit, unless its operator set another."""
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


class Listing:
    """The servers of one cluster."""

    def __init__(self, name: str, cluster: str, settings: OpenStackSettings, calls: Calls) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._lock = threading.Lock()
        self._alive: frozenset[str] = frozenset()
        """Ids of ours that were not on their way out in the last whole list."""

    def instances(self) -> Iterator[Instance]:
        """All that bear our mark, page by page, each once. Raises CloudUnavailable where Nova knows some by id only."""
        addresses = self._floating() if self._settings.floating_network else None
        with self._lock:
            missing = set(self._alive)
        seen: set[str] = set()
        alive = set()
        pages = 0
        for page in self._pages():
            pages += 1
            for said in page:
                missing.discard(said["id"])
                if said["id"] not in seen and (one := self._ours(said, addresses)) is not None:
                    seen.add(one.id)
                    if not one.state.ended:
                        alive.add(one.id)
                    yield one
        for lost in sorted(missing) if pages > 1 else ():
            if (one := self._looked_up(lost, addresses)) is not None:
                alive.add(one.id)
                yield one
        with self._lock:
            self._alive = frozenset(alive)

    def servers(self) -> Iterator[Mapping[str, Any]]:
        """All of the project, page by page, as Nova describes them. Raises CloudUnavailable as ``instances`` does."""
        return chain.from_iterable(self._pages())

    def console(self, instance_id: str) -> str:
        """The last lines of the output so far, empty while there is none. Raises NotFound."""
        body = {"os-getConsoleOutput": {"length": _LINES}}
        try:
            answer = self._calls.tell(
                "compute", "POST", f"/servers/{quote(instance_id, safe='')}/action", "read a console", body=body
            )
        except Conflict:
            return ""  # No host has it yet.
        except OutcomeUnknown as error:
            raise CloudUnavailable(str(error)) from error  # It changes nothing.
        return str((answer or {}).get("output") or "")

    def _pages(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        page = self._settings.page
        query = {} if page >= _WHOLE_PAGE else {"limit": page}
        for things in self._calls.page_by_page(
            "compute", "/servers/detail", "servers", "list servers", version=VERSION, **query
        ):
            for said in things:
                _checked(said)
            yield things

    def _looked_up(self, server_id: str, addresses: Mapping[str, str] | None) -> Instance | None:
        """One that the list lacks; None: it is gone."""
        try:
            answer = self._calls.ask("compute", f"/servers/{server_id}", "look at a server", version=VERSION)
        except NotFound:
            return None
        return self._ours(_checked(answer["server"]), addresses)

    def _ours(self, said: Mapping[str, Any], addresses: Mapping[str, str] | None) -> Instance | None:
        mark = marks.of_metadata(said["metadata"])
        if mark is None or not marks.is_ours(mark, self._cluster):
            return None
        state = _state(said)
        error, cause = _why(said, state)
        return Instance(
            id=said["id"],
            provider=self._name,
            state=state,
            claim_id=mark.claim,
            tags=dict(said["metadata"]),
            name=said.get("name") or "",
            zone=said.get("OS-EXT-AZ:availability_zone") or "",
            instance_type=(said.get("flavor") or {}).get("original_name") or "",
            address=self._address(said) if addresses is None else addresses.get(mark.claim, ""),
            launched=_seconds(said.get("created")),
            error=error,
            cause=cause,
        )

    def _address(self, said: Mapping[str, Any]) -> str:
        """In the settings' first network, where it is known by its name; else in the first that Nova names."""
        networks = said.get("addresses") or {}
        first = networks.get(self._settings.networks[0]) or next(iter(networks.values()), ())
        fixed = [one for one in first if one.get("OS-EXT-IPS:type", "fixed") == "fixed"]
        return str(min(fixed, key=lambda one: int(one.get("version", 4)))["addr"]) if fixed else ""

    def _floating(self) -> dict[str, str]:
        """Addresses by claim; of those that have a port only."""
        listed = self._calls.pages(
            "network", "/floatingips", "floatingips", "list floating IPs", limit=self._settings.page
        )
        found = {}
        for one in listed:
            mark = marks.of_description(one.get("description"))
            if mark is not None and marks.is_ours(mark, self._cluster) and one.get("port_id"):
                found[mark.claim] = str(one["floating_ip_address"])
        return found


def _checked(said: Mapping[str, Any]) -> Mapping[str, Any]:
    if "metadata" not in said:
        raise CloudUnavailable(
            f"the list of servers is not whole: Nova does not reach the cell that server {said.get('id')} is in"
        )
    return said


def _state(said: Mapping[str, Any]) -> InstanceState:
    if said.get("OS-EXT-STS:task_state") in _DELETING:
        return InstanceState.STOPPING
    return _STATES.get(said.get("status", ""), InstanceState.UNKNOWN)


def _why(said: Mapping[str, Any], state: InstanceState) -> tuple[str, str]:
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
