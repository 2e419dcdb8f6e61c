"""Lists our machines, and reads what their consoles say.

The list of a resource group has neither addresses nor power states nor why a machine failed. Addresses are read from
the list of network interfaces while a machine's is not known. What has become of machines is in a list of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from urllib.parse import urlsplit

from burstd.domain.cloud.instance import TAG_CLAIM, Instance, InstanceState
from burstd.domain.errors import CloudUnavailable, NotFound
from providers.azure.calls import AzureCalls, Resource
from providers.azure.resources import (
    INTERFACES,
    MACHINES,
    belongs_to_cluster,
    machine_of,
    properties_of,
    tags_of,
    zone_name,
)
from providers.azure.settings import AzureSettings
from providers.azure.statuses import Failure, MachineStatuses, power_of

_SINGLE = 4
"""Machines of which it is asked in one listing, each by itself, why they failed; of the others in the next."""
_CONSOLE_S = 3000.0
"""How long an address of a console is used; it is good for an hour."""
_STATES = {
    "creating": InstanceState.PENDING,
    "succeeded": InstanceState.RUNNING,
    "updating": InstanceState.RUNNING,
    "failed": InstanceState.ERROR,
    "deleting": InstanceState.STOPPING,
}
_OFF = ("stopping", "stopped", "deallocating", "deallocated")
"""Power states of a machine that costs its disk at least and will not run by itself: nobody stops one of ours."""
_NAME = re.compile(r"[A-Za-z0-9][-\w.]{0,63}")


class MachineListing:
    """The machines of one cluster."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: AzureSettings,
        calls: AzureCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._addresses: Mapping[str, str] = {}
        """By machine's name in small letters, as the next two are."""
        self._failures: Mapping[str, Failure] = {}
        self._consoles: Mapping[str, tuple[float, str]] = {}
        """Until when an address of a console may be used, and the address."""
        self._statuses = MachineStatuses(calls, clock)
        self._clock = clock

    def instances(self) -> Iterator[Instance]:
        """All that bear our tag, page by page; those that are gone are not listed."""
        addresses: dict[str, str] = {}
        failures: dict[str, Failure] = {}
        single = _SINGLE
        known, listed, names = dict(self._addresses), False, set[str]()
        for page in self._calls.page_by_page(self._calls.in_group(MACHINES), "list machines"):
            ours = [said for said in page if belongs_to_cluster(said, self._cluster)]
            if not listed and any(said["name"].lower() not in known for said in ours):
                known |= self._read_addresses()
                listed = True
            for said in ours:
                name = said["name"].lower()
                names.add(name)
                if address := known.get(name, ""):
                    addresses[name] = address
                if _state(said) is InstanceState.ERROR:
                    failure = self._failures.get(name) or self._statuses.listed_failure(name)
                    if failure is None and single:
                        single -= 1
                        failure = self._statuses.read_failure(said["name"])
                    if failure:
                        failures[name] = failure
                yield self.instance(said, address, failures.get(name))
        # What is gone is forgotten.
        self._addresses, self._failures = addresses, failures
        self._consoles = {name: known for name, known in self._consoles.items() if name in names}

    def instance(self, said: Resource, address: str = "", failure: Failure | None = None) -> Instance:
        """One as Azure describes it, with what is known of it beside."""
        about, tags, state, error = properties_of(said), tags_of(said), _state(said), ""
        if state is InstanceState.ERROR and failure is None:
            state = InstanceState.UNKNOWN  # Why is read later: it may run all the same.
        if failure is not None and failure.harmless:
            state, failure = InstanceState.RUNNING, None
        if failure is not None:
            error = failure.text
        elif state is InstanceState.RUNNING and address:
            power = power_of(self._statuses.known().get(said["name"].lower(), ()))
            if power in _OFF:
                state, error = InstanceState.ERROR, f"somebody or something outside burstd has it {power}"
        return Instance(
            id=said["name"],
            provider=self._name,
            state=state,
            claim_id=tags.get(TAG_CLAIM, ""),
            tags=tags,
            name=(about.get("osProfile") or {}).get("computerName") or said["name"],
            zone=zone_name(said["location"], next(iter(said.get("zones") or ()), "")),
            instance_type=about["hardwareProfile"]["vmSize"],
            spot=about.get("priority") == "Spot",
            address=address,
            launched=datetime.fromisoformat(about["timeCreated"]).timestamp() if about.get("timeCreated") else 0.0,
            error=error,
            cause=failure.cause if failure else "",
        )

    def console(self, instance_id: str) -> str:
        """Output so far, empty while there is none. Raises NotFound."""
        if not _NAME.fullmatch(instance_id):
            raise NotFound(f"no machine has such a name: {instance_id}")
        url = self._console_url(instance_id)
        if not url:
            return ""
        answer = self._calls.public(url, f"read the console of {instance_id}")
        if answer.status == 404:
            return ""
        if answer.status >= 300:
            name = instance_id.lower()
            self._consoles = {one: known for one, known in self._consoles.items() if one != name}
            raise CloudUnavailable(
                f"{urlsplit(url).hostname} does not give the console of {instance_id} (HTTP {answer.status})"
            )
        return answer.body

    def _console_url(self, instance_id: str) -> str:
        """Address of the serial log, with the right to read it in itself: a secret for an hour. Empty: none yet."""
        now, name = self._clock(), instance_id.lower()
        until, url = self._consoles.get(name, (0.0, ""))
        if now >= until:
            path = f"{self._calls.in_group(MACHINES, instance_id)}/retrieveBootDiagnosticsData"
            said = self._calls.read_by_post(
                path, f"find the console of {instance_id}", sasUriExpirationTimeInMinutes=60
            )
            url = str(said.get("serialConsoleLogBlobUri") or "")
            if not url:
                return ""
            self._consoles = {**self._consoles, name: (now + _CONSOLE_S, url)}
        return url

    def _read_addresses(self) -> dict[str, str]:
        """The first private address of each machine that has one."""
        found: dict[str, str] = {}
        for said in self._calls.pages(self._calls.in_group(INTERFACES), "list network interfaces"):
            about = properties_of(said)
            machine = machine_of((about.get("virtualMachine") or {}).get("id", "")).lower()
            for one in about.get("ipConfigurations") or ():
                address = properties_of(one).get("privateIPAddress")
                if machine and address:
                    found.setdefault(machine, address)
        return found


def _state(said: Resource) -> InstanceState:
    return _STATES.get(str(properties_of(said).get("provisioningState", "")).lower(), InstanceState.UNKNOWN)
