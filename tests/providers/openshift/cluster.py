"""A cluster in memory that answers what is only looked at: nodes, pods, limits, claims, images, rights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from burstd.domain.errors import NotFound, ProviderError
from providers.openshift.client.calls import KubeObject, OpenShiftCalls, Query
from providers.openshift.errors import NoSuchApi
from providers.openshift.settings import OpenShiftSettings

SPACE = "/api/v1/namespaces/burst"
STREAMS = "/apis/image.openshift.io/v1/namespaces/burst/imagestreams"
CLAIMS, QUOTAS, RANGES = f"{SPACE}/persistentvolumeclaims", f"{SPACE}/resourcequotas", f"{SPACE}/limitranges"
SHARED = "/apis/quota.openshift.io/v1/namespaces/burst/appliedclusterresourcequotas"
NODES, PODS, CLASSES = "/api/v1/nodes", "/api/v1/pods", "/apis/storage.k8s.io/v1/storageclasses"
NODE_GROUPS: Mapping[str, Any] = {
    "cpu": {"selector": {"pool": "cpu"}, "prices": {"cpu": "0.05", "memory_gib": "0.01"},
            "sizes": {"c4": {"cpus": 4, "memory": "16G"}, "c16": {"cpus": 16, "memory": "64G"}}},
    "gpu": {"selector": {"pool": "gpu"}, "gres": "h100", "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "sizes": {"g1": {"cpus": 8, "memory": "32G", "gpus": 1, "price": "2.50"}}},
}  # fmt: skip


def settings(**more: Any) -> OpenShiftSettings:
    return OpenShiftSettings(**{"namespace": "burst", "image": "node:1", "groups": NODE_GROUPS, **more})


def node(name: str, pool: str, cpu: str = "32", memory: str = "128Gi", gpus: str = "", **more: Any) -> KubeObject:
    """``more``: labels, taints, unschedulable, ready."""
    labels = {"pool": pool, "kubernetes.io/arch": "amd64", **more.pop("labels", {})}
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **({"nvidia.com/gpu": gpus} if gpus else {})}
    ready = [{"type": "Ready", "status": "True" if more.pop("ready", True) else "False"}]
    return {
        "metadata": {"name": name, "labels": labels}, "spec": more,
        "status": {"allocatable": allocatable, "conditions": ready},
    }  # fmt: skip


def pod(on: str, cpu: str, gpus: str = "0") -> KubeObject:
    asked = {"cpu": cpu, "nvidia.com/gpu": gpus}
    return {
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": asked}}]},
        "status": {"phase": "Running"},
    }


def quota(name: str, hard: Mapping[str, str], used: Mapping[str, str]) -> KubeObject:
    return {"metadata": {"name": name}, "spec": {"hard": dict(hard)}, "status": {"used": dict(used)}}


def claim(phase: str = "Bound", modes: Sequence[str] = ("ReadWriteMany",), **spec: Any) -> KubeObject:
    return {
        "metadata": {"name": "data"}, "spec": {"accessModes": list(modes), **spec},
        "status": {"phase": phase, "accessModes": list(modes), "capacity": {"storage": "1Ti"}},
    }  # fmt: skip


def stream(name: str, **tags: Any) -> KubeObject:
    """``tags``: references, newest first, or a whole entry of the status."""
    status = [
        {"tag": tag, **(said if isinstance(said, dict) else {"items": [{"dockerImageReference": one} for one in said]})}
        for tag, said in tags.items()
    ]
    return {"metadata": {"name": name}, "status": {"tags": status}}


SET_UP: Mapping[str, Any] = {
    "/version": {"gitVersion": "v1.29.0"},
    "/apis": {"groups": [{"name": "apps"}, {"name": "route.openshift.io"}, {"name": "image.openshift.io"},
                         {"name": "quota.openshift.io"}]},
    SPACE: {"metadata": {"name": "burst", "labels": {}}, "status": {"phase": "Active"}},
    NODES: [node("n1", "cpu"), node("n2", "gpu", gpus="4", taints=[{"key": "gpu", "effect": "NoSchedule"}])],
    PODS: [],
    QUOTAS: [],
    RANGES: [],
    SHARED: [],
    CLASSES: [],
}  # fmt: skip


class FakeCluster(OpenShiftCalls):
    """``answers`` by path; a list is that of a list, an error is raised. What is not there is NotFound."""

    def __init__(self, words: OpenShiftSettings, answers: Mapping[str, Any] | None = None) -> None:
        super().__init__(words)
        self.answers: dict[str, Any] = {**deepcopy(dict(SET_UP)), **(answers or {})}
        self.said: list[str] = []
        self.denied: set[tuple[str, str]] = {("*", "*"), ("get", "secrets")}
        """Verb and ``resource/subresource``; one of all namespaces bears an exclamation mark."""
        self.user = "system:serviceaccount:burst:burstd"
        self.sent: list[KubeObject] = []

    def request_json(
        self,
        method: str,
        path: str,
        body: KubeObject | Sequence[Any] | None = None,
        query: Query | None = None,
        *,
        what: str,
        changes: bool | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        assert what
        assert changes is not True, "a look changes nothing"
        assert method == "GET" or changes is False
        assert content_type
        self.said.append(f"{method} {path}")
        if method == "POST" and isinstance(body, dict):
            return self._posted(path, body, dict(query or {}))
        answer = self.answers.get(path, NotFound(f"no {path} here"))
        if isinstance(answer, ProviderError):
            raise answer
        if isinstance(answer, list):
            return {"items": deepcopy(answer), "metadata": {"resourceVersion": "1"}}
        return deepcopy(dict(answer))

    def pages(self, path: str, query: Query | None = None, *, what: str) -> Iterator[KubeObject]:
        return iter(self.request_json("GET", path, query=query, what=what)["items"])

    def _posted(self, path: str, body: KubeObject, query: KubeObject) -> KubeObject:
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            thing = "/".join(word for word in (asked["resource"], asked.get("subresource")) if word)
            thing += "" if asked.get("namespace") or thing == "*" else "!"
            return {"status": {"allowed": (asked["verb"], thing) not in self.denied}}
        if path.endswith("/selfsubjectreviews"):
            if not self.user:
                raise NoSuchApi("no such API")
            return {"status": {"userInfo": {"username": self.user}}}
        assert query == {"dryRun": "All"}, "nothing else is made by a look"
        self.sent.append(body)
        answer = self.answers.get(f"POST {path}", body)
        if isinstance(answer, ProviderError):
            raise answer
        return deepcopy(dict(answer))
