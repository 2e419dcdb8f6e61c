"""Persistent disks of the sandbox cloud: in one zone, on one instance at a time, and none's when that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from providers.sandbox.cloud.inventory.resources import ResourcePage, SandboxInstanceState, SandboxMachine
from providers.sandbox.cloud.inventory.stock import has_tags
from providers.sandbox.cloud.refusals import RefusalCode, SandboxRefused


@dataclass(frozen=True, slots=True)
class SandboxDisk:
    """A disk. ``attached_to``: an instance, empty for none."""

    id: str
    zone: str
    size_bytes: int
    created: float
    tags: Mapping[str, str] = field(default_factory=dict)
    attached_to: str = ""

    @property
    def device_path(self) -> str:
        """Its block device on the instance that it is attached to."""
        return f"/dev/disk/by-id/sandbox-{self.id}"


class DiskBackend(Protocol):
    """What puts disks into machines. No call waits, none raises."""

    def attach_disk(self, disk: SandboxDisk, machine: SandboxMachine) -> None:
        """Has the device appear in the machine, soon."""
        ...

    def detach_disk(self, disk: SandboxDisk) -> None:
        """Takes it out of the machine that has it, soon; may be repeated."""
        ...

    def remove_disk(self, disk: SandboxDisk) -> None:
        """Destroys it, with all that is on it."""
        ...

    def disk_is_moving(self, disk: SandboxDisk) -> bool:
        """Whether what was asked for last is not done."""
        ...


class SandboxDisks:
    """All disks of the cloud. Calls raise SandboxRefused and AnswerLost; the cloud's lock is theirs."""

    def __init__(
        self,
        begin: Callable[[str], None],
        answer: Callable[[str], None],
        machine: Callable[[str], SandboxMachine],
        backend: DiskBackend,
        zones: Iterable[str],
        now: Callable[[], float],
        changed: Callable[[], None],
        lock: Any,
    ) -> None:
        """``begin`` and ``answer`` frame each call, by its name: faults to order. ``machine`` finds an instance."""
        self._begin, self._answer, self._machine = begin, answer, machine
        self._backend, self._lock = backend, lock
        self._zones, self._now, self._changed = frozenset(zones), now, changed
        self._disks: dict[str, SandboxDisk] = {}
        self._made = 0

    def create(self, zone: str, size_bytes: int, tags: Mapping[str, str]) -> SandboxDisk:
        """Makes one. There is no token: a second call makes a second disk."""
        self._begin("create-disk")
        with self._lock:
            if zone not in self._zones:
                raise SandboxRefused(RefusalCode.BAD_REQUEST, f"there is no zone {zone}")
            self._made += 1
            disk = SandboxDisk(f"d-{self._made:07d}", zone, size_bytes, self._now(), dict(tags))
            self._put(disk)
        self._answer("create-disk")
        return disk

    def page(self, tags: Mapping[str, str], limit: int, marker: str) -> ResourcePage[tuple[SandboxDisk, bool]]:
        """A page of the disks with these tags, each with whether it is ready."""
        self._begin("disks")
        with self._lock:
            fitting = [d for _, d in sorted(self._disks.items()) if d.id > marker and has_tags(d.tags, tags)]
            part = fitting[: max(1, limit)]
            items = tuple((disk, not self._backend.disk_is_moving(disk)) for disk in part)
        self._answer("disks")
        return ResourcePage(items, part[-1].id if len(fitting) > len(part) else "")

    def attach(self, disk_id: str, instance_id: str) -> None:
        """Attaches it to an instance that runs, in its own zone."""
        self._begin("attach-disk")
        with self._lock:
            disk, machine = self._find(disk_id), self._machine(instance_id)
            if machine.state is not SandboxInstanceState.RUNNING:
                raise SandboxRefused(RefusalCode.BAD_REQUEST, f"{instance_id} does not run")
            if machine.request.zone != disk.zone:
                raise SandboxRefused(RefusalCode.BAD_REQUEST, f"{instance_id} is not in zone {disk.zone}")
            if disk.attached_to != instance_id:
                self._require_free(disk)
                disk = replace(disk, attached_to=instance_id)
                self._put(disk)
                self._backend.attach_disk(disk, machine)
        self._answer("attach-disk")

    def detach(self, disk_id: str, instance_id: str) -> None:
        """Detaches it from the instance, if it is attached to it."""
        self._begin("detach-disk")
        with self._lock:
            disk = self._find(disk_id)
            if disk.attached_to == instance_id:
                self._detach(disk)
        self._answer("detach-disk")

    def remove(self, disk_id: str) -> None:
        """Destroys it."""
        self._begin("remove-disk")
        with self._lock:
            disk = self._find(disk_id)
            self._require_free(disk)
            del self._disks[disk_id]
            self._backend.remove_disk(disk)
            self._changed()
        self._answer("remove-disk")

    def release(self, instance_id: str) -> None:
        """The instance has ended: its disks are nobody's."""
        for disk in [disk for disk in self._disks.values() if disk.attached_to == instance_id]:
            self._detach(disk)

    def _require_free(self, disk: SandboxDisk) -> None:
        if disk.attached_to or self._backend.disk_is_moving(disk):
            raise SandboxRefused(RefusalCode.IN_USE, f"{disk.id} is attached to {disk.attached_to or 'an instance'}")

    def _detach(self, disk: SandboxDisk) -> None:
        self._put(replace(disk, attached_to=""))
        self._backend.detach_disk(disk)

    def _put(self, disk: SandboxDisk) -> None:
        self._disks[disk.id] = disk
        self._changed()

    def _find(self, disk_id: str) -> SandboxDisk:
        disk = self._disks.get(disk_id)
        if disk is None:
            raise SandboxRefused(RefusalCode.NOT_FOUND, f"there is no disk {disk_id}")
        return disk

    def snapshot(self) -> list[SandboxDisk]:
        """All that there are; no call of a provider."""
        with self._lock:
            return list(self._disks.values())

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"made": self._made, "disks": [asdict(disk) for disk in self._disks.values()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``to_json``, in place."""
        self._made = state["made"]
        self._disks = {fields["id"]: SandboxDisk(**fields) for fields in state["disks"]}
