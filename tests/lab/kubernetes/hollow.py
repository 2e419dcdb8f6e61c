"""Nodes without containers: what a kubelet says to the API server is said, and nothing runs.

with HollowNodes(cluster) as nodes:
    nodes.add("gpu1", cpus=64, memory_gib=512, gpus=8, labels={"gpu": "h100"})
    nodes.order("bad-*", orders.no_image())

A pod that the scheduler binds to one is Running at once, with an address, and is gone as soon as it is deleted, but
for those with an order.
"""

from __future__ import annotations

import datetime
import fnmatch
import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

from tests.lab.kubernetes import orders
from tests.lab.kubernetes.api import Refused, shut
from tests.lab.kubernetes.orders import Order, Pod, Step
from tests.lab.kubernetes.plane import KubernetesPlane

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_BOUND = "spec.nodeName!="
_PAUSE_S = 0.2
"""Before a watch that has broken is begun again."""
_BEATS = 4
"""So many within the time after which the controllers take a node for dead."""


@dataclass
class _Node:
    uid: str
    answers: bool = True


@dataclass
class _TrackedPod:
    """A pod on one of the nodes. ``order`` is None until the node has seen it."""

    pod: Pod
    address: str
    order: Order | None = None
    terminating: bool = False


class HollowNodes:
    """The nodes of one control plane, and the pods on them. Two threads, and four that write statuses."""

    def __init__(self, cluster: KubernetesPlane) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._nodes: dict[str, _Node] = {}
        self._orders: list[tuple[str, Order]] = []
        self._default = orders.running()
        self._lock = threading.Lock()
        self._tracked: dict[str, _TrackedPod] = {}
        self._count = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._clock = threading.Condition()
        self._stop = threading.Event()
        self._stream: httpx.Response | None = None
        self._workers = ThreadPoolExecutor(4, thread_name_prefix="hollow")
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._watch, self._run_due)]

    def __enter__(self) -> Self:
        with self._cluster.reach():
            for thread in self._threads:
                thread.start()
        self._later(0.0, self._beat)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """They stop answering; their objects stay."""
        self._stop.set()
        with self._clock:
            self._clock.notify_all()
        stream = self._stream
        if stream is not None:
            shut(stream)
        for thread in self._threads:
            thread.join()
        self._workers.shutdown()

    def add(
        self,
        name: str,
        *,
        cpus: int = 16,
        memory_gib: int = 64,
        gpus: int = 0,
        gpu_resource: str = "nvidia.com/gpu",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """A new node; returns when pods are scheduled to it. Raises Refused, LabFailed."""
        capacity = {"cpu": str(cpus), "memory": f"{memory_gib}Gi", "pods": "250", "ephemeral-storage": "500Gi"}
        capacity |= {gpu_resource: str(gpus)} if gpus else {}
        at = orders.now()
        conditions = [
            {"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": at, "lastTransitionTime": at}
            for kind, status, reason in _CONDITIONS
        ]
        owned = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {**owned, **(labels or {})}},
            "spec": {"taints": list(taints)},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": conditions,
                "addresses": [{"type": "InternalIP", "address": "10.64.0.1"}, {"type": "Hostname", "address": name}],
                "nodeInfo": _NODE_INFO,
            },
        }
        with self._cluster.reach():
            made = self._api.post("/api/v1/nodes", body)
            node = _Node(made["metadata"]["uid"])
            self._renew(name, node)
            with self._lock:
                self._nodes[name] = node
            self._cluster.wait(lambda: self._is_ready(name), f"the node {name} ready")

    def order(self, pattern: str, order: Order) -> None:
        """What becomes of pods with such a name (``bad-*``) from now on; a later order goes before an earlier one."""
        with self._lock:
            self._orders.insert(0, (pattern, order))

    def default(self, order: Order) -> None:
        """What becomes of pods that have no order."""
        with self._lock:
            self._default = order

    def forget_orders(self) -> None:
        """All pods run again from now on."""
        with self._lock:
            self._orders.clear()
            self._default = orders.running()

    def become(self, namespace: str, name: str, order: Order) -> None:
        """Does this to a pod now, whatever it was. Returns when its first status is written. Raises Refused."""
        with self._cluster.reach():
            pod = self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
            self._write(pod, order.steps[0])
        with self._lock:
            tracked = self._tracked.get(pod["metadata"]["uid"])
            if tracked is not None:
                tracked.order = order
        self._follow(pod, order.steps[1:])

    def silence(self, name: str) -> None:
        """The node is cut off: it neither says that it lives, nor does anything to its pods."""
        with self._lock:
            self._nodes[name].answers = False

    def revive(self, name: str) -> None:
        """It is back, and does what it has missed."""
        with self._lock:
            node = self._nodes[name]
            node.answers = True
            missed = [tracked.pod for tracked in self._tracked.values() if tracked.pod["spec"]["nodeName"] == name]
        self._later(0.0, self._beat_now)
        for pod in missed:
            self._handle(pod)

    def remove(self, name: str, *, collect: bool = False) -> None:
        """The node is gone, and its object too; its pods are deleted by Kubernetes after 40 to 60 s.

        With ``collect`` that is done at once, as Kubernetes would. Raises Refused.
        """
        with self._lock:
            del self._nodes[name]
            orphans = [tracked.pod for tracked in self._tracked.values() if tracked.pod["spec"]["nodeName"] == name]
        with self._cluster.reach():
            self._api.delete(f"/api/v1/nodes/{name}")
            for pod in orphans if collect else ():
                try:
                    self._api.delete(_path(pod), grace_s=0)
                except Refused as refused:
                    if refused.status != 404:  # gone meanwhile
                        raise

    def _is_ready(self, name: str) -> bool:
        found = self._api.get(f"/api/v1/nodes/{name}")
        return not any(taint["key"].startswith("node.kubernetes.io/") for taint in found["spec"].get("taints", ()))

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                found = self._api.get("/api/v1/pods", fieldSelector=_BOUND)
                self._take(found["items"])
                for event in self._api.events(
                    "/api/v1/pods", found["metadata"]["resourceVersion"], self._opened, fieldSelector=_BOUND
                ):
                    if event["type"] == "ERROR":
                        break
                    if event["type"] != "BOOKMARK":
                        self._event(event["type"], event["object"])
            except (httpx.HTTPError, Refused):
                # The API server is away, or the test makes it say no: it is asked again.
                self._stop.wait(_PAUSE_S)

    def _opened(self, stream: httpx.Response) -> None:
        self._stream = stream
        if self._stop.is_set():
            shut(stream)

    def _take(self, pods: Sequence[Pod]) -> None:
        there = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            gone = [tracked.pod for uid, tracked in self._tracked.items() if uid not in there]
        for pod in gone:
            self._event("DELETED", pod)
        for pod in pods:
            self._event("MODIFIED", pod)

    def _event(self, kind: str, pod: Pod) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            if kind == "DELETED":
                self._tracked.pop(uid, None)
                return
            if uid in self._tracked:
                self._tracked[uid].pod = pod
            else:
                number = next(self._count)
                self._tracked[uid] = _TrackedPod(pod, f"10.128.{number // 250 % 256}.{number % 250 + 1}")
        self._handle(pod)

    def _handle(self, pod: Pod) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        with self._lock:
            node, tracked = self._nodes.get(pod["spec"]["nodeName"]), self._tracked.get(uid)
            if node is None or not node.answers or tracked is None:
                return
            starts = tracked.order is None
            if tracked.order is None:
                chosen = (order for pattern, order in self._orders if fnmatch.fnmatchcase(name, pattern))
                tracked.order = next(chosen, self._default)
            ends = "deletionTimestamp" in pod["metadata"] and not tracked.terminating
            tracked.terminating = tracked.terminating or ends
            order = tracked.order
        if ends:
            self._later(order.end_s, lambda: self._confirm(pod))
        elif starts and "startTime" not in pod.get("status", {}):
            self._follow(pod, order.steps)

    def _follow(self, pod: Pod, steps: Sequence[Step]) -> None:
        """Writes one status after the other."""
        if steps:
            self._later(steps[0].after_s, lambda: self._next(pod, steps))

    def _next(self, pod: Pod, steps: Sequence[Step]) -> None:
        with self._lock:
            tracked = self._tracked.get(pod["metadata"]["uid"])
            node = self._nodes.get(pod["spec"]["nodeName"])
        answers = node is not None and node.answers
        if answers and tracked is not None and "deletionTimestamp" not in tracked.pod["metadata"]:
            self._write(tracked.pod, steps[0])
            self._follow(tracked.pod, steps[1:])

    def _write(self, pod: Pod, step: Step) -> None:
        with self._lock:
            tracked = self._tracked.get(pod["metadata"]["uid"])
        address = tracked.address if tracked is not None else "10.128.255.254"
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": step.make(pod, address)}
        self._api.patch(f"{_path(pod)}/status", body, step.form)

    def _confirm(self, pod: Pod) -> None:
        """All its containers have ended."""
        with self._lock:
            node = self._nodes.get(pod["spec"]["nodeName"])
            tracked = self._tracked.get(pod["metadata"]["uid"])
            if tracked is not None and (node is None or not node.answers):
                tracked.terminating = False
                return
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._api.ask("DELETE", _path(pod), body)

    def _beat(self) -> None:
        self._later(self._cluster.control.node_lost_s / _BEATS, self._beat)
        self._beat_now()

    def _beat_now(self) -> None:
        with self._lock:
            living = [(name, node) for name, node in self._nodes.items() if node.answers]
        for name, node in living:
            self._renew(name, node)

    def _renew(self, name: str, node: _Node) -> None:
        """https://kubernetes.io/docs/concepts/architecture/leases/#node-heart-beats."""
        at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": at}
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid}
        try:
            self._api.patch(f"{_LEASES}/{name}", {"spec": spec})
        except Refused as refused:
            if refused.status != 404:
                raise
            head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self._api.post(_LEASES, {**head, "metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec})

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        if seconds <= 0:
            self._workers.submit(self._do, what)
        elif not math.isinf(seconds):
            with self._clock:
                heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), what))
                self._clock.notify_all()

    def _run_due(self) -> None:
        while not self._stop.is_set():
            with self._clock:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._clock.wait(wait_s)
                    continue
                what = heapq.heappop(self._due)[2]
            self._later(0.0, what)

    def _do(self, what: Callable[[], None]) -> None:
        if self._stop.is_set():
            return
        with self._cluster.reach():
            try:
                what()
            except Refused as refused:
                # The pod went meanwhile, or another took its name; else the test makes the API server say no.
                if refused.status not in {404, 409}:
                    self._later(_PAUSE_S, what)
            except httpx.TransportError:
                self._later(_PAUSE_S, what)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


_CONDITIONS = (
    ("Ready", "True", "KubeletReady"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
)
_NODE_INFO = {
    "kubeletVersion": "v1.20.2", "kubeProxyVersion": "v1.20.2", "containerRuntimeVersion": "hollow://1",
    "osImage": "none", "kernelVersion": "0", "machineID": "0", "systemUUID": "0", "bootID": "0",
    "operatingSystem": "linux", "architecture": "amd64",
}  # fmt: skip
