"""What a pod's own words say of the machine that it is. Pure: pod in, instance out.

Phases, conditions and reasons: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/. Reasons of kubelets
and of the node lifecycle are not written down there; they are constants of Kubernetes' source (pkg/kubelet).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from burstd.domain.cloud.instance import Instance, InstanceState
from providers.http_errors import short_message
from providers.openshift import labels
from providers.openshift.settings import OpenShiftSettings

_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"})
_NEVER_AN_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NEVER_A_CONTAINER = frozenset({"CreateContainerConfigError"})
_CONTAINERS = frozenset({"CreateContainerError", "RunContainerError"})
"""A runtime that has much to do says so too, and makes the container at the next try."""
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|unknown manifest|unauthorized|denied|authentication required|invalid reference"
    r"|does not exist",
    re.IGNORECASE,
)
_BACK_OFF = re.compile(r"^Back-off pulling image")
_NO_SUCH_PROGRAM = re.compile(r"executable file not found|no such file or directory", re.IGNORECASE)
_NOT_ADMITTED = "The node had condition"
_UNSTARTED = frozenset({"StartError", "ContainerCannotRun"})
_TAKEN = frozenset({"Shutdown", "Terminated", "Preempting", "NodeLost", "DeadlineExceeded", "ContainerStatusUnknown"})
"""Of pods that a node had: it goes down, needs the room, was not heard from, or has lost their containers."""
_NETWORKS = ("k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status")
OUR_GRACE_S = 10
"""What burstd gives a pod that it ends: its job is gone by then."""
_CONFIRM_S = 60.0
"""So long after its time a pod that is still there is said to wait for its node."""
Pod = Mapping[str, Any]


class ImagePullFailure(NamedTuple):
    """How an image, or its container, has failed to come so far.

    The words are those of the first failure that said more than to wait.
    """

    message: str
    for_s: float


class PodVerdict(NamedTuple):
    """State, and what goes with it in Instance."""

    state: InstanceState
    error: str = ""
    cause: str = ""


def instance_of_pod(
    pod: Pod,
    provider: str,
    settings: OpenShiftSettings,
    now: float,
    pull: ImagePullFailure | None = None,
    *,
    ran: bool = False,
) -> Instance:
    """The machine. ``now`` in seconds since 1970 by the cluster's clock; ``ran``: it was seen to have started."""
    found = pod_verdict(pod, settings, now, pull, ran=ran)
    name = labels.name_of(pod)
    return Instance(
        id=name,
        provider=provider,
        state=found.state,
        claim_id=labels.claim_of(pod),
        tags=labels.tags_of(pod),
        name=name,
        zone=labels.group_of(pod),
        instance_type=labels.size_of(pod),
        address=pod_address(pod, settings.network),
        launched=parse_time(pod["metadata"].get("creationTimestamp")) or 0.0,
        error=found.error,
        cause=found.cause,
    )


def pod_verdict(
    pod: Pod, settings: OpenShiftSettings, now: float, pull: ImagePullFailure | None = None, *, ran: bool = False
) -> PodVerdict:
    """The state of a pod, and the text that explains it."""
    status, phase = _status(pod), _status(pod).get("phase")
    if pod["metadata"].get("deletionTimestamp"):
        # One that somebody else takes works on for its time: jobs end, and output is taken off it.
        state = InstanceState.RUNNING if _has_time(pod, settings, now) else InstanceState.STOPPING
        return PodVerdict(state, _going(pod, now))
    if _is_over(pod):
        return _ended(pod, ran=ran)
    if phase in ("Pending", None):
        return _waiting(pod, settings, pull) or _unplaced(pod, settings, now) or PodVerdict(InstanceState.PENDING)
    if phase == "Running":
        if trouble := _waiting(pod, settings, pull):
            return trouble
        ready = has_started(pod) and pod_address(pod, settings.network)
        return PodVerdict(InstanceState.RUNNING if ready else InstanceState.PENDING)
    return PodVerdict(InstanceState.UNKNOWN, short_message(str(status.get("message") or "")))


def is_dead(pod: Pod) -> bool:
    """Its container has ended for good, and nobody deletes it."""
    return _is_over(pod) and not pod["metadata"].get("deletionTimestamp")


def has_started(pod: Pod) -> bool:
    """Its container runs, and its start-up probe has been answered."""
    state = _container(pod)
    return "running" in (state.get("state") or {}) and state.get("started") is not False


def image_pull_message(pod: Pod) -> str | None:
    """What is said of an image, or of its container, that does not come; None: nothing is wrong with it so far."""
    said = _wait(pod)
    return str(said.get("message") or said["reason"]) if said.get("reason") in _PULLS | _CONTAINERS else None


def says_why(words: str) -> bool:
    """Whether they say why, and not only that the next try is later."""
    return not _BACK_OFF.match(words) or bool(_NO_SUCH_IMAGE.search(words))


def pod_address(pod: Pod, network: str) -> str:
    """Of the pod network, or of the Multus network of that name (``NAME`` or ``NAMESPACE/NAME``); empty: none yet."""
    if not network:
        return str(_status(pod).get("podIP") or "")
    notes = pod["metadata"].get("annotations") or {}
    names = {network, f"{pod['metadata'].get('namespace', '')}/{network}"}
    try:
        networks = json.loads(next((notes[key] for key in _NETWORKS if key in notes), "[]"))
        return next((str(ip) for one in networks if one.get("name") in names for ip in one.get("ips") or ()), "")
    except (ValueError, AttributeError, TypeError):
        return ""


def parse_time(text: Any) -> float | None:
    """A moment of Kubernetes' (RFC 3339) in seconds since 1970; None: there is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


def pod_condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    """Of that type; empty: it has none."""
    return next((one for one in _status(pod).get("conditions") or () if one.get("type") == kind), {})


def _is_over(pod: Pod) -> bool:
    """Ours is not started again, however long a container goes on that a cluster has put beside it."""
    return _status(pod).get("phase") in ("Failed", "Succeeded") or "terminated" in (_container(pod).get("state") or {})


def _has_time(pod: Pod, settings: OpenShiftSettings, now: float) -> bool:
    about = pod["metadata"]
    until, grace = parse_time(about["deletionTimestamp"]), about.get("deletionGracePeriodSeconds") or 0
    if until is None or now >= until or grace <= OUR_GRACE_S or _status(pod).get("phase") != "Running":
        return False
    # Of a node that does not answer nobody knows how its pods are: then they are said not to be ready.
    ready = pod_condition(pod, "Ready").get("status") == "True"
    return ready and has_started(pod) and bool(pod_address(pod, settings.network))


def _going(pod: Pod, now: float) -> str:
    """Why it goes, where somebody else takes it; what keeps it, where it should be gone."""
    until = parse_time(pod["metadata"]["deletionTimestamp"])
    keepers = pod["metadata"].get("finalizers") or ()
    if keepers and until is not None and now >= until:
        return f"it is kept by the finalizer {', '.join(map(str, keepers))}, which whoever set it has to take away"
    node = (pod.get("spec") or {}).get("nodeName")
    if node and until is not None and now >= until + _CONFIRM_S:
        return f"node {node} does not confirm its end"
    taken = pod_condition(pod, "DisruptionTarget")
    return short_message(str(taken.get("message") or taken.get("reason") or ""))


def _ended(pod: Pod, *, ran: bool) -> PodVerdict:
    status = _status(pod)
    over = (_container(pod).get("state") or {}).get("terminated") or {}
    reason, said = str(status.get("reason") or over.get("reason") or ""), status.get("message") or over.get("message")
    words = short_message(": ".join(str(word) for word in (reason, said) if word))
    if over.get("reason") in _UNSTARTED:
        cause = "image" if _NO_SUCH_PROGRAM.search(str(over.get("message"))) else ""
        return PodVerdict(InstanceState.ERROR, f"its container cannot start: {words}", cause)
    # A kubelet that takes a pod, or that was restarted and does not admit it again, may say nothing of its container.
    # Kubelets before 1.22 evict without a word on it, and those that they do not admit too.
    evicted = reason == "Evicted" and _NOT_ADMITTED not in str(said) and not _wait(pod)
    had = ran or bool(over.get("startedAt")) or evicted or reason in _TAKEN
    if not had and status.get("phase") == "Failed":
        return PodVerdict(InstanceState.ERROR, f"its node did not take it: {words}", "capacity" if reason else "")
    code = over.get("exitCode")
    ended = f"its container ended with exit code {code}" if code is not None else "it ended"
    return PodVerdict(InstanceState.TERMINATED, f"{ended}: {words}" if words else ended)


def _waiting(pod: Pod, settings: OpenShiftSettings, pull: ImagePullFailure | None) -> PodVerdict | None:
    """What a container says that will never come, or not in time."""
    said = _wait(pod)
    reason, words = said.get("reason"), short_message(str(said.get("message") or said.get("reason") or ""))
    if reason in _NEVER_AN_IMAGE:
        return PodVerdict(InstanceState.ERROR, f"its image cannot be used: {reason}: {words}", "image")
    if reason in _NEVER_A_CONTAINER:
        return PodVerdict(InstanceState.ERROR, f"its container cannot be made: {reason}: {words}", "request")
    late = pull is not None and pull.for_s >= settings.image_pull_s
    if reason in _CONTAINERS and late:
        cause = "image" if _NO_SUCH_PROGRAM.search(words) else ""
        return PodVerdict(InstanceState.ERROR, f"its container cannot be made: {reason}: {words}", cause)
    if reason not in _PULLS:
        return None
    known = short_message(pull.message) if pull is not None else words
    if late or _NO_SUCH_IMAGE.search(known):
        return PodVerdict(InstanceState.ERROR, f"its image cannot be pulled: {known}", "image")
    return None


def _unplaced(pod: Pod, settings: OpenShiftSettings, now: float) -> PodVerdict | None:
    """No node takes it, and has not for long. One that others make room for is to have it."""
    said = pod_condition(pod, "PodScheduled")
    if said.get("status") != "False" or said.get("reason") != "Unschedulable" or _status(pod).get("nominatedNodeName"):
        return None
    group = settings.groups.get(labels.group_of(pod))
    patience = settings.autoscale_s if group is not None and group.autoscaled else settings.unschedulable_s
    since = parse_time(said.get("lastTransitionTime")) or parse_time(pod["metadata"].get("creationTimestamp"))
    if since is None or now - since < patience:
        return None
    words = short_message(str(said.get("message") or "no node takes it"))
    if "persistentvolumeclaim" not in words.lower():
        return PodVerdict(InstanceState.ERROR, f"no node takes it: {words}", "capacity")
    claims = ", ".join(claims_of_pod(pod)) or "?"
    return PodVerdict(
        InstanceState.ERROR,
        f"it waits for its volume (claim {claims}): {words}; look at it with: oc describe pvc, and raise "
        "unschedulable_s where volumes take longer to be made",
        "request",
    )


def claims_of_pod(pod: Pod) -> list[str]:
    """Names of the PersistentVolumeClaims that it has."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if one.get("persistentVolumeClaim")]


def _wait(pod: Pod) -> Mapping[str, Any]:
    return (_container(pod).get("state") or {}).get("waiting") or {}


def _container(pod: Pod) -> Mapping[str, Any]:
    """What is said of our container; a cluster may have put others beside it."""
    node_container = next((one.get("name") for one in (pod.get("spec") or {}).get("containers") or ()), None)
    known = _status(pod).get("containerStatuses") or ()
    return next((one for one in known if one.get("name") == node_container), {})


def _status(pod: Pod) -> Mapping[str, Any]:
    return pod.get("status") or {}
