"""Pods as an API server tells them, to be made in a line."""

from __future__ import annotations

from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from providers.openshift import labels
from providers.openshift.settings import OpenShiftSettings

CLUSTER = "hpc"
BORN = "2026-03-01T12:00:00Z"
BORN_S = 1772366400.0
WORDS: dict[str, Any] = {
    "namespace": "burst",
    "groups": {
        "gpu": {"prices": {"gpu": "1"}, "sizes": {"one": {"cpus": 4, "memory": "16G", "gpus": 1}}},
        "cloud": {"prices": {"cpu": "1"}, "sizes": {"one": {"cpus": 4, "memory": "16G"}}, "autoscaled": True},
    },
}
Pod = dict[str, Any]


def settings(**words: Any) -> OpenShiftSettings:
    return OpenShiftSettings.model_validate({**WORDS, **words})


def pod(
    name: str = "node-1", version: int = 10, *, uid: str = "", cluster: str = CLUSTER, group: str = "gpu",
    phase: str = "Pending", metadata: Pod | None = None, container: Pod | None = None, **status: Any,
) -> Pod:  # fmt: skip
    """``container``: what is said of its one container; ``status``: more of its status."""
    own_labels = {TAG_CLUSTER: cluster, TAG_CLAIM: f"claim-{name}", labels.GROUP: group, labels.SIZE: "one"}
    known: Pod = {} if container is None else {"containerStatuses": [{"name": "node", **container}]}
    return {
        "metadata": {
            "name": name, "namespace": "burst", "uid": uid or f"uid-{name}", "resourceVersion": str(version),
            "creationTimestamp": BORN, "labels": own_labels, **(metadata or {}),
        },
        "spec": {"nodeName": "worker", "containers": [{"name": "node"}]},
        "status": {"phase": phase, **known, **status},
    }  # fmt: skip


def running(name: str = "node-1", version: int = 10, **words: Any) -> Pod:
    said = {"state": {"running": {"startedAt": BORN}}, "started": True}
    return pod(name, version, **{"phase": "Running", "container": said, "podIP": "10.1.0.5", **words})


def going(name: str = "node-1", version: int = 10, at: str = BORN, grace: int = 120, **metadata: Any) -> Pod:
    said = {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace, **metadata}
    return running(name, version, metadata=said)


def waiting(reason: str, message: str = "", **words: Any) -> Pod:
    return pod(container={"state": {"waiting": {"reason": reason, "message": message}}}, **words)


def over(phase: str, code: int, why: str, said: str = "", *, started: str | None = BORN, **status: Any) -> Pod:
    end = {"exitCode": code, "reason": why, "message": said, "startedAt": started}
    return pod(phase=phase, container={"state": {"terminated": end}}, **status)


def unplaced(message: str, since: str = BORN, reason: str = "Unschedulable", **words: Any) -> Pod:
    said = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": since}  # fmt: skip
    return pod(conditions=[said], **words)
