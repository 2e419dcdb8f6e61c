"""What Google holds: projects with instances, disks, images and operations; and their lives, by a clock that is given.

Instances: https://cloud.google.com/compute/docs/instances/instance-lifecycle
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

REGION = "europe-west4"
ZONES = (f"{REGION}-a", f"{REGION}-b")
HOST = "https://www.googleapis.com/compute/v1/"
_PACIFIC = timezone(timedelta(hours=-8))
_EVERYWHERE: dict[str, dict[str, Any]] = {
    "n1-standard-4": {"guestCpus": 4, "memoryMb": 15360, "architecture": "X86_64"},
    "n2-standard-2": {"guestCpus": 2, "memoryMb": 8192, "architecture": "X86_64"},
    "n2-standard-8": {"guestCpus": 8, "memoryMb": 32768, "architecture": "X86_64"},
    "e2-small": {"guestCpus": 2, "memoryMb": 2048, "architecture": "X86_64", "isSharedCpu": True},
    "t2a-standard-4": {"guestCpus": 4, "memoryMb": 16384, "architecture": "ARM64"},
    "g2-standard-8": {
        "guestCpus": 8, "memoryMb": 32768, "architecture": "X86_64",
        "accelerators": [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}],
    },
}  # fmt: skip
MACHINE_TYPES = {
    ZONES[0]: {
        **_EVERYWHERE,
        "a2-ultragpu-1g": {
            "guestCpus": 12, "memoryMb": 174080, "architecture": "X86_64", "bundledLocalSsds": {"partitionCount": 1},
            "accelerators": [{"guestAcceleratorType": "nvidia-a100-80gb", "guestAcceleratorCount": 1}],
        },
    },
    ZONES[1]: _EVERYWHERE,
}  # fmt: skip
ACCELERATORS = {ZONES[0]: ("nvidia-tesla-t4", "nvidia-l4", "nvidia-a100-80gb"), ZONES[1]: ("nvidia-l4",)}
SUBNETWORK = "burst"


class Machines(Protocol):
    """What stands behind instances."""

    def running(self, instance: Instance) -> None:
        """It boots."""

    def ended(self, instance: Instance) -> None:
        """It is switched off, or deleted."""

    def console(self, instance: Instance) -> str:
        """Of its first serial port."""


class NoMachines:
    """Nothing does."""

    def running(self, instance: Instance) -> None:
        """Nothing."""

    def ended(self, instance: Instance) -> None:
        """Nothing."""

    def console(self, instance: Instance) -> str:
        """As cloud-init writes it."""
        return f"booted {instance.name}\n"


@dataclass(slots=True)
class Instance:
    """One. ``said`` is the request's body."""

    id: str
    name: str
    zone: str
    said: dict[str, Any]
    address: str
    made: float
    runs_at: float
    status: str = "PROVISIONING"
    gone_at: float | None = None
    console: str = ""


@dataclass(slots=True)
class Disk:
    """One."""

    id: str
    name: str
    zone: str
    labels: dict[str, str]
    description: str
    size: int
    made: float
    user: str = ""
    """Name of the instance."""
    auto_delete: bool = True
    device: str = "persistent-disk-0"
    """Where it is attached."""
    ready_at: float = 0.0


@dataclass(slots=True)
class Operation:
    """One, of a zone."""

    id: str
    kind: str
    zone: str
    target: str
    """``instances/NAME``."""
    target_id: str
    made: float
    done_at: float
    client: str = ""
    errors: list[dict[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Image:
    """One that is there."""

    id: str
    name: str
    family: str
    made: float
    size: int = 10
    state: str = ""
    """``DEPRECATED`` ...; empty: none of these."""


@dataclass(slots=True)
class Faults:
    """What goes wrong. Lists are taken from their front, one for each call."""

    late: list[str] = field(default_factory=list)
    """Codes: the next launches are taken, and fail so ``late_s`` later."""
    late_s: float = 2.0
    half: int = 0
    """So many of them leave their disk."""
    lag_s: float = 0.0
    """How long new instances are not listed."""
    leak: int = 0
    """So many disks do not go with their instance."""
    boot_s: float = 3.0
    stop_s: float = 3.0


class Project:
    """One. ``clock`` in seconds since 1970."""

    def __init__(self, name: str, clock: Callable[[], float], machines: Machines | None = None) -> None:
        self.name = name
        self.clock = clock
        self.machines: Machines = machines or NoMachines()
        self.faults = Faults()
        self.instances: dict[str, Instance] = {}
        self.disks: dict[str, Disk] = {}
        self.operations: list[Operation] = []
        self.images: dict[str, Image] = {}
        self.firewalls: list[dict[str, Any]] = [
            {"name": "home", "targetTags": ["burst"], "allowed": [{"IPProtocol": "tcp", "ports": ["22", "6000-7000"]}]},
            {"name": "web", "targetTags": ["web"], "allowed": [{"IPProtocol": "all"}]},
        ]
        self.limits_everywhere = {"GPUS_ALL_REGIONS": 8.0}
        self.limits = {"INSTANCES": 100.0, "CPUS": 72.0, "N2_CPUS": 48.0, "NVIDIA_L4_GPUS": 8.0, "SSD_TOTAL_GB": 2048.0}
        self._requests: dict[str, Operation] = {}
        self._numbers = itertools.count(7_000_000_000_000_000_001)
        self._addresses = itertools.count(10)

    def stamp(self, at: float) -> str:
        """As Google writes times."""
        return datetime.fromtimestamp(at, _PACIFIC).isoformat(timespec="milliseconds")

    def number(self) -> str:
        """One that no other thing has."""
        return str(next(self._numbers))

    def add_image(self, name: str, family: str = "") -> str:
        """Makes an image, newer than those before."""
        newest = max((one.made for one in self.images.values()), default=self.clock() - 1000)
        self.images[name] = Image(self.number(), name, family, newest + 1)
        return f"projects/{self.name}/global/images/{name}"

    def find_instance(self, zone: str, name: str) -> Instance | None:
        """By name or number."""
        return next((i for i in self.instances.values() if i.zone == zone and name in (i.name, i.id)), None)

    def find_disk(self, zone: str, name: str) -> Disk | None:
        """By name or number."""
        return next((d for d in self.disks.values() if d.zone == zone and name in (d.name, d.id)), None)

    def repeated(self, request_id: str) -> Operation | None:
        """What came of this request before."""
        return self._requests.get(request_id)

    def forget_requests(self) -> None:
        """Their ids are as good as new."""
        self._requests.clear()

    def launch(self, zone: str, body: dict[str, Any], request_id: str) -> Operation:
        """Takes it, whatever comes of it."""
        now, faults, number = self.clock(), self.faults, self.number()
        late = faults.late.pop(0) if faults.late else ""
        done_at = now + (faults.late_s if late else faults.boot_s)
        operation = self._operate("insert", zone, f"instances/{body['name']}", number, done_at, request_id)
        instance = Instance(number, body["name"], zone, body, self._address(), now, now + faults.boot_s)
        made = body["disks"][0]["initializeParams"]
        if late:
            operation.errors = [{"code": late, "message": f"cannot make instance {body['name']} as things are: {late}"}]
            if faults.half:
                faults.half -= 1
                self._disk(instance, made, user="")
            return operation
        self.instances[number] = instance
        self._disk(instance, made, user=instance.name, auto_delete=bool(body["disks"][0].get("autoDelete")))
        return operation

    def delete(self, instance: Instance) -> Operation:
        """Takes it; again, where it is on its way."""
        now = self.clock()
        if instance.status != "STOPPING":
            instance.status, instance.gone_at = "STOPPING", now + self.faults.stop_s
            if self.faults.leak:
                self.faults.leak -= 1
                for disk in self.disks_of(instance):
                    disk.auto_delete = False
        return self._operate(
            "delete", instance.zone, f"instances/{instance.name}", instance.id, instance.gone_at or now
        )

    def delete_disk(self, disk: Disk) -> Operation:
        """It is gone at once."""
        del self.disks[disk.id]
        return self._operate("delete", disk.zone, f"disks/{disk.name}", disk.id, self.clock())

    def make_disk(self, zone: str, body: dict[str, Any], request_id: str) -> Operation:
        """Takes it; it is ready soon."""
        number, now = self.number(), self.clock()
        self.disks[number] = Disk(
            number, body["name"], zone, body["labels"], body["description"], int(body["sizeGb"]), now,
            auto_delete=False, ready_at=now + self.faults.boot_s,
        )  # fmt: skip
        return self._operate("insert", zone, f"disks/{body['name']}", number, now + self.faults.boot_s, request_id)

    def attach(self, instance: Instance, disk: Disk, device: str) -> Operation:
        """It is attached at once."""
        disk.user, disk.device = instance.name, device
        return self._operate("attachDisk", instance.zone, f"instances/{instance.name}", instance.id, self.clock())

    def detach(self, instance: Instance, disk: Disk) -> Operation:
        """It is free at once."""
        disk.user = ""
        return self._operate("detachDisk", instance.zone, f"instances/{instance.name}", instance.id, self.clock())

    def halt(self, instance: Instance) -> None:
        """It switches itself off."""
        instance.status = "TERMINATED"
        self.machines.ended(instance)

    def preempt(self, instance: Instance, stop_s: float) -> None:
        """Google takes it back: it is told to stop, and is gone so much later."""
        now = self.clock()
        self._operate("compute.instances.preempted", instance.zone, f"instances/{instance.name}", instance.id, now)
        instance.status, instance.gone_at = "STOPPING", now + stop_s

    def settle(self) -> None:
        """Moves all to where they are by now."""
        now = self.clock()
        for instance in list(self.instances.values()):
            if instance.gone_at is not None and instance.gone_at <= now:
                self._end(instance)
            elif instance.status == "PROVISIONING" and instance.runs_at <= now:
                instance.status = "RUNNING"
                self.machines.running(instance)
            elif (limit := instance.said["scheduling"].get("maxRunDuration")) and (
                instance.runs_at + int(limit["seconds"]) <= now and instance.gone_at is None
            ):
                instance.gone_at = now

    def listed(self) -> Iterator[Instance]:
        """Those that lists show by now."""
        now = self.clock()
        return (one for one in self.instances.values() if one.made + self.faults.lag_s <= now)

    def _end(self, instance: Instance) -> None:
        self.machines.ended(instance)
        del self.instances[instance.id]
        for disk in self.disks_of(instance):
            disk.user = ""
            if disk.auto_delete:
                del self.disks[disk.id]

    def disks_of(self, instance: Instance) -> list[Disk]:
        """Those that are attached to it."""
        return [one for one in self.disks.values() if one.zone == instance.zone and one.user == instance.name]

    def _disk(self, instance: Instance, made: dict[str, Any], *, user: str, auto_delete: bool = True) -> None:
        number = self.number()
        self.disks[number] = Disk(
            number, made.get("diskName", instance.name), instance.zone, made.get("labels", {}),
            made.get("description", ""), int(made.get("diskSizeGb", 10)), self.clock(), user, auto_delete,
        )  # fmt: skip

    def _operate(
        self, kind: str, zone: str, target: str, target_id: str, done_at: float, client: str = ""
    ) -> Operation:
        made = Operation(self.number(), kind, zone, target, target_id, self.clock(), done_at, client)
        self.operations.append(made)
        if client:
            self._requests[client] = made
        return made

    def _address(self) -> str:
        number = next(self._addresses)
        return f"10.77.{16 + number // 250}.{number % 250}"
