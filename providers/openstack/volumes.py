"""Volumes of Cinder that outlive their servers. Cinder has no client token: the volume's metadata tell whose it is.

They bear TAG_VOLUME_CLUSTER and not the tag by which leftovers are found. A volume that is attached to a server after
it was made stays when the server is deleted. States: https://docs.openstack.org/api-ref/block-storage/v3/
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, Disk, DiskRequest
from burstd.domain.errors import BadRequest, NotFound
from providers.cache import CachedValue
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.servers.project_servers import ProjectServers
from providers.openstack.settings import OpenStackSettings

_GIB = 1 << 30
_READY = ("available", "in-use")
_SERVICE = "block_storage"
_SERIAL_CHARS = 20
"""Of its id, what virtio-blk shows as its serial number; virtio-scsi may show more."""
_ZONES_CACHE_S = 3600.0
Volume = Mapping[str, Any]


class OpenStackVolumes:
    """Of one cluster, in one project."""

    def __init__(self, cluster: str, settings: OpenStackSettings, calls: OpenStackCalls) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._servers = ProjectServers(settings, calls)
        self._zones = CachedValue(self._read_zones, _ZONES_CACHE_S, time.monotonic)

    def disks(self) -> Iterator[Disk]:
        """Ours, page by page."""
        words = str({TAG_VOLUME_CLUSTER: self._cluster})
        listed = self._calls.pages(
            _SERVICE, "/volumes/detail", "volumes", "list volumes", limit=self._settings.page, metadata=words
        )
        return (_disk(volume) for volume in listed if self._is_ours(volume) and volume["status"] != "deleting")

    def create_disk(self, request: DiskRequest) -> None:
        """One call, of which only a list says what came where its answer is lost."""
        words = {**request.tags, TAG_VOLUME_CLUSTER: self._cluster, TAG_VOLUME: request.volume_id, _ZONE: request.zone}
        body: dict[str, Any] = {
            "name": f"{self._cluster}-{request.volume_id}",
            "size": request.size_bytes // _GIB,
            "metadata": words,
        }
        if request.zone not in self._server_zones():
            raise BadRequest(f"there is no zone {request.zone}")
        if request.zone in self._zones.get():
            body["availability_zone"] = request.zone
        self._calls.mutate(_SERVICE, "POST", "/volumes", "make a volume", body={"volume": body})

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        """Looks first."""
        volume = self._require_ours(disk_id)
        if _server(volume) == instance_id or volume["status"] in ("attaching", "reserved"):
            return
        path = f"/servers/{instance_id}/os-volume_attachments"
        body = {"volumeAttachment": {"volumeId": disk_id}}
        self._calls.mutate("compute", "POST", path, f"attach volume {disk_id}", body=body)

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:
        """Looks first. Of a server that is gone Nova has detached it already, or Cinder is told to."""
        volume = self._require_ours(disk_id)
        if _server(volume) != instance_id or volume["status"] == "detaching":
            return
        try:
            path = f"/servers/{instance_id}/os-volume_attachments/{disk_id}"
            self._calls.mutate("compute", "DELETE", path, f"detach volume {disk_id}")
        except NotFound:
            # Nova says so too of a server that is there and does not know the attachment.
            if force and self._servers.find_server(instance_id) is None:
                attachment = volume["attachments"][0].get("attachment_id")
                with suppress(NotFound):
                    self._calls.mutate(
                        _SERVICE, "DELETE", f"/attachments/{attachment}", f"detach volume {disk_id}", version="3.27"
                    )

    def delete_disk(self, disk_id: str) -> None:
        """Looks first."""
        try:
            volume = self._require_ours(disk_id)
        except NotFound:
            return
        if volume["status"] == "deleting":
            return
        if volume.get("attachments"):
            raise BadRequest(f"volume {disk_id} is attached to {_server(volume)}")
        with suppress(NotFound):
            self._calls.mutate(_SERVICE, "DELETE", f"/volumes/{disk_id}", f"delete volume {disk_id}")

    def _require_ours(self, disk_id: str) -> Volume:
        """Raises NotFound, and BadRequest where it does not bear exactly our mark."""
        volume: Volume = self._calls.query(_SERVICE, f"/volumes/{disk_id}", f"look at volume {disk_id}")["volume"]
        if not self._is_ours(volume):
            raise BadRequest(f"volume {disk_id} does not bear the volume tag of cluster {self._cluster}")
        return volume

    def _is_ours(self, volume: Volume) -> bool:
        return (volume.get("metadata") or {}).get(TAG_VOLUME_CLUSTER) == self._cluster

    def _server_zones(self) -> frozenset[str]:
        found = self._calls.query("compute", "/os-availability-zone", "list the zones of servers")
        return frozenset(one["zoneName"] for one in found["availabilityZoneInfo"])

    def _read_zones(self) -> frozenset[str]:
        try:
            answer = self._calls.query(_SERVICE, "/os-availability-zone", "list the zones of volumes")
        except NotFound:
            return frozenset()
        return frozenset(one["zoneName"] for one in answer["availabilityZoneInfo"])


_ZONE = "burstd-volume-zone"
"""Of its servers: Cinder's own zones may be others."""


def _server(volume: Volume) -> str:
    """That it is attached to; empty: to none."""
    return next((str(one["server_id"]) for one in volume.get("attachments") or () if one.get("server_id")), "")


def _disk(volume: Volume) -> Disk:
    disk_id, status, words = str(volume["id"]), str(volume["status"]), volume.get("metadata") or {}
    server = _server(volume)
    paths = (
        f"/dev/disk/by-id/virtio-{disk_id[:_SERIAL_CHARS]}",
        f"/dev/disk/by-id/scsi-*{disk_id[:_SERIAL_CHARS]}*",
    )
    return Disk(
        id=disk_id,
        volume_id=str(words.get(TAG_VOLUME, "")),
        zone=str(words.get(_ZONE) or volume.get("availability_zone", "")),
        size_bytes=int(volume["size"]) * _GIB,
        ready=status in _READY and (status == "in-use") == bool(server),
        # Between the two nothing is sure.
        attached_to=server or ("?" if status in ("attaching", "reserved", "detaching", "in-use") else ""),
        device_paths=paths,
        error=f"it is in state '{status}'" if status.startswith("error") else "",
        status=status,
        tags={str(key): str(value) for key, value in words.items()},
    )
