"""One account in one region, as the mock keeps it beside moto's own state."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import Instance, Reservation
from moto.sqs.models import sqs_backends

from tests.lab.aws.faults import Faults


@dataclass(eq=False)
class MockInstance:
    """An instance: moto's object, and what moto does not keep."""

    instance: Instance
    reservation: Reservation
    zone: str
    user_data: bytes
    born: float = field(default_factory=time.monotonic)
    client_token: str = ""
    spot_request: str = ""
    capacity_reservation: str = ""
    ended_by: tuple[str, str] = ("", "")
    """Text and code of the StateReason."""
    last_address: str | None = None

    @property
    def id(self) -> str:
        """Of the instance."""
        found: str = self.instance.id
        return found


@dataclass(eq=False)
class Spot:
    """A one-time spot request that was fulfilled."""

    id: str
    instance: str
    zone: str
    instance_type: str
    state: str = "active"
    code: str = "fulfilled"
    at: float = field(default_factory=time.time)


@dataclass(eq=False)
class Group:
    """A placement group."""

    id: str
    name: str
    strategy: str


@dataclass(eq=False)
class CapacityReservation:
    """A capacity reservation or capacity block."""

    id: str
    instance_type: str
    zone: str
    count: int
    block: bool
    free: int


class World:
    """One account in one region. Everything is done under ``lock``."""

    def __init__(self, number: str, region: str) -> None:
        self.number, self.region = number, region
        self.backend: Any = ec2_backends[number][region]
        self.lock = threading.RLock()
        self.faults = Faults()
        self.calls: Counter[str] = Counter()
        self.tokens: dict[tuple[str, str], tuple[str, Any]] = {}
        self.made: dict[str, MockInstance] = {}
        self.spots: dict[str, Spot] = {}
        self.groups: dict[str, Group] = {}
        self.reservations: dict[str, CapacityReservation] = {}
        self.boot_s, self.stop_s, self.gone_s = 0.0, 0.0, 3600.0
        self.queues: list[str] = []

    def tags(self, resource: str) -> dict[str, str]:
        """Of anything with an id."""
        return dict(self.backend.tags.get(resource, {}))

    def forget(self, made: MockInstance) -> None:
        """It is not listed any more."""
        with self.lock:
            self.made.pop(made.id, None)
            made.reservation.instances.remove(made.instance)
            if not made.reservation.instances:
                self.backend.reservations.pop(made.reservation.id, None)
            self.backend.tags.pop(made.id, None)

    def reserve(self, instance_type: str, zone: str, count: int, *, block: bool) -> CapacityReservation:
        """A reservation of an account's own, or a block that it bought."""
        made = CapacityReservation(f"cr-{secrets.token_hex(8)}0", instance_type, zone, count, block, count)
        with self.lock:
            self.reservations[made.id] = made
        return made

    def announce(self, instance_id: str, kind: str) -> None:
        """The event that EventBridge would put into the queues.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
        """
        zone = self.made[instance_id].zone
        detail = {"instance-id": instance_id}
        title = "EC2 Instance Rebalance Recommendation"
        if kind == "interruption":
            title, detail["instance-action"] = "EC2 Spot Instance Interruption Warning", "terminate"
        event = {
            "version": "0", "id": secrets.token_hex(16), "detail-type": title, "source": "aws.ec2",
            "account": self.number, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "region": self.region,
            "resources": [f"arn:aws:ec2:{zone}:instance/{instance_id}"], "detail": detail,
        }  # fmt: skip
        self.send(json.dumps(event))

    def send(self, body: str) -> None:
        """Puts a message of any kind into every queue of the account."""
        for name in self.queues:
            sqs_backends[self.number][self.region].send_message(name, body)
