"""The mover pod of a PVC store: what it is, how it is made when it is needed, and why it does not come up."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.errors import (
    CloudUnavailable,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.stager import StagerError, StoreBusy, StoreRefused
from providers.openshift.errors import KubernetesAlreadyExists, KubernetesConflict
from staging.pvc.mover import OLD_PYTHON
from staging.pvc.settings import PvcSettings

if TYPE_CHECKING:
    from providers.openshift.client.calls import OpenShiftCalls

CONTAINER = "mover"
_STORE, _SPEC = "burstd-store", "burstd/mover"
_POLL_S = (0.1, 1.0)
"""Seconds between looks at a pod that starts: the first, and at most."""
FIRST_SESSION_WAIT_S = 60.0
"""Seconds for which a new mover waits for its first session, and an old one for another, at most: sessions last."""
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_NO_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"})
Pod = Mapping[str, Any]


class MoverPod:
    """One store's. Calls raise StagerError; ``up`` is for one thread at a time."""

    def __init__(self, name: str, cluster: str, settings: PvcSettings, calls: Callable[[], OpenShiftCalls]) -> None:
        self.name = mover_pod_name(cluster, name)
        self.where = f"the store {name} (claim {settings.claim} in {settings.namespace})"
        self._settings = settings
        self._calls = calls
        self._pods = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._manifest = mover_pod_manifest(self.name, cluster, name, settings)

    def ensure_running(self, stop: threading.Event) -> None:
        """Returns when it runs; makes it where there is none."""
        until = time.monotonic() + self._settings.start_s
        wait, most = _POLL_S
        made = False
        why = "it is made"
        while not stop.is_set():
            found = self._read_pod()
            if found is None:
                self._check_pvc()
                self._create_pod()
                made = True
                why = "it is made"
            elif not self._is_ours(found):
                raise StoreRefused(
                    f"{self.where}: there is a pod {self.name} that is not this store's; see whose it is, and remove it"
                )
            elif found["metadata"].get("deletionTimestamp"):
                why = "the one before it is being removed"
            elif _has_ended(found):
                if made:
                    raise self._end_error(found["status"])
                self._delete_pod(found)
            elif (
                found["metadata"].get("annotations", {}).get(_SPEC) != self._manifest["metadata"]["annotations"][_SPEC]
            ):
                self._check_pvc()
                self._delete_pod(found)
            elif _state(found).get("phase") == "Running":
                return
            else:
                why = self._check_start(_state(found))
            if time.monotonic() >= until:
                raise StoreBusy(
                    f"{self.where}: the mover pod {self.name} is not up after {self._settings.start_s:.0f} s: {why}"
                )
            stop.wait(wait)
            wait = min(wait * 2, most)
        raise StoreBusy(f"{self.where}: the store was closed")

    def delete_if_ended(self) -> bool:
        """Removes it where it has ended. Returns whether it is left."""
        found = self._read_pod()
        if found is None or not self._is_ours(found):
            return False
        if not _has_ended(found):
            return True
        self._delete_pod(found)
        return False

    def stager_error(self, error: ProviderError) -> StagerError:
        """The same in a stager's words."""
        text = f"{self.where}: {error}"
        if isinstance(error, (CloudUnavailable, RateLimited, OutcomeUnknown, QuotaExceeded)):
            return StoreBusy(text, error.retry_after_s)
        return StoreRefused(text)

    def _read_pod(self) -> Pod | None:
        try:
            return self._request("GET", f"{self._pods}/{self.name}", what=f"look at the pod {self.name}")
        except NotFound:
            return None

    def _create_pod(self) -> None:
        try:
            self._request("POST", self._pods, self._manifest, what=f"make the pod {self.name}", changes=True)
        except (KubernetesAlreadyExists, OutcomeUnknown):
            return  # it shows

    def _delete_pod(self, found: Pod) -> None:
        """This one, not one that another has made meanwhile."""
        metadata = found["metadata"]
        body = {"gracePeriodSeconds": 1, "preconditions": {"uid": metadata["uid"]}}
        try:
            self._request("DELETE", f"{self._pods}/{self.name}", body, what=f"remove the pod {self.name}", changes=True)
        except (NotFound, KubernetesConflict, OutcomeUnknown):
            return

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, what: str, changes: bool = False
    ) -> dict[str, Any]:
        try:
            return self._calls().request_json(method, path, body, what=what, changes=changes)
        except (NotFound, KubernetesAlreadyExists, KubernetesConflict, OutcomeUnknown):
            raise
        except ProviderError as error:
            raise self.stager_error(error) from None

    def _is_ours(self, found: Pod) -> bool:
        labels, expected = found["metadata"].get("labels") or {}, self._manifest["metadata"]["labels"]
        return all(labels.get(key) == expected[key] for key in (TAG_CLUSTER, _STORE))

    def _check_pvc(self) -> None:
        """Raises StoreRefused where pods cannot share it; whoever may not read it finds out by its pod."""
        at = self._settings
        path = f"/api/v1/namespaces/{at.namespace}/persistentvolumeclaims/{at.claim}"
        try:
            claim = self._calls().request_json("GET", path, what=f"look at the claim {at.claim}", changes=False)
        except NotFound:
            raise StoreRefused(
                f"{self.where}: there is no such claim: make a PersistentVolumeClaim {at.claim} (ReadWriteMany) in "
                f"{at.namespace}, or name another"
            ) from None
        except ProviderError as error:
            if isinstance(error, NotAllowed):
                return
            raise self.stager_error(error) from None
        fault = pvc_fault(claim, one_node=at.one_node)
        if fault:
            raise StoreRefused(f"{self.where}: {fault}")

    def _check_start(self, state: Pod) -> str:
        """What it waits for. Raises StoreRefused where waiting is in vain."""
        for condition in state.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                said = str(condition.get("message", ""))
                if re.search(r"persistentvolumeclaim .*not found", said):
                    raise StoreRefused(f"{self.where}: {said}: make the claim, or name another")
                return f"no node takes it: {said}"
        for container in state.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            reason, said = str(waiting.get("reason", "")), str(waiting.get("message", ""))
            if reason in _NO_IMAGE:
                raise StoreRefused(
                    f"{self.where}: the image {self._settings.image} of the mover pod cannot be had "
                    f"({reason}: {said}): see "
                    "that image and pull_secrets are right"
                )
            if reason in _NO_CONTAINER:
                raise StoreRefused(f"{self.where}: the mover pod cannot start ({reason}: {said})")
            if reason:
                return f"{reason} {said}".strip()
        return "it is about to start"

    def _end_error(self, state: Pod) -> StagerError:
        """Why one that was just made is no more."""
        if last := _terminated_state(state):
            code, reason, said = last.get("exitCode"), last.get("reason", ""), str(last.get("message", "")).strip()
            if code == OLD_PYTHON:
                return StoreRefused(
                    f"{self.where}: {said} in the image {self._settings.image}: take an image with Python "
                    f"3.11 or newer, or "
                    "name one that is there (python)"
                )
            if code in (127, 128) or reason in _NO_CONTAINER:
                return StoreRefused(
                    f"{self.where}: the image {self._settings.image} has no {self._settings.python}: take "
                    f"an image with Python "
                    f"3.11 or newer, or name it (python). {said[-300:]}"
                )
            return StoreBusy(f"{self.where}: the mover pod ended at once ({reason}, exit status {code}: {said[-300:]})")
        said = str(state.get("message", "")) or str(state.get("reason", ""))
        return StoreBusy(f"{self.where}: the mover pod could not start: {said}")


def _state(found: Pod) -> Pod:
    return found.get("status") or {}


def _has_ended(found: Pod) -> bool:
    """Whether the mover has ended, whatever else the cluster has put into its pod."""
    return _state(found).get("phase") in ("Succeeded", "Failed") or bool(_terminated_state(_state(found)))


def _terminated_state(state: Pod) -> Pod:
    """How the mover's container ended; empty: it has not."""
    own = (each for each in state.get("containerStatuses") or () if each["name"] == CONTAINER)
    return next(((each.get("state") or {}).get("terminated") or {} for each in own), {})


def mover_pod_name(cluster: str, store: str) -> str:
    """The same for the same store of the same cluster, and for no other."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{cluster}-{store}".lower()).strip("-")[:40].strip("-")
    return f"burst-store-{words}-{hashlib.sha256(f'{cluster}/{store}'.encode()).hexdigest()[:8]}"


def pvc_fault(claim: Pod, *, one_node: bool) -> str:
    """Why pods cannot share this claim, with the remedy; empty: they can."""
    spec = claim.get("spec") or {}
    modes = set(spec.get("accessModes") or ())
    if spec.get("volumeMode") == "Block":
        return "the claim is a block device: make one with volumeMode Filesystem"
    if (claim.get("status") or {}).get("phase") == "Lost":
        return "its volume is lost: see oc describe pvc, and make the claim anew"
    if "ReadWriteMany" in modes or (one_node and "ReadWriteOnce" in modes):
        return ""
    remedy = "make a ReadWriteMany claim of a storage class that has them (NFS, CephFS), or use a store of kind s3"
    if modes == {"ReadWriteOnce"}:
        return (
            f"the claim is ReadWriteOnce, which only one node at a time can mount: {remedy}. Where all pods run on one "
            "node anyway (selector here and of the provider's groups), set one_node = true"
        )
    return f"the claim is {', '.join(sorted(modes))}, and pods must write there side by side: {remedy}"


def mover_pod_manifest(name: str, cluster: str, store: str, at: PvcSettings) -> dict[str, Any]:
    """The mover pod."""
    restricted = at.security == "restricted"
    program = files("staging.pvc").joinpath("mover.py").read_text(encoding="utf-8")
    capabilities = {"drop": ["ALL"]} if restricted else {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if restricted:
        security["runAsNonRoot"] = True
    user = at.run_as if restricted else 0
    if user is not None:
        security["runAsUser"] = user
    resources = {"cpu": at.cpu, "memory": f"{at.memory}Mi"}
    mount = {"name": "store", "mountPath": at.path, **({"subPath": at.sub_path} if at.sub_path else {})}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": security,
        "containers": [
            {
                "name": CONTAINER,
                "image": at.image,
                "command": [
                    at.python,
                    "-I",
                    "-c",
                    program,
                    str(min(at.idle_s, FIRST_SESSION_WAIT_S)),
                    str(FIRST_SESSION_WAIT_S),
                ],
                "resources": {"requests": resources, "limits": resources},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": capabilities},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [mount],
            }
        ],
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": at.claim}}],
    }
    more = {
        "serviceAccountName": at.service_account,
        "imagePullSecrets": [{"name": secret} for secret in at.pull_secrets],
        "nodeSelector": dict(at.selector),
        "tolerations": [dict(each) for each in at.tolerations],
        "priorityClassName": at.priority_class,
    }
    spec |= {key: value for key, value in more.items() if value}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": at.namespace,
            "labels": {TAG_CLUSTER: label_value(cluster), _STORE: label_value(store)},
            "annotations": {_SPEC: digest},
        },
        "spec": spec,
    }


def label_value(text: str) -> str:
    """The text as the value of a label."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("._-")
