"""Persistent disks that outlive their instances, in one zone; Google encrypts all disks.

They bear TAG_VOLUME_CLUSTER and not the label by which leftovers are found. A disk that is attached after the launch
stays when its instance ends. https://cloud.google.com/compute/docs/disks
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, Disk, DiskRequest
from burstd.domain.errors import BadRequest, NotFound, OutcomeUnknown, ProviderError
from providers.google import labels
from providers.google.calls import GoogleCalls
from providers.google.errors import GoogleAlreadyExists, operation_error
from providers.google.labels import GoogleResource, last_part
from providers.google.listing import parse_id
from providers.google.settings import GoogleSettings

_GIB = 1 << 30
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?")
_GONE = "DELETING"
_DEVICES = ("google-", "scsi-0Google_PersistentDisk_")
"""Links of Google's own rules for udev, and of systemd's, before a disk's name."""
_FIELDS = "id,name,description,labels,status,sizeGb,users"


class GoogleVolumes:
    """Of one cluster, in one region, whose zones are ``zones``."""

    def __init__(
        self, cluster: str, settings: GoogleSettings, calls: GoogleCalls, zones: Callable[[], list[str]]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._zones = zones
        self._refused: Counter[str] = Counter()
        """By volume, how many of its creations Google took and refused later, as far as this process has heard."""

    def disks(self) -> Iterator[Disk]:
        """Ours, page by page; and in zones where some are attached, the numbers of our instances, which disks do not
        say.
        """
        for zone in self._zones():
            pages = self._calls.items(
                "compute.disks.list", f"list volumes of {zone}", project=self._settings.project, zone=zone,
                filter=labels.cluster_filter(self._cluster, TAG_VOLUME_CLUSTER), maxResults=self._settings.page,
                fields=labels.list_fields(_FIELDS),
            )  # fmt: skip
            numbers: Mapping[str, str] | None = None
            for said in pages:
                if self._is_ours(said) and said["status"] != _GONE:
                    if said.get("users") and numbers is None:
                        numbers = self._numbers(zone)
                    yield _disk(said, zone, numbers or {})

    def create_disk(self, request: DiskRequest) -> None:
        """One call. One of that name that is ours is the one that was asked for before.

        Google repeats the outcome of a request by its id: one that failed later is told once, then asked for anew.
        """
        if not _VOLUME.fullmatch(request.volume_id):
            raise BadRequest(f"volume {request.volume_id!r} cannot be in the name of a disk: a-z, 0-9 and '-'")
        name, kind = f"burstd-volume-{request.volume_id}", self._settings.disk.type
        body: dict[str, Any] = {
            "name": name,
            "sizeGb": str(request.size_bytes // _GIB),
            "type": f"projects/{self._settings.project}/zones/{request.zone}/diskTypes/{kind}",
            "labels": {**self._settings.labels, TAG_VOLUME_CLUSTER: self._cluster, TAG_VOLUME: request.volume_id},
            "description": labels.description(request.tags, request.volume_id),
        }
        if self._settings.disk.kms_key:
            body["diskEncryptionKey"] = {"kmsKeyName": self._settings.disk.kms_key}
        place = {"project": self._settings.project, "zone": request.zone}
        try:
            operation = self._calls.mutate(
                "compute.disks.insert", f"create disk {name}", body=body, **place,
                requestId=labels.request_id(self._cluster, f"{request.volume_id}/{self._refused[request.volume_id]}"),
            )  # fmt: skip
        except GoogleAlreadyExists:
            if not self._is_ours(self._existing(name, place)):
                raise
            return
        except NotFound as error:
            raise BadRequest(str(error)) from error
        if operation.get("error"):
            self._refused[request.volume_id] += 1
            raise operation_error(operation)

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        """Looks first."""
        disk, (zone, number) = self._require_ours(disk_id), _place(instance_id)
        if disk["name"] in self._attached(zone, number):
            return
        source = f"projects/{self._settings.project}/zones/{zone}/disks/{disk['name']}"
        self._calls.mutate(
            "compute.instances.attachDisk", f"attach disk {disk_id} to {instance_id}", zone=zone, instance=number,
            project=self._settings.project,
            body={"source": source, "deviceName": disk["name"], "mode": "READ_WRITE", "autoDelete": False},
        )  # fmt: skip

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:
        """Looks first. Never by force: Google detaches when an instance ends, and this one may still write."""
        del force
        disk, (zone, number) = self._require_ours(disk_id), _place(instance_id)
        try:
            device = self._attached(zone, number).get(disk["name"])
            if device is not None:
                self._calls.mutate(
                    "compute.instances.detachDisk", f"detach disk {disk_id} from {instance_id}", zone=zone,
                    instance=number, project=self._settings.project, deviceName=device,
                )  # fmt: skip
        except NotFound:
            return

    def delete_disk(self, disk_id: str) -> None:
        """Looks first."""
        try:
            disk = self._require_ours(disk_id)
            if users := disk.get("users"):
                raise BadRequest(f"disk {disk_id} is attached to {', '.join(map(last_part, users))}")
            zone, number = _place(disk_id)
            self._calls.mutate(
                "compute.disks.delete", f"delete disk {disk_id}", project=self._settings.project, zone=zone, disk=number
            )
        except NotFound:
            return

    def _existing(self, name: str, place: Mapping[str, str]) -> GoogleResource:
        try:
            return self._calls.query("compute.disks.get", f"read disk {name}", disk=name, fields="labels", **place)
        except ProviderError as error:
            raise OutcomeUnknown(f"disk {name} exists in {place['zone']}, and cannot be read: {error}") from error

    def _require_ours(self, disk_id: str) -> GoogleResource:
        """Raises NotFound, and BadRequest where it does not bear exactly our label."""
        zone, number = _place(disk_id)
        said = self._calls.query(
            "compute.disks.get", f"read disk {disk_id}", project=self._settings.project, zone=zone, disk=number,
            fields=_FIELDS,
        )  # fmt: skip
        if not self._is_ours(said):
            raise BadRequest(f"disk {disk_id} does not bear the volume label of cluster {self._cluster}")
        return said

    def _attached(self, zone: str, number: str) -> Mapping[str, str]:
        """Devices of an instance's disks, by the disks' names."""
        said = self._calls.query(
            "compute.instances.get", f"read instance {zone}/{number}", project=self._settings.project, zone=zone,
            instance=number, fields="disks(source,deviceName)",
        )  # fmt: skip
        return {last_part(one.get("source", "")): one["deviceName"] for one in said.get("disks", ())}

    def _numbers(self, zone: str) -> Mapping[str, str]:
        """Of our instances there, by name."""
        listed = self._calls.items(
            "compute.instances.list", f"list instances of {zone}", project=self._settings.project, zone=zone,
            filter=labels.cluster_filter(self._cluster, TAG_CLUSTER), maxResults=self._settings.page,
            fields=labels.list_fields("id,name"),
        )  # fmt: skip
        return {one["name"]: str(one["id"]) for one in listed}

    def _is_ours(self, disk: GoogleResource) -> bool:
        return labels.belongs_to_cluster(disk, self._cluster, TAG_VOLUME_CLUSTER)


def _place(thing_id: str) -> tuple[str, str]:
    place = parse_id(thing_id)
    if place is None:
        raise BadRequest(f"nothing of Google's has such an id: {thing_id}")
    return place


def _disk(said: GoogleResource, zone: str, numbers: Mapping[str, str]) -> Disk:
    status = str(said["status"])
    user = last_part(next(iter(said.get("users") or ()), ""))
    tags = labels.tags_of(said) | {
        key: str(value) for key, value in said["labels"].items() if key in (TAG_VOLUME, TAG_VOLUME_CLUSTER)
    }
    return Disk(
        id=f"{zone}/{said['id']}",
        volume_id=tags.get(TAG_VOLUME, ""),
        zone=zone,
        size_bytes=int(said["sizeGb"]) * _GIB,
        ready=status == "READY",
        attached_to=f"{zone}/{numbers.get(user, user)}" if user else "",
        device_paths=tuple(f"/dev/disk/by-id/{kind}{said['name']}" for kind in _DEVICES),
        error="Google could not make it" if status == "FAILED" else "",
        status=status,
        tags=tags,
    )
