"""The volume of a machine's own: a claim that is made before its pod, bears the pod's name and is owned by the pod.

Until it has its owner it is told as a leftover, by its labels; afterwards Kubernetes removes it with the pod.
https://kubernetes.io/docs/concepts/storage/persistent-volumes/
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.errors import BadRequest, CloudUnavailable, NotFound, OutcomeUnknown, QuotaExceeded
from burstd.domain.plugins.provider import LaunchRequest
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import KubernetesAlreadyExists, KubernetesConflict
from providers.openshift.settings import OpenShiftSettings

_KIND = "persistentvolumeclaims"
_PATCH = "application/merge-patch+json"
KubeObject = dict[str, Any]


class ScratchVolumes:
    """The volumes of one provider's machines, where the settings want them."""

    def __init__(self, settings: OpenShiftSettings, calls: OpenShiftCalls) -> None:
        self._settings = settings
        self._calls = calls

    @property
    def wanted(self) -> bool:
        """Whether machines have volumes; else they have the node's own disk."""
        return self._settings.scratch.storage_class is not None

    def ensure(self, request: LaunchRequest) -> str:
        """The uid of a machine's claim, made unless it is there. Raises BadRequest where another's has its name."""
        name = request.name
        try:
            made = self._calls.request_json(
                "POST", self._calls.path_of(_KIND), self._body(request), what=f"make volume {name}"
            )
        except KubernetesAlreadyExists:
            try:
                made = self._earlier(request)
            except NotFound as error:
                raise CloudUnavailable(f"volume {name} went while it was asked for") from error
        except QuotaExceeded as error:
            # Quotas are looked at before names.
            try:
                made = self._earlier(request)
            except NotFound:
                raise error from None
        except OutcomeUnknown as error:
            raise CloudUnavailable(f"no pod was asked for; whether it has a volume is not known: {error}") from error
        return labels.uid_of(made)

    def set_owner(self, name: str, pod_uid: str) -> None:
        """Gives the claim of that name to the pod of that name. One that is gone, or changes now, is left."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod_uid, "blockOwnerDeletion": False}
        with suppress(NotFound, KubernetesConflict):
            self._calls.request_json(
                "PATCH", self._calls.path_of(_KIND, name), {"metadata": {"ownerReferences": [owner]}},
                what=f"give volume {name} to its pod", content_type=_PATCH,
            )  # fmt: skip

    def remove(self, name: str, uid: str) -> None:
        """That of a machine that surely is none."""
        with suppress(NotFound, KubernetesConflict):
            self._calls.request_json(
                "DELETE",
                self._calls.path_of(_KIND, name),
                {"preconditions": {"uid": uid}},
                what=f"delete volume {name}",
            )

    def _earlier(self, request: LaunchRequest) -> KubeObject:
        """The one that is there. Raises NotFound."""
        name, cluster = request.name, request.tags.get(TAG_CLUSTER, "")
        found = self._calls.request_json("GET", self._calls.path_of(_KIND, name), what=f"look at volume {name}")
        if not labels.belongs_to_cluster(found, cluster) or labels.claim_of(found) != request.claim_id:
            raise BadRequest(f"a PersistentVolumeClaim {name} is there that burstd did not make for this machine")
        if found["metadata"].get("deletionTimestamp"):
            raise CloudUnavailable(f"volume {name} of an earlier try is on its way out")
        return found

    def _body(self, request: LaunchRequest) -> KubeObject:
        scratch = self._settings.scratch
        spec: KubeObject = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{scratch.size}Mi"}},
        }
        if scratch.storage_class:
            spec["storageClassName"] = scratch.storage_class
        own_labels = labels.claim_labels(request.tags.get(TAG_CLUSTER, ""), request.claim_id)
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": request.name, "labels": own_labels},
            "spec": spec,
        }
