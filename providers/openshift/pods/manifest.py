"""The pod that is one machine: what is asked for, as the dict that the API server takes. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.cloud.volume import LaunchDisk
from burstd.domain.errors import BadRequest
from burstd.domain.plugins.provider import LaunchRequest
from providers.openshift import labels
from providers.openshift.settings import NodeGroup, OpenShiftSettings, PodSize

CONTAINER = "node"
MOUNT_DIR = "/burstd"
"""Where a pod finds the scripts, and the Secret with the cluster's key."""
_AGENT = "/var/lib/burst"
"""Where burstd puts its staging agent (burstd.node.agent); an ordinary user can make no folder there."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""Of root's powers those that are needed, tried one by one with Slurm 22.05, 24.11 and 26.05.

CHOWN: munged's key, users' files. DAC_OVERRIDE: folders of the user slurm, of jobs' users. FOWNER, FSETID: modes of
users' files, the set-group-ID bit among them. KILL: cancelled jobs. SETGID, SETUID: jobs run as their users.
"""
SCRIPTS = ("init", "start", "prestop")
_USER_DATA = "user-data"
_NETWORKS = "k8s.v1.cni.cncf.io/networks"
_NODE_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_READY = "[ -e /run/burstd/ready ]"
_ALIVE = (
    "[ ! -e /run/burstd/slurmd.started ] || "
    '{ read -r pid </run/burstd/slurmd.pid && [ -d "/proc/$pid" ] && munge -n </dev/null | unmunge >/dev/null; }'
)
"""A slurmd that is being started anew, or a machine in great trouble, has some minutes."""
KubeObject = dict[str, Any]


def pod_manifest(settings: OpenShiftSettings, request: LaunchRequest, image: str = "") -> KubeObject:
    """The pod. ``image``: a reference; empty: the request names it. Raises BadRequest where no size is so named."""
    zone, word = request.offer.zone, request.offer.instance_type
    group, size = settings.groups.get(zone), settings.size(zone, word)
    if group is None or size is None:
        raise BadRequest(f"the settings have no size {word} of a group {zone} (any more)")
    own_labels = labels.claim_labels(request.tags.get(TAG_CLUSTER, ""), request.claim_id, zone, word)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": request.name,
            "labels": {**settings.labels, **own_labels},
            "annotations": _annotations(settings, request),
        },
        "spec": _spec(settings, request, group, size, image or request.image or settings.image),
    }


def script_text(name: str) -> str:
    """The text of one of SCRIPTS."""
    return files("providers.openshift").joinpath("scripts", f"{name}.sh").read_text(encoding="utf-8")


def _annotations(settings: OpenShiftSettings, request: LaunchRequest) -> dict[str, str]:
    networks = {_NETWORKS: settings.network} if settings.network else {}
    return {
        **settings.annotations,
        **networks,
        labels.TAGS: json.dumps(request.tags, sort_keys=True),
        **{f"burstd/{name}": script_text(name) for name in SCRIPTS},
        f"burstd/{_USER_DATA}": request.user_data,
    }


def _spec(
    settings: OpenShiftSettings, request: LaunchRequest, group: NodeGroup, size: PodSize, image: str
) -> KubeObject:
    spec: KubeObject = {
        # A host's name has no dots, and at most so many characters.
        "hostname": request.name.replace(".", "-")[:63].rstrip("-"),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.grace_s,
        "securityContext": _security(settings, request.disks),
        "containers": [_container(settings, group, size, image, request.disks)],
        "volumes": _volumes(settings, request),
        "tolerations": [
            *group.tolerations,
            *(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": settings.node_lost_s}
                for key in _NODE_LOST
            ),
        ],
    }
    if settings.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    wanted: Mapping[str, Any] = {
        "nodeSelector": dict(group.selector),
        "affinity": dict(group.affinity),
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "runtimeClassName": settings.runtime_class,
    }
    return spec | {key: value for key, value in wanted.items() if value}


def _container(
    settings: OpenShiftSettings, group: NodeGroup, size: PodSize, image: str, disks: Sequence[LaunchDisk]
) -> KubeObject:
    amounts = {"cpu": str(size.cpus), "memory": f"{size.memory}Mi"}
    if size.gpus:
        amounts[group.gpu_resource] = str(size.gpus)
    return {
        "name": CONTAINER,
        "image": image,
        # The scheduler puts no two with the same port on one node, whatever slurmd's port is there.
        **({"ports": [{"containerPort": 6818, "hostPort": 6818}]} if settings.host_network else {}),
        "command": ["/bin/sh", f"{MOUNT_DIR}/init.sh"],
        "env": [{"name": key, "value": value} for key, value in _environment(settings, size).items()],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": _rights(settings),
        "volumeMounts": _mounts(settings, disks),
        "startupProbe": _probe(_READY, every_s=1, tries=300),
        "livenessProbe": _probe(_ALIVE, every_s=30, tries=6),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", f"{MOUNT_DIR}/prestop.sh"]}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _environment(settings: OpenShiftSettings, size: PodSize) -> dict[str, str]:
    return {
        "BURSTD_CPUS": str(size.cpus),
        "BURSTD_MEMORY_MIB": str(size.memory),
        "BURSTD_GPUS": str(size.gpus),
        "BURSTD_GRACE_S": str(settings.grace_s),
        "BURSTD_SCRATCH": settings.scratch.path,
        # Kubernetes would fill in variables.
        "BURSTD_SLURM_CONF": "\n".join(settings.slurm_conf).replace("$(", "$$("),
    }


def _probe(command: str, *, every_s: int, tries: int) -> KubeObject:
    return {
        "exec": {"command": ["/bin/sh", "-c", command]},
        "periodSeconds": every_s,
        "failureThreshold": tries,
        "timeoutSeconds": 20,
    }


def _security(settings: OpenShiftSettings, disks: Sequence[LaunchDisk]) -> KubeObject:
    """Of the whole pod."""
    said: KubeObject = {"seccompProfile": {"type": "RuntimeDefault"}}
    if disks:
        # Not each file of a volume at each start.
        said["fsGroupChangePolicy"] = "OnRootMismatch"
    if settings.security == "restricted":
        said["runAsNonRoot"] = True
    if settings.run_as is not None:
        # That group may read the Secret and write the volumes.
        said |= {"runAsUser": settings.run_as, "fsGroup": settings.run_as}
    return said


def _rights(settings: OpenShiftSettings) -> KubeObject:
    """Of the container."""
    said: KubeObject = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # Images open folders for group 0. A user whom the image's /etc/passwd names would have his own instead. Not for the
    # whole pod: a runtime refuses a group without a user, whom OpenShift chooses for containers alone.
    said["runAsGroup"] = 0
    if settings.security == "root":
        said |= {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)}}
    return said


def _volumes(settings: OpenShiftSettings, request: LaunchRequest) -> list[KubeObject]:
    scratch = settings.scratch
    own: KubeObject = (
        {"emptyDir": {"sizeLimit": f"{scratch.size}Mi"}}
        if scratch.storage_class is None
        else {"persistentVolumeClaim": {"claimName": request.name}}
    )
    return [
        {"name": "burstd", "projected": {"sources": _sources(settings), "defaultMode": 0o644}},
        {"name": "run", "emptyDir": {"medium": "Memory"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{settings.shm}Mi"}},
        {"name": "scratch", **own},
        *([{"name": "agent", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}] if _has_agent(settings) else ()),
        *(
            {"name": f"claim-{index}", "persistentVolumeClaim": {"claimName": claim}}
            for index, claim in enumerate(_claims(settings))
        ),
        *(
            {"name": f"disk-{index}", "persistentVolumeClaim": {"claimName": disk.disk_id}}
            for index, disk in enumerate(request.disks)
        ),
    ]


def _sources(settings: OpenShiftSettings) -> list[KubeObject]:
    """Files below ROOM."""
    names = {f"{name}.sh": name for name in SCRIPTS} | {_USER_DATA: _USER_DATA}
    items = [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['burstd/{name}']"}}
        for path, name in names.items()
    ]
    sources: list[KubeObject] = [{"downwardAPI": {"items": items}}]
    if settings.key_secret:
        key = {"key": "munge.key", "path": "key/munge.key", "mode": 0o600}
        sources.append({"secret": {"name": settings.key_secret, "items": [key]}})
    return sources


def _mounts(settings: OpenShiftSettings, disks: Sequence[LaunchDisk]) -> list[KubeObject]:
    claims = _claims(settings)
    mounts: list[KubeObject] = [
        {"name": "burstd", "mountPath": MOUNT_DIR, "readOnly": True},
        {"name": "run", "mountPath": "/run"},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - of the pod
        {"name": "scratch", "mountPath": settings.scratch.path},
    ]
    if _has_agent(settings):
        mounts.append({"name": "agent", "mountPath": _AGENT})
    for mount in settings.mounts:
        said: KubeObject = {"name": f"claim-{claims.index(mount.claim)}", "mountPath": mount.path}
        said |= {"readOnly": True} if mount.read_only else {}
        said |= {"subPath": mount.sub_path} if mount.sub_path else {}
        mounts.append(said)
    mounts += [{"name": f"disk-{index}", "mountPath": disk.path} for index, disk in enumerate(disks)]
    return mounts


def _has_agent(settings: OpenShiftSettings) -> bool:
    """Whether its folder needs a volume of its own."""
    taken = {settings.scratch.path, *(mount.path for mount in settings.mounts)}
    return settings.security == "restricted" and _AGENT not in taken


def _claims(settings: OpenShiftSettings) -> list[str]:
    """Each once: one may be mounted at several places."""
    return list(dict.fromkeys(mount.claim for mount in settings.mounts))
