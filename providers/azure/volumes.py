"""Managed disks that outlive their machines, in one zone, or in all where their type is.

They bear TAG_VOLUME_CLUSTER and not the tag by which leftovers are found. One that is attached after the launch stays
when its machine ends. https://learn.microsoft.com/azure/virtual-machines/managed-disks-overview
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, Disk, DiskRequest
from burstd.domain.errors import BadRequest, NotFound
from providers.azure.calls import AzureCalls, Resource
from providers.azure.resources import DISKS, MACHINES, machine_of, properties_of, tags_of, zone_name, zone_number
from providers.azure.settings import AzureSettings

_GIB = 1 << 30
_LUN = 15
"""Of all of ours: a job has one volume. What a machine boots from, and its temporary disk, have others."""
_PATHS = (f"/dev/disk/azure/scsi1/lun{_LUN}", f"/dev/disk/azure/data/by-lun/{_LUN}")
"""By the udev rules of waagent, and of azure-vm-utils, which know NVMe too."""
_ALL_ZONES = "_ZRS"


class AzureVolumes:
    """Of one cluster, in one resource group."""

    def __init__(self, cluster: str, settings: AzureSettings, calls: AzureCalls) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls

    def disks(self) -> Iterator[Disk]:
        """Ours, page by page."""
        for said in self._calls.pages(self._calls.in_group(DISKS), "list volumes"):
            if self._is_ours(said):
                yield _disk(said)

    def create_disk(self, request: DiskRequest) -> None:
        """One call; the volume's id is the disk's name."""
        zone = zone_number(self._settings.location, request.zone)
        disk = self._settings.disk
        about: dict[str, Any] = {
            "creationData": {"createOption": "Empty"}, "diskSizeGB": request.size_bytes // _GIB,
            # Nobody may fetch what is on it by an address.
            "networkAccessPolicy": "DenyAll", "publicNetworkAccess": "Disabled",
        }  # fmt: skip
        if disk.encryption_set:
            about["encryption"] = {
                "type": "EncryptionAtRestWithCustomerKey", "diskEncryptionSetId": disk.encryption_set
            }  # fmt: skip
        tags = {
            **self._settings.tags, **request.tags, TAG_VOLUME_CLUSTER: self._cluster, TAG_VOLUME: request.volume_id
        }  # fmt: skip
        body = {"location": self._settings.location, "tags": tags, "sku": {"name": disk.type}, "properties": about}
        if zone and not disk.type.endswith(_ALL_ZONES):
            body["zones"] = [zone]
        self._calls.mutate("PUT", self._path(f"burstd-volume-{request.volume_id}"), "make a volume", body)

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        """Looks first."""
        said = self._require_ours(disk_id)
        if _machine(said) != instance_id:
            wanted = {"diskId": said["id"], "lun": _LUN, "caching": "None", "deleteOption": "Detach"}
            self._change(instance_id, {"dataDisksToAttach": [wanted]}, f"attach volume {disk_id}")

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:
        """Looks first. Never by force: Azure detaches by itself when a machine ends, and this one may still write."""
        del force
        said = self._require_ours(disk_id)
        if _machine(said) == instance_id:
            with suppress(NotFound):  # the machine
                self._change(instance_id, {"dataDisksToDetach": [{"diskId": said["id"]}]}, f"detach volume {disk_id}")

    def delete_disk(self, disk_id: str) -> None:
        """Looks first."""
        try:
            said = self._require_ours(disk_id)
        except NotFound:
            return
        if found := _machine(said):
            raise BadRequest(f"volume {disk_id} is attached to {found}")
        with suppress(NotFound):
            self._calls.mutate("DELETE", self._path(disk_id), f"delete volume {disk_id}")

    def _change(self, instance_id: str, body: dict[str, Any], what: str) -> None:
        self._calls.mutate("POST", f"{self._calls.in_group(MACHINES, instance_id)}/attachDetachDataDisks", what, body)

    def _require_ours(self, disk_id: str) -> Resource:
        """Raises NotFound, and BadRequest where it does not bear exactly our tag."""
        said = self._calls.query(self._path(disk_id), f"look at volume {disk_id}")
        if not self._is_ours(said):
            raise BadRequest(f"disk {disk_id} does not bear the volume tag of cluster {self._cluster}")
        return said

    def _is_ours(self, said: Resource) -> bool:
        return tags_of(said).get(TAG_VOLUME_CLUSTER) == self._cluster

    def _path(self, name: str) -> str:
        return self._calls.in_group(DISKS, name)


def _machine(said: Resource) -> str:
    """That has it; empty: none."""
    return machine_of(said.get("managedBy") or "")


def _disk(said: Resource) -> Disk:
    about, tags, machine = properties_of(said), tags_of(said), _machine(said)
    state, made = str(about.get("diskState", "")), str(about.get("provisioningState", ""))
    everywhere = str((said.get("sku") or {}).get("name", "")).endswith(_ALL_ZONES)
    return Disk(
        id=said["name"],
        volume_id=tags.get(TAG_VOLUME, ""),
        zone="" if everywhere else zone_name(said["location"], next(iter(said.get("zones") or ()), "")),
        size_bytes=int(about["diskSizeGB"]) * _GIB,
        # Reserved: its machine is off.
        ready=made == "Succeeded" and state in (("Attached", "Reserved") if machine else ("Unattached",)),
        attached_to=machine,
        device_paths=_PATHS,
        error="Azure could not make it" if made == "Failed" else "",
        status=state or made,
        tags=tags,
    )
