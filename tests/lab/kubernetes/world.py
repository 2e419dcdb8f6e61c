"""The lab's Kubernetes as a world of the providers' contract: one namespace, through a proxy that can break things."""

from __future__ import annotations

import base64
import itertools
import json
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import Breakage, FaultWorld
from providers.openshift.provider import OpenShiftProvider, plugin
from providers.openshift.settings import OpenShiftSettings
from tests.lab import proxy
from tests.lab.kubernetes import orders
from tests.lab.kubernetes.api import Api, Refused
from tests.lab.kubernetes.hollow import HollowNodes
from tests.lab.kubernetes.orders import Order
from tests.lab.kubernetes.plane import KubernetesPlane
from tests.lab.kubernetes.proxy import Proxy, says
from tests.lab.proxy import Answer, Asked, Forward, changed, lose_answer

CLAIMS = "persistentvolumeclaims"
LAUNCH, LIST, WATCH, END = "POST pods", "GET pods", "WATCH pods", "DELETE pods/NAME"
NO_IMAGE = "registry.lab/no-such-image"
PATIENT = {"relist_s": 300}
"""Settings: lists come from the watch."""
KIND = "lab/kind"
"""Label of the lab's nodes: ``cpu`` or ``gpu``."""
CPUS: dict[str, Any] = {"selector": {KIND: "cpu"}, "sizes": {"small": {"cpus": 2, "memory": "3G", "price": "0.10"}}}
GROUPS: dict[str, Any] = {"cpu": CPUS}
GPUS: dict[str, Any] = {
    "gpu": {
        "selector": {KIND: "gpu"},
        "gres": "h100",
        "prices": {"gpu": "2.00", "cpu": "0.01"},
        "sizes": {"two": {"cpus": 4, "memory": "16G", "gpus": 2}},
    },
}
KEEPER = "lab.example/backup"
"""A finalizer of somebody else's."""
_CREATED = "2026-02-01T00:00:00Z"
_ROLES = Path(__file__).parents[3] / "config" / "openshift"
_LITTLE = {"cpu": "10m", "memory": "1Mi"}
_POLL_S = 0.05
_PASSING = ("resourceVersion", "managedFields", "generation", "selfLink")
"""Of an object's metadata: what its service may touch by itself."""


@dataclass
class Ground:
    """A control plane, its hollow nodes and the proxy before it."""

    plane: KubernetesPlane
    hollow: HollowNodes
    proxy: Proxy


@contextmanager
def ground(folder: Path, **words: Any) -> Iterator[Ground]:
    """One with two nodes for each of the groups above. ``words``: for the control plane."""
    with KubernetesPlane(**words) as plane, HollowNodes(plane) as hollow:
        for number in range(2):
            hollow.add(f"cpu{number}", cpus=64, memory_gib=256, labels={KIND: "cpu"})
            hollow.add(f"gpu{number}", cpus=64, memory_gib=256, gpus=4, labels={KIND: "gpu"})
        url, trust = urlsplit(plane.server), ssl.create_default_context(cafile=str(plane.control.ca))
        with Proxy("", proxy.Api(str(url.hostname), int(url.port or 0), trust), folder) as before:
            yield Ground(plane, hollow, before)


def role(name: str) -> list[dict[str, Any]]:
    """The rules of a Role that the project asks administrators for."""
    rules: list[dict[str, Any]] = []
    for one in yaml.safe_load_all((_ROLES / name).read_text(encoding="utf-8")):
        rules += (one or {}).get("rules", [])
    return rules


class OpenShiftWorld(FaultWorld):
    """A namespace that no other test uses. burstd has the rights that the project asks for, and no others."""

    page = 4
    image = "registry.lab/node:1"

    def __init__(self, on: Ground, folder: Path) -> None:
        self.plane, self.proxy, self.hollow = on.plane, on.proxy, on.hollow
        self.api: Api = on.plane.api
        """The administrator's, past the proxy."""
        self.namespace = self.plane.namespace(f"world-{secrets.token_hex(4)}")
        self.path = f"/api/v1/namespaces/{self.namespace}"
        self.asked = self.proxy.asked
        self._folder = folder
        self._files = itertools.count()
        self._made: list[OpenShiftProvider] = []
        self._volumes: list[str] = []
        self._tokens: dict[str, str] = {}
        self._images: list[str] = []
        self.hollow.default(_as_the_registry_has_it())
        made = self.plane.user(self.namespace, role("role.yaml"), name="burstd")
        self.plane.grant(self.namespace, "burstd", role("clusterrole-nodes.yaml"), everywhere=True)
        self.user: Mapping[str, str] = _user_of(made)

    def provider(self, cluster: str, **words: Any) -> OpenShiftProvider:
        """``words``: more settings. Every list is a call; with ``relist_s`` it comes from a watch."""
        settings = {
            "kubeconfig": self.kubeconfig(), "namespace": self.namespace, "groups": GROUPS, "page": self.page,
            "relist_s": 0, "unschedulable_s": 1, "image_pull_s": 2, "node_lost_s": 1, **words,
        }  # fmt: skip
        made = plugin.make("openshift", cluster, OpenShiftSettings.model_validate(settings))
        assert isinstance(made, OpenShiftProvider)
        self._made.append(made)
        return made

    def publish_image(self) -> tuple[str, str]:
        self._images.insert(0, f"registry.lab/roll@sha256:{len(self._images):064x}")
        self._show_images()
        return "imagestream:roll:latest", self._images[0]

    def withdraw_image(self, version: str) -> None:
        self._images.remove(version)
        self._show_images()

    def _show_images(self) -> None:
        """The ImageStream's status, as OpenShift's controller writes it after a build."""
        path = f"/apis/image.openshift.io/v1/namespaces/{self.namespace}/imagestreams"
        if not self.api.get(path)["items"]:
            stream = {"apiVersion": "image.openshift.io/v1", "kind": "ImageStream", "metadata": {"name": "roll"}}
            self.api.post(path, stream)
        items = [
            {"dockerImageReference": one, "image": one.rpartition("@")[2], "generation": 1, "created": _CREATED}
            for one in self._images
        ]
        status = {"tags": [{"tag": "latest", "items": items}]}
        self.api.patch(f"{path}/roll/status", {"status": status})

    def kubeconfig(self, user: Mapping[str, str] | None = None) -> Path:
        """Of burstd's service account, by way of the proxy. ``user``: of another, as a kubeconfig says who that is."""
        file = self.new_file()
        words = self.proxy.kubeconfig(self.namespace, dict(self.user if user is None else user))
        file.write_text(json.dumps(words), encoding="utf-8")
        return file

    def new_file(self) -> Path:
        """One that only we may read."""
        file = self._folder / f"file{next(self._files)}"
        file.touch(mode=0o600)
        return file

    def until(self, condition: Callable[[], bool], patience_s: float = 30.0) -> None:
        end = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < end, "the cloud never got there"
            time.sleep(_POLL_S)

    def calls(self) -> int:
        return self.asked.total()

    def user_data(self, instance_id: str) -> str:
        return str(self.pod(instance_id)["metadata"]["annotations"]["burstd/user-data"])

    def offer(self, provider: Provider) -> Offer:
        return min(provider.offers(), key=lambda one: one.id)

    def pod(self, name: str) -> dict[str, Any]:
        """As the API has it."""
        return self.api.get(f"{self.path}/pods/{name}")

    def pods(self) -> list[str]:
        """All names."""
        return [one["metadata"]["name"] for one in self.api.get(f"{self.path}/pods")["items"]]

    def uids(self) -> set[str]:
        """Of all pods: no two pods ever have the same."""
        return {one["metadata"]["uid"] for one in self.api.get(f"{self.path}/pods")["items"]}

    def claims(self) -> list[str]:
        """Names of all PersistentVolumeClaims."""
        return [one["metadata"]["name"] for one in self.api.get(f"{self.path}/{CLAIMS}")["items"]]

    def quota(self, hard: Mapping[str, str]) -> None:
        """The namespace has this one from now on."""
        name = f"quota-{secrets.token_hex(3)}"
        self.create("resourcequotas", "ResourceQuota", name, {"hard": dict(hard)})
        self.until(lambda: "used" in self.api.get(f"{self.path}/resourcequotas/{name}").get("status", {}))

    def no_quota(self) -> None:
        """It has none any more, and the API server knows."""
        self.api.ask("DELETE", f"{self.path}/resourcequotas")
        self.until(self._is_free)

    def create(
        self,
        plural: str,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        labels: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        """Somebody makes a thing of the core API in the namespace."""
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": dict(labels or {})}}
        self.api.ask("POST", f"{self.path}/{plural}", body | ({"spec": dict(spec)} if spec else {}), query=query)

    @contextmanager
    def node(self, name: str, **words: Any) -> Iterator[str]:
        """One more of hollow ones for a while, of a kind of its own, which is its name too."""
        self.hollow.add(name, labels={KIND: name}, **words)
        try:
            yield name
        finally:
            self.hollow.remove(name, collect=True)

    @contextmanager
    def with_finalizer(self, pod: str) -> Iterator[None]:
        """Somebody's finalizer is on a pod for a while."""
        path = f"{self.path}/pods/{pod}"
        self.api.patch(path, {"metadata": {"finalizers": [KEEPER]}})
        yield
        self.api.patch(path, {"metadata": {"finalizers": None}})

    def taint(self, node: str, key: str) -> None:
        """From now on; pods that are there stay."""
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})

    def condition(self, pod: str, kind: str) -> dict[str, Any]:
        """Of a pod; empty: nothing is said."""
        found = self.pod(pod).get("status", {}).get("conditions", [])
        return next((one for one in found if one["type"] == kind), {})

    def claim_volume(self, name: str, *, bound: bool, **labels: str) -> None:
        """Somebody wants a volume that several pods can have; whether there is one."""
        storage = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        if bound:
            volume = {
                **storage, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nonexistent"},
                "claimRef": {"namespace": self.namespace, "name": name},
            }  # fmt: skip
            whose = {"name": f"{self.namespace}-{name}"}
            body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": whose, "spec": volume}
            self._volumes.append(self.api.post("/api/v1/persistentvolumes", body)["metadata"]["name"])
        wanted = {**storage, "resources": {"requests": {"storage": "1Gi"}}}
        self.create(CLAIMS, "PersistentVolumeClaim", name, wanted, labels=labels)

    def stranger(self, name: str, **labels: str) -> None:
        """A pod of somebody else's, which runs."""
        self.create("pods", "Pod", name, _small_pod(_LITTLE), labels=labels)
        self.until(lambda: self.pod(name)["status"]["phase"] == "Running")

    def refuses_pods(self, size: Mapping[str, str] | None = None) -> bool:
        """Whether the API server would not make one, of this size."""
        spec = _small_pod(size or _LITTLE)
        try:
            self.create("pods", "Pod", "probe", spec, query={"dryRun": "All"})
        except Refused:
            return True
        return False

    @contextmanager
    def broken_webhook(self) -> Iterator[None]:
        """Every new pod of the namespace must please a service that is not there, for a while."""
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        self.api.patch(f"/api/v1/namespaces/{self.namespace}", {"metadata": {"labels": {KIND: self.namespace}}})
        rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
        hook = {
            "name": "pods.lab.example", "rules": rules, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/", "caBundle": self.proxy.authority},
            "namespaceSelector": {"matchLabels": {KIND: self.namespace}}, "failurePolicy": "Fail",
        }  # fmt: skip
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
        self.api.post(path, {**head, "metadata": {"name": self.namespace}, "webhooks": [hook]})
        try:
            self.until(self.refuses_pods)
            yield
        finally:
            self.api.delete(f"{path}/{self.namespace}")

    def account(self, rules: Sequence[Mapping[str, Any]], *, everywhere: bool = False) -> Path:
        """The kubeconfig of an account that has exactly these rights."""
        made = self.plane.user(self.namespace, rules, everywhere=everywhere)
        return self.kubeconfig(_user_of(made))

    def astray(self, wrong: str) -> Path:
        """A kubeconfig that leads to a ``port`` where nobody listens, or trusts another ``authority``."""
        file = self.kubeconfig()
        words = json.loads(file.read_text(encoding="utf-8"))
        cluster = words["clusters"][0]["cluster"]
        if wrong == "port":
            cluster["server"] = "https://127.0.0.1:1"
        else:
            cluster["certificate-authority-data"] = base64.b64encode(self.plane.control.ca.read_bytes()).decode()
        file.write_text(json.dumps(words), encoding="utf-8")
        return file

    def lasting_token(self) -> str:
        """A new one of burstd's account, in a Secret, as long as that is there."""
        name = f"token-{secrets.token_hex(3)}"
        whose = {"name": name, "annotations": {"kubernetes.io/service-account.name": "burstd"}}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": whose, "type": "kubernetes.io/service-account-token"}
        self.api.post(f"{self.path}/secrets", body)
        self.until(lambda: "token" in self.api.get(f"{self.path}/secrets/{name}").get("data", {}))
        token = base64.b64decode(self.api.get(f"{self.path}/secrets/{name}")["data"]["token"]).decode()
        self._tokens[token] = name
        return token

    def withdraw(self, token: str) -> None:
        """Nobody takes it any more; the API server remembers tokens for ten seconds."""
        self.api.delete(f"{self.path}/secrets/{self._tokens.pop(token)}")
        api = Api(self.plane.server, self.plane.control.ca, token)
        try:
            self.until(lambda: _is_unknown(api, f"{self.path}/pods"))
        finally:
            api.close()

    def evict(self, name: str) -> None:
        """As ``kubectl drain`` does: by policy, with the pod's own grace."""
        words = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
        self.api.post(f"{self.path}/pods/{name}/eviction", words)

    def inject_fault(self, how: Breakage) -> None:
        order = self.proxy.order
        if how is Breakage.CAPACITY:
            order(LAUNCH, changed(lambda pod: pod["spec"].update(nodeSelector={KIND: "none"})))
        elif how is Breakage.QUOTA:
            order(LAUNCH, self._without_capacity)
        elif how is Breakage.IMAGE:
            order(LAUNCH, changed(lambda pod: pod["spec"]["containers"][0].update(image=NO_IMAGE)))
        elif how is Breakage.RATE:
            order(LAUNCH, says(429, "Too many requests, please try again later.", Retry_After="1"))
        elif how is Breakage.AUTH:
            # Once more after the kubeconfig was read again.
            order(LAUNCH, says(401, "Unauthorized"), times=2)
        elif how is Breakage.DOWN:
            order(LAUNCH, says(500, 'Internal error occurred: failed calling webhook "pods.lab": connection refused'))
        elif how is Breakage.LOST:
            order(LAUNCH, lose_answer)
        elif how is Breakage.LIST_DOWN:
            order(LIST, says(503, "etcdserver: leader changed"))
        elif how is Breakage.TERMINATE:
            order(END, says(503, "etcdserver: leader changed"))
        elif how is Breakage.LEAK:
            self._leak()

    def _without_capacity(self, asked: Asked, forward: Forward) -> Answer:
        """Meanwhile there is a quota for no pods at all."""
        self.quota({"pods": "0"})
        answer = forward(asked)
        self.no_quota()
        return answer

    def _leak(self) -> None:
        """A scratch volume that was made for a pod, and never got it for its owner."""
        (pod,) = self.api.get(f"{self.path}/pods")["items"]
        labels = {key: pod["metadata"]["labels"][key] for key in (TAG_CLUSTER, TAG_CLAIM)}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        self.create(CLAIMS, "PersistentVolumeClaim", pod["metadata"]["name"], spec, labels=labels)

    def resources(self) -> dict[str, list[dict[str, Any]]]:
        """All that the namespace has of what burstd may make, each as the API describes it, in order of names."""
        kinds = ("pods", CLAIMS, "services", "configmaps", "secrets")
        return {kind: sorted(map(_still, self.api.get(f"{self.path}/{kind}")["items"]), key=_name) for kind in kinds}

    def close(self) -> None:
        """Gives all connections back, and the namespace; nodes do again what they should."""
        unmet = self.proxy.forget()
        self.hollow.forget_orders()
        for made in self._made:
            made.close()
        self.proxy.cut_streams()
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        for volume in self._volumes:
            self.api.delete(f"/api/v1/persistentvolumes/{volume}")
        assert unmet == [], "calls that went otherwise than the test thought"

    def _is_free(self) -> bool:
        return not self.api.get(f"{self.path}/resourcequotas")["items"] and not self.refuses_pods()


def _small_pod(size: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.lab/other:1", "resources": {"limits": dict(size)}}
    return {"containers": [container], "terminationGracePeriodSeconds": 0}


def _user_of(kubeconfig: Path) -> dict[str, str]:
    user: dict[str, str] = json.loads(kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]
    return user


def _is_unknown(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except Refused as refused:
        return refused.status == 401
    return False


def _as_the_registry_has_it() -> Order:
    """Pods run, but those of an image that is not there."""
    runs, lacks = orders.running().steps[0], orders.no_image().steps[0]

    def make(pod: orders.Pod, address: str) -> orders.Status:
        missing = "no-such-image" in pod["spec"]["containers"][0]["image"]
        return (lacks if missing else runs).make(pod, address)

    return Order((orders.Step(make),))


def _name(thing: Mapping[str, Any]) -> str:
    return str(thing["metadata"]["name"])


def _still(thing: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in thing["metadata"].items() if key not in _PASSING}
    return {**thing, "metadata": metadata}
