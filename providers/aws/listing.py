"""Lists our instances, and reads what their consoles say.

States and reasons: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html and API_StateReason.html
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from burstd.domain.cloud.instance import TAG_BATCH, TAG_CLAIM, Instance, InstanceState
from burstd.domain.errors import BadRequest
from providers.aws import tags
from providers.aws.calls import AwsCalls
from providers.aws.settings import AwsSettings

_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "terminated": InstanceState.TERMINATED,
    # Nobody stops a machine of ours: it costs its disk and will not run by itself.
    "stopping": InstanceState.ERROR,
    "stopped": InstanceState.ERROR,
}
_BY_US = "Client.UserInitiatedShutdown"
_CONSOLE_S = 5.0
_CONSOLES = 1000
"""Most answers to keep; one is 64 KiB at most."""


class InstanceListing:
    """The instances of one cluster."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: AwsSettings,
        calls: AwsCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._lock = threading.Lock()
        self._consoles: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """When an answer was asked for, and the answer; oldest first."""

    def instances(self) -> Iterator[Instance]:
        """All that bear our tag, page by page; those that ended are listed as long as Amazon does, about an hour."""
        filters = tags.cluster_filters(self._cluster)
        pages = self._calls.pages(
            "ec2", "describe_instances", "Reservations", limit=self._settings.instances_page, Filters=filters
        )
        for reservation in pages:
            for said in reservation.get("Instances", ()):
                found = tags.from_aws(said.get("Tags"))
                if tags.belongs_to_cluster(found, self._cluster):
                    yield self._instance(said, found)

    def _instance(self, said: Mapping[str, Any], found: Mapping[str, str]) -> Instance:
        state = _STATES.get(said.get("State", {}).get("Name", ""), InstanceState.UNKNOWN)
        return Instance(
            id=said["InstanceId"],
            provider=self._name,
            state=state,
            claim_id=found.get(TAG_CLAIM, ""),
            tags=found,
            name=found.get(tags.NAME, ""),
            zone=said.get("Placement", {}).get("AvailabilityZone", ""),
            instance_type=said.get("InstanceType", ""),
            spot=said.get("InstanceLifecycle") == "spot",
            address=said.get("PrivateIpAddress") or "",
            launched=_launched(said),
            error=_end_reason(said, state),
            batch=found.get(TAG_BATCH, ""),
        )

    def console(self, instance_id: str) -> str:
        """Output so far, empty while there is none. Asked for again after five seconds: it is looked at more often.

        Raises NotFound.
        """
        now = self._clock()
        with self._lock:
            while self._consoles and next(iter(self._consoles.values()))[0] + _CONSOLE_S <= now:
                self._consoles.popitem(last=False)
            cached = self._consoles.get(instance_id)
        if cached is not None:
            return cached[1]
        text = self._read_console(instance_id)
        with self._lock:
            self._consoles[instance_id] = (now, text)
            self._consoles.move_to_end(instance_id)
            if len(self._consoles) > _CONSOLES:
                self._consoles.popitem(last=False)
        return text

    def _read_console(self, instance_id: str) -> str:
        try:
            answer = self._calls.query("ec2", "get_console_output", InstanceId=instance_id, Latest=True)
        except BadRequest:
            # Only types on Nitro show the latest output; the others show what they had a while ago.
            answer = self._calls.query("ec2", "get_console_output", InstanceId=instance_id)
        # Amazon says it in base64; botocore has decoded it.
        return str(answer.get("Output") or "")


def _launched(said: Mapping[str, Any]) -> float:
    """``LaunchTime`` is of the last start; what was attached first is as old as the machine."""
    disks = (one.get("Ebs", {}).get("AttachTime") for one in said.get("BlockDeviceMappings", ()))
    cards = (one.get("Attachment", {}).get("AttachTime") for one in said.get("NetworkInterfaces", ()))
    times: list[datetime] = [at for at in (said.get("LaunchTime"), *disks, *cards) if at is not None]
    return min(times).timestamp() if times else 0.0


def _end_reason(said: Mapping[str, Any], state: InstanceState) -> str:
    """What Amazon says of an end by its own hand, or by someone else's than ours."""
    if state in (InstanceState.PENDING, InstanceState.RUNNING):
        return ""
    reason = said.get("StateReason") or {}
    code, text = str(reason.get("Code", "")), str(reason.get("Message", ""))
    if code == _BY_US and state is not InstanceState.ERROR:
        return ""
    return text or code
