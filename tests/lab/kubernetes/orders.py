"""What becomes of a pod on a node without containers: the statuses that a kubelet would write, in its words.

The words are those of Kubernetes 1.20 with containerd: pkg/kubelet/{kubelet_pods,images/image_manager,
lifecycle/predicate,eviction/helpers,cm/devicemanager/manager}.go. Runtimes and versions differ in an image's message.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.lab.kubernetes.api import MERGE, STRATEGIC

Pod = dict[str, Any]
Status = dict[str, Any]
NEVER = math.inf
"""Instead of a time in seconds."""


@dataclass(frozen=True)
class Step:
    """A status, made of a pod and its address, ``after_s`` seconds after the one before; ``form`` is the PATCH's."""

    make: Callable[[Pod, str], Status]
    after_s: float = 0.0
    form: str = STRATEGIC


@dataclass(frozen=True)
class Order:
    """What becomes of a pod, and how long its end takes once somebody deletes it."""

    steps: tuple[Step, ...]
    end_s: float = 0.0

    def after(self, seconds: float) -> Order:
        """The same, later."""
        first = replace(self.steps[0], after_s=seconds)
        return replace(self, steps=(first, *self.steps[1:]))

    def then(self, other: Order) -> Order:
        """The other one, after this one."""
        return replace(self, steps=(*self.steps, *other.steps))

    def with_end_time(self, seconds: float) -> Order:
        """The same, but its containers take so long to end when it is deleted."""
        return replace(self, end_s=seconds)


def running(*, started: bool = True) -> Order:
    """It runs; with ``started=False`` its startup probe has not succeeded yet."""
    return Order((Step(lambda pod, address: _runs(pod, address, started)),))


def image_error(message: str, *, first: str = "ErrImagePull") -> Order:
    """Its image cannot be pulled: first the reason, soon that it is tried again later. ``{image}`` in the message."""

    def waits(pod: Pod, address: str) -> Status:
        return _waits(pod, address, first, message)

    back_off = Step(
        lambda pod, address: _waits(pod, address, "ImagePullBackOff", 'Back-off pulling image "{image}"'), 0.5
    )
    return Order((Step(waits), back_off) if first == "ErrImagePull" else (Step(waits),))


_RESOLVE = (
    "rpc error: code = {code} desc = "
    'failed to pull and unpack image "{{image}}": failed to resolve reference "{{image}}": '
)
_MISSING = _RESOLVE.format(code="NotFound") + "{image}: not found"
_DENIED = (
    _RESOLVE.format(code="Unknown") + "pull access denied, repository does not exist or may require authorization: "
    "server message: insufficient_scope: authorization failed"
)
_UNREACHABLE = (
    _RESOLVE.format(code="Unknown") + 'failed to do request: Head "https://registry.test/v2/": '
    "dial tcp: lookup registry.test: no such host"
)


def no_image() -> Order:
    """The registry does not have it."""
    return image_error(_MISSING)


def image_denied() -> Order:
    """The registry wants to know who asks."""
    return image_error(_DENIED)


def registry_down() -> Order:
    """The registry does not answer, which may pass."""
    return image_error(_UNREACHABLE)


def bad_image_name() -> Order:
    """It is no name for an image."""
    why = 'couldn\'t parse image reference "{image}": invalid reference format'
    message = f'Failed to apply default image tag "{{image}}": {why}'
    return image_error(message, first="InvalidImageName")


def config_error(message: str = 'secret "munge" not found', reason: str = "CreateContainerConfigError") -> Order:
    """The container cannot be made of what the pod says."""
    return Order((Step(lambda pod, address: _waits(pod, address, reason, message)),))


def rejected(resource: str = "cpu") -> Order:
    """The node has less than the scheduler thought."""
    message = f"Pod Node didn't have enough resource: {resource}, requested: 4000, used: 8000, capacity: 8000"
    return failed(f"OutOf{resource}", message)


def no_device(resource: str = "nvidia.com/gpu") -> Order:
    """A device has broken since the scheduler chose the node."""
    asked = f"Allocate failed due to requested number of devices unavailable for {resource}"
    return failed("UnexpectedAdmissionError", f"Pod {asked}. Requested: 1, Available: 0, which is unexpected")


def not_admitted() -> Order:
    """The node is short of memory and takes no more."""
    return failed("Evicted", "Pod The node had condition: [MemoryPressure]. ")


def evicted() -> Order:
    """The node is short of memory and ends it. A kubelet of 1.20 leaves nothing else in the status."""
    words = "Container slurmd was using 12Gi, which exceeds its request of 10Gi. "
    return failed("Evicted", f"The node was low on resource: memory. {words}")


def failed(reason: str, message: str) -> Order:
    """The kubelet gives up on it, and leaves no status of containers."""

    def make(pod: Pod, address: str) -> Status:
        del address
        start = pod.get("status", {}).get("startTime", now())
        gone = dict.fromkeys(("containerStatuses", "podIP", "podIPs", "hostIP"))
        return {"phase": "Failed", "reason": reason, "message": message, "startTime": start, **gone}

    return Order((Step(make, form=MERGE),))


def exited(code: int, reason: str = "") -> Order:
    """Its container has ended by itself."""
    words = reason or ("Completed" if code == 0 else "Error")

    def make(pod: Pod, address: str) -> Status:
        ended = {"exitCode": code, "reason": words, "startedAt": _created(pod), "finishedAt": now()}
        phase = "Succeeded" if code == 0 else "Failed"
        return _status(pod, address, phase, {"terminated": ended}, ready=False, started=False)

    return Order((Step(make),))


def out_of_memory() -> Order:
    """The kernel has ended its container."""
    return exited(137, "OOMKilled")


def now() -> str:
    """As the API writes times."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _runs(pod: Pod, address: str, started: bool) -> Status:
    return _status(pod, address, "Running", {"running": {"startedAt": now()}}, ready=started, started=started)


def _waits(pod: Pod, address: str, reason: str, message: str) -> Status:
    text = message.replace("{image}", pod["spec"]["containers"][0]["image"])
    return _status(
        pod, address, "Pending", {"waiting": {"reason": reason, "message": text}}, ready=False, started=False
    )


def _status(pod: Pod, address: str, phase: str, state: Mapping[str, Any], *, ready: bool, started: bool) -> Status:
    word, at = str(ready), now()
    why = {} if ready else {"reason": "ContainersNotReady", "message": "containers with unready status: [slurmd]"}
    conditions = [
        {"type": "Initialized", "status": "True", "lastTransitionTime": at},
        {"type": "Ready", "status": word, "lastTransitionTime": at, **why},
        {"type": "ContainersReady", "status": word, "lastTransitionTime": at, **why},
    ]
    container = pod["spec"]["containers"][0]
    has_image = "waiting" not in state
    identity = {"containerID": f"containerd://{pod['metadata']['uid']}", "imageID": _digested(container["image"])}
    return {
        "phase": phase,
        "conditions": conditions,
        "hostIP": "10.64.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _created(pod),
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                **(identity if has_image else {}),
                "ready": ready,
                "started": started,
                "restartCount": 0,
                "lastState": {},
                "state": dict(state),
            }
        ],
    }


def _digested(image: str) -> str:
    """With a digest, as the runtime says what it has; made up for an image that is named by a tag."""
    return image if "@" in image else f"{image.rpartition(':')[0]}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def _created(pod: Pod) -> str:
    return str(pod["metadata"]["creationTimestamp"])
