"""Disks that bear the cluster's label and that no instance uses. Nothing else outlives a machine: network interfaces
and external addresses are parts of it.

Nothing is removed that does not bear exactly the cluster's label when it is asked for by its id, and no volume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from burstd.domain.cloud.instance import TAG_CLAIM, Leftover
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER
from burstd.domain.errors import NotFound, ProviderError
from providers.batch_calls import BatchCall
from providers.google import labels
from providers.google.calls import GoogleCalls
from providers.google.labels import GoogleResource
from providers.google.listing import parse_id
from providers.google.settings import GoogleSettings
from providers.leftovers import remove_leftovers

_DISK = "disk"
_FIELDS = "id,labels,users,zone"


class GoogleLeftovers:
    """Those of one cluster. ``zones``: all of the region."""

    def __init__(
        self, name: str, cluster: str, settings: GoogleSettings, calls: GoogleCalls, zones: Callable[[], list[str]]
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._zones = zones

    def list_leftovers(self) -> Iterator[Leftover]:
        """What nobody uses, page by page."""
        for zone in self._zones():
            pages = self._calls.items(
                "compute.disks.list", f"list disks of {zone}", project=self._settings.project, zone=zone,
                filter=labels.cluster_filter(self._cluster), maxResults=self._settings.page,
                fields=labels.list_fields(_FIELDS),
            )  # fmt: skip
            for disk in pages:
                if not disk.get("users") and self._is_ours(disk):
                    claim = labels.tags_of(disk).get(TAG_CLAIM, "")
                    yield Leftover(_DISK, f"{zone}/{disk['id']}", self._name, claim)

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks at all of them first. Raises BadRequest, and removes nothing, where one is not ours; else the first
        error when all were tried. What is in use by now is an error.
        """
        mark = f"label of cluster {self._cluster}"
        remove_leftovers(leftovers, [_DISK], "Google", mark, self._find, self._strange, self._delete)

    def _find(self, kind: str, ids: Sequence[str]) -> Iterator[GoogleResource]:
        for name in ids:
            place = parse_id(name)
            if place is None:
                continue
            try:
                yield self._calls.query(
                    "compute.disks.get", f"read {kind} {name}", project=self._settings.project, zone=place[0],
                    disk=place[1], fields=_FIELDS,
                )  # fmt: skip
            except NotFound:
                continue

    def _strange(self, _: str, disk: GoogleResource) -> str:
        return "" if self._is_ours(disk) else str(disk["id"])

    def _is_ours(self, disk: GoogleResource) -> bool:
        is_volume = not {TAG_VOLUME, TAG_VOLUME_CLUSTER}.isdisjoint(disk.get("labels") or {})
        return labels.belongs_to_cluster(disk, self._cluster) and not is_volume

    def _delete(self, _: str, disks: Sequence[GoogleResource]) -> list[ProviderError | None]:
        return BatchCall(self._settings.side_by_side).call_each(self._delete_one, disks)

    def _delete_one(self, disk: GoogleResource) -> None:
        try:
            self._calls.mutate(
                "compute.disks.delete", f"delete disk {disk['id']}", project=self._settings.project,
                zone=labels.last_part(disk["zone"]), disk=str(disk["id"]),
            )  # fmt: skip
        except NotFound:
            return
