"""Lists our instances zone by zone, and reads what their serial ports say. Lists of all zones would be of the whole
world, and fail with a zone that is no concern of ours.

A launch that Google took and refused later leaves no instance, only an operation that failed; so does a Spot VM that
Google took back. Operations are listed by zone, newest first, and only while one may be of interest.
https://cloud.google.com/compute/docs/instances/instance-lifecycle
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, Instance, InstanceState
from burstd.domain.errors import NotFound
from providers.google import labels
from providers.google.calls import GoogleCalls
from providers.google.errors import GoogleNotReady, operation_error
from providers.google.launch import seconds
from providers.google.settings import GoogleSettings

_STATES = {
    **dict.fromkeys(("PENDING", "PROVISIONING", "STAGING"), InstanceState.PENDING),
    **dict.fromkeys(("RUNNING", "REPAIRING"), InstanceState.RUNNING),
    **dict.fromkeys(("PENDING_STOP", "STOPPING", "DEPROVISIONING"), InstanceState.STOPPING),
    # Google's word for a machine that was switched off. It costs its disk, and nobody starts it.
    **dict.fromkeys(("TERMINATED", "STOPPED", "SUSPENDING", "SUSPENDED"), InstanceState.ERROR),
}
_FIELDS = (
    "id,name,description,labels,status,zone,machineType,guestAccelerators,scheduling/provisioningModel,"
    "networkInterfaces/networkIP,creationTimestamp"
)
"""Without the user data, which would be most of a page."""
_OPERATION_FIELDS = "clientOperationId,error,httpErrorMessage,insertTime,operationType,targetId,targetLink"
_INSERTED, _PREEMPTED = "insert", "compute.instances.preempted"
_LATE_S = 900.0
"""How long after a launch Google may refuse it, and for how long a Spot VM that was taken back is told of."""
_MAX_ENDED = 10_000
_ID = re.compile(r"(?P<zone>[a-z][-a-z0-9]{0,62})/(?P<number>[1-9][0-9]{0,19})")


def parse_id(instance_id: str) -> tuple[str, str] | None:
    """Zone and number of an id of ours, or of a disk's; None: it has not the form of one."""
    found = _ID.fullmatch(instance_id)
    return (found["zone"], found["number"]) if found else None


class InstanceListing:
    """The instances of one cluster. ``zones``: all of the region. ``clock`` need not know the date."""

    def __init__(
        self, name: str, cluster: str, settings: GoogleSettings, calls: GoogleCalls, zones: Callable[[], list[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._zones = zones
        self._clock = clock
        self._lock = threading.Lock()
        self._launched_before = clock() + _LATE_S
        """Until then a launch by an earlier process may be refused."""
        self._look_until: dict[str, float] = {}
        """The same of launches by this one, by zone."""
        self._known: dict[str, tuple[Instance, float]] = {}
        """Those of lists that burstd has not ended, each with the time until which it counts when it is listed no
        more."""
        self._ended: dict[str, None] = {}
        """What burstd has ended, the latest last: refused launches among it."""

    def launched(self, zone: str) -> None:
        """A launch goes out to this zone."""
        with self._lock:
            self._look_until[zone] = self._clock() + _LATE_S

    def ended(self, instance_id: str) -> None:
        """By burstd: nothing more is to be said of why it is gone, or of why its launch was refused."""
        with self._lock:
            self._ended[instance_id] = None
            if len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def instances(self) -> Iterator[Instance]:
        """All that bear our label, page by page, each once; last those that stop and were not ended by burstd, for a
        while Spot VMs that Google took back, and launches that were refused.
        """
        seen: dict[str, Instance] = {}
        stopping: dict[str, Instance] = {}
        for zone in self._zones():
            pages = self._calls.items(
                "compute.instances.list", f"list instances of {zone}", project=self._settings.project, zone=zone,
                filter=labels.cluster_filter(self._cluster), maxResults=self._settings.page,
                fields=labels.list_fields(_FIELDS),
            )  # fmt: skip
            for said in pages:
                if labels.belongs_to_cluster(said, self._cluster) and (one := self._instance(said)).id not in seen:
                    seen[one.id] = one
                    if one.state is InstanceState.STOPPING and one.id not in self._ended:
                        stopping[one.id] = one
                    else:
                        yield one
        yield from self._going(seen, stopping)

    def console(self, instance_id: str) -> str:
        """What the first serial port has said, the last MiB, empty while there is nothing. Raises NotFound."""
        place = parse_id(instance_id)
        if place is None:
            raise NotFound(f"no instance of Google's has such an id: {instance_id}")
        try:
            answer = self._calls.query(
                "compute.instances.getSerialPortOutput", f"read the console of {instance_id}",
                project=self._settings.project, zone=place[0], instance=place[1], port=1,
            )  # fmt: skip
        except GoogleNotReady:
            return ""
        return str(answer.get("contents") or "")

    def _going(self, seen: dict[str, Instance], stopping: dict[str, Instance]) -> Iterator[Instance]:
        """What is said last. ``stopping``: those of ``seen`` that stop and were not ended by burstd."""
        now = self._clock()
        with self._lock:
            known = {k: (one, min(end, now + _LATE_S)) for k, (one, end) in self._known.items() if now <= end}
            zones = {zone for zone, end in self._look_until.items() if now <= end}
        going = {
            key: replace(one, state=InstanceState.TERMINATED)
            for key, (one, _) in known.items()
            if key not in seen and key not in self._ended
        } | stopping
        zones |= {one.zone for one in going.values()}
        if now <= self._launched_before:
            zones |= set(self._zones())
        told = seen.keys() - going.keys()
        for zone in sorted(zones):
            for operation in self._operations(zone, self._calls.answered_at() - _LATE_S):
                one = self._read(operation, zone, going)
                if one is not None and one.id not in told and one.id not in self._ended:
                    told.add(one.id)
                    yield one
        yield from (one for one in stopping.values() if one.id not in told)
        known |= {key: (one, math.inf) for key, one in seen.items()}
        with self._lock:
            self._known = {key: pair for key, pair in known.items() if key not in self._ended}

    def _operations(self, zone: str, since: float) -> Iterator[Mapping[str, Any]]:
        """Newest first, down to that time, of all kinds: Google takes no filter together with an order. In a zone that
        is not there nothing was launched.
        """
        listed = self._calls.items(
            "compute.zoneOperations.list", f"list operations of {zone}", project=self._settings.project, zone=zone,
            orderBy="creationTimestamp desc", fields=labels.list_fields(_OPERATION_FIELDS),
        )  # fmt: skip
        with suppress(NotFound):
            yield from takewhile(lambda one: seconds(one.get("insertTime", "")) >= since, listed)

    def _read(self, operation: Mapping[str, Any], zone: str, going: Mapping[str, Instance]) -> Instance | None:
        """What an operation says of a machine of ours that is gone or going; None: nothing."""
        instance_id = f"{zone}/{operation.get('targetId')}"
        if operation.get("operationType") == _PREEMPTED:
            one = going.get(instance_id)
            return one and replace(one, error="Google took the Spot VM back (preempted)")
        link = str(operation.get("targetLink", ""))
        claim = labels.claim_of_name(labels.last_part(link)) if "/instances/" in link else ""
        if operation.get("operationType") != _INSERTED or not operation.get("error") or not claim:
            return None
        if operation.get("clientOperationId") != labels.request_id(self._cluster, claim):
            return None
        error = operation_error(operation)
        return Instance(
            id=instance_id, provider=self._name, state=InstanceState.ERROR, claim_id=claim, zone=zone,
            launched=seconds(operation.get("insertTime", "")), error=str(error),
            cause="" if error.cause == "provider" else error.cause,
        )  # fmt: skip

    def _instance(self, said: Mapping[str, Any]) -> Instance:
        state, tags = _STATES.get(said.get("status", ""), InstanceState.UNKNOWN), labels.tags_of(said)
        zone, cards = labels.last_part(said["zone"]), said.get("networkInterfaces") or [{}]
        stopped = f"Google says {said.get('status')}: somebody other than burstd stopped it"
        return Instance(
            id=f"{zone}/{said['id']}",
            provider=self._name,
            state=state,
            claim_id=tags.get(TAG_CLAIM, ""),
            tags=tags,
            name=labels.name_of(said),
            zone=zone,
            instance_type=_machine_type(said),
            spot=(said.get("scheduling") or {}).get("provisioningModel") == "SPOT",
            address=cards[0].get("networkIP", ""),
            launched=seconds(said.get("creationTimestamp", "")),
            error=stopped if state is InstanceState.ERROR else "",
        )


def _machine_type(said: Mapping[str, Any]) -> str:
    """As the settings have it. GPUs are attached to N1 machines only; the others' are in their type."""
    name = labels.last_part(said.get("machineType", ""))
    for one in said.get("guestAccelerators") or () if name.startswith("n1-") else ():
        name += f"+{labels.last_part(one['acceleratorType'])}:{one['acceleratorCount']}"
    return name
