"""Volumes of EBS that outlive their instances: encrypted, of type gp3, in one zone.

They bear TAG_VOLUME_CLUSTER and not the tag by which leftovers are found. A volume that is attached after the launch
stays when its instance ends. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Volume.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, Disk, DiskRequest
from burstd.domain.errors import BadRequest, NotFound
from providers.aws import tags
from providers.aws.calls import AwsCalls
from providers.aws.settings import AwsSettings

_GIB = 1 << 30
_PAGE = 500
_DEVICE = "/dev/sdp"
"""The last of the names that Amazon recommends for volumes; a job has one volume."""
_GONE = ("deleting", "deleted")
Volume = Mapping[str, Any]


class AwsVolumes:
    """Of one cluster, in one region."""

    def __init__(self, cluster: str, settings: AwsSettings, calls: AwsCalls) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls

    def disks(self) -> Iterator[Disk]:
        """Ours, page by page."""
        filters = [{"Name": f"tag:{TAG_VOLUME_CLUSTER}", "Values": [self._cluster]}]
        limit = min(self._settings.page, _PAGE)
        for volume in self._calls.pages("ec2", "describe_volumes", "Volumes", limit=limit, Filters=filters):
            if self._is_ours(volume) and volume["State"] not in _GONE:
                yield _disk(volume)

    def create_disk(self, request: DiskRequest) -> None:
        """One call, with the volume's id as its client token."""
        words = {**self._settings.tags, **request.tags, tags.NAME: request.volume_id}
        words |= {TAG_VOLUME_CLUSTER: self._cluster, TAG_VOLUME: request.volume_id}
        key = self._settings.root.kms_key
        self._calls.mutate(
            "ec2", "create_volume", AvailabilityZone=request.zone, Size=request.size_bytes // _GIB, VolumeType="gp3",
            Encrypted=True, ClientToken=request.volume_id, TagSpecifications=tags.specifications(words, "volume"),
            **({"KmsKeyId": key} if key else {}),
        )  # fmt: skip

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        """Looks first."""
        volume = self._require_ours(disk_id)
        if _attachment(volume).get("InstanceId") != instance_id:
            self._calls.mutate("ec2", "attach_volume", VolumeId=disk_id, InstanceId=instance_id, Device=_DEVICE)

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:
        """Looks first. Never by force: EC2 detaches by itself when an instance ends, and this one may still write."""
        del force
        attachment = _attachment(self._require_ours(disk_id))
        if attachment.get("InstanceId") == instance_id and attachment["State"] != "detaching":
            self._calls.mutate("ec2", "detach_volume", VolumeId=disk_id, InstanceId=instance_id)

    def delete_disk(self, disk_id: str) -> None:
        """Looks first."""
        try:
            volume = self._require_ours(disk_id)
        except NotFound:
            return
        if found := _attachment(volume):
            raise BadRequest(f"volume {disk_id} is attached to {found['InstanceId']}")
        try:
            self._calls.mutate("ec2", "delete_volume", VolumeId=disk_id)
        except NotFound:
            return

    def _require_ours(self, disk_id: str) -> Volume:
        """Raises NotFound, and BadRequest where it does not bear exactly our tag."""
        # A filter, unlike an id, is no error where it is gone.
        filters = [{"Name": "volume-id", "Values": [disk_id]}]
        found = self._calls.query("ec2", "describe_volumes", Filters=filters)["Volumes"]
        volume: Volume | None = next((v for v in found if v["VolumeId"] == disk_id and v["State"] not in _GONE), None)
        if volume is None:
            raise NotFound(f"there is no volume {disk_id}")
        if not self._is_ours(volume):
            raise BadRequest(f"volume {disk_id} does not bear the volume tag of cluster {self._cluster}")
        return volume

    def _is_ours(self, volume: Volume) -> bool:
        return tags.from_aws(volume.get("Tags")).get(TAG_VOLUME_CLUSTER) == self._cluster


def _attachment(volume: Volume) -> Mapping[str, Any]:
    """The only one; empty: there is none."""
    found: Mapping[str, Any] = next((a for a in volume.get("Attachments", ()) if a.get("State") != "detached"), {})
    return found


def _disk(volume: Volume) -> Disk:
    attachment, state = _attachment(volume), str(volume["State"])
    known = tags.from_aws(volume.get("Tags"))
    disk_id = str(volume["VolumeId"])
    paths = [f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{disk_id.replace('-', '')}"]
    # On instances of the Xen hypervisor.
    paths += [attachment["Device"].replace("/dev/sd", "/dev/xvd")] if attachment.get("Device") else []
    attached = attachment.get("State") == "attached"
    return Disk(
        id=disk_id,
        volume_id=known.get(TAG_VOLUME, ""),
        zone=str(volume["AvailabilityZone"]),
        size_bytes=int(volume["Size"]) * _GIB,
        ready=state == "available" or (state == "in-use" and attached),
        attached_to=str(attachment.get("InstanceId", "")),
        device_paths=tuple(paths),
        error="EBS could not make it" if state == "error" else "",
        status=str(attachment.get("State") or state),
        tags=known,
    )
