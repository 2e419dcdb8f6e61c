"""PersistentVolumeClaims that outlive their pods. A pod has a claim from its launch on, and no pod gets one later.

They bear TAG_VOLUME_CLUSTER and not the label by which leftovers are found, and no pod owns them. Which nodes can have
one is the scheduler's to know, so they have no zone. A class with ``WaitForFirstConsumer`` makes the volume for the
first pod. https://kubernetes.io/docs/concepts/storage/persistent-volumes/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, Disk, DiskRequest
from burstd.domain.errors import BadRequest, NotFound, QuotaExceeded
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.quantities import parse_quantity
from providers.openshift.errors import KubernetesAlreadyExists, KubernetesConflict
from providers.openshift.pods.listing import PodListing
from providers.openshift.pods.status import claims_of_pod
from providers.openshift.settings import OpenShiftSettings

_KIND = "persistentvolumeclaims"
Claim = Mapping[str, Any]


class OpenShiftVolumes:
    """Of one cluster, in one namespace."""

    def __init__(self, cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls, listing: PodListing) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._listing = listing

    def disks(self) -> Iterator[Disk]:
        """Ours, with the pods of ours that have them, those that have ended and are not removed yet too."""
        query = {"labelSelector": f"{TAG_VOLUME_CLUSTER}={self._cluster}"}
        claims = list(self._calls.pages(self._calls.path_of(_KIND), query, what="list volumes"))
        users = self._users()
        return (_disk(claim, users.get(labels.name_of(claim), [])) for claim in claims if self._is_ours(claim))

    def create_disk(self, request: DiskRequest) -> None:
        """One call. The claim's name is the volume's id, so that no second one can be made."""
        if request.zone:
            raise BadRequest(f"a PersistentVolumeClaim has no zone, and {request.zone} was asked for")
        name = f"{self._cluster}-{request.volume_id}".lower().replace("_", "-")
        rules = self._settings.volumes
        spec: dict[str, Any] = {
            "accessModes": [rules.access_mode],
            "resources": {"requests": {"storage": str(request.size_bytes)}},
        }
        if rules.storage_class:
            spec["storageClassName"] = rules.storage_class
        about = {
            "name": name,
            "labels": labels.volume_labels(self._cluster, request.volume_id),
            "annotations": {labels.TAGS: json.dumps(dict(request.tags), sort_keys=True)},
        }
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": spec}
        try:
            self._calls.request_json("POST", self._calls.path_of(_KIND), body, what=f"make volume {name}")
        except (KubernetesAlreadyExists, QuotaExceeded) as error:
            # Quotas are looked at before names.
            with suppress(NotFound):
                if labels.tags_of(self._require_ours(name)).get(TAG_VOLUME) == request.volume_id:
                    return
            raise error from None

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        """Makes no change: the pod has it, or never will."""
        self._require_ours(disk_id)
        self._listing.refresh()
        pod = self._listing.find(instance_id)
        if pod is None:
            raise NotFound(f"there is no pod {instance_id}")
        if disk_id not in claims_of_pod(pod):
            raise BadRequest(f"pod {instance_id} was launched without the claim {disk_id}")

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:
        """Makes no call: the pod has it until its end."""

    def delete_disk(self, disk_id: str) -> None:
        """Looks first."""
        try:
            claim = self._require_ours(disk_id)
        except NotFound:
            return
        if users := self._users().get(disk_id):
            raise BadRequest(f"claim {disk_id} is in use by pod {', '.join(users)}")
        options = {"propagationPolicy": "Background", "preconditions": {"uid": labels.uid_of(claim)}}
        with suppress(NotFound, KubernetesConflict):
            self._calls.request_json(
                "DELETE", self._calls.path_of(_KIND, disk_id), options, what=f"delete volume {disk_id}"
            )

    def _users(self) -> dict[str, list[str]]:
        """Names of pods by those of the claims that they have."""
        self._listing.refresh()
        found: dict[str, list[str]] = {}
        for pod in self._listing.cached_pods():
            for claim in claims_of_pod(pod):
                found.setdefault(claim, []).append(labels.name_of(pod))
        return found

    def _require_ours(self, disk_id: str) -> Claim:
        """Raises NotFound, and BadRequest where it does not bear exactly our label."""
        path = self._calls.path_of(_KIND, disk_id)
        claim = self._calls.request_json("GET", path, what=f"look at volume {disk_id}")
        if not self._is_ours(claim):
            raise BadRequest(f"claim {disk_id} does not bear the volume label of cluster {self._cluster}")
        return claim

    def _is_ours(self, claim: Claim) -> bool:
        return labels.tags_of(claim).get(TAG_VOLUME_CLUSTER) == self._cluster


def _disk(claim: Claim, users: list[str]) -> Disk:
    tags, phase = labels.tags_of(claim), (claim.get("status") or {}).get("phase", "Pending")
    is_going = bool(claim["metadata"].get("deletionTimestamp"))
    return Disk(
        id=labels.name_of(claim),
        volume_id=tags.get(TAG_VOLUME, ""),
        zone="",
        size_bytes=int(parse_quantity(claim["spec"]["resources"]["requests"]["storage"])),
        # A claim that no volume is bound to so far may wait for its first pod.
        ready=phase in ("Pending", "Bound") and not is_going,
        # With two, it is nobody's alone.
        attached_to=", ".join(sorted(users)),
        error="its PersistentVolume is lost" if phase == "Lost" else "the claim is being deleted" if is_going else "",
        status=str(phase),
        tags=tags,
    )
