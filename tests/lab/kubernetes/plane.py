"""A real Kubernetes control plane for tests: etcd, API server, controllers and scheduler, with OpenShift's kinds.

with KubernetesPlane() as cluster:
    cluster.namespace("burst")
    kubeconfig = cluster.user("burst", rules)

It has no nodes: those are ``hollow.HollowNodes`` and real ones. ``python -m tests.lab.kubernetes.plane`` keeps one up
for people.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from providers.sandbox.boxes.lab import Lab
from tests.lab.kept import ProcessSupervisor, SupervisedPlane
from tests.lab.kubernetes import control, crds, openshift, programs, scc
from tests.lab.kubernetes.api import Api, Refused
from tests.lab.kubernetes.certificates import Authority, Pair
from tests.lab.kubernetes.control import Control
from tests.node.conftest import on_network

_PROJECT = Path(__file__).parents[3]
_LIFE_S = 86400
OPENSHIFT = "openshift"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class NodeFiles:
    """What a kubelet needs: who it is to the API server, and its own certificate, which the API server verifies."""

    kubeconfig: Path
    ca: Path
    serving: Pair


class KubernetesPlane(SupervisedPlane):
    """One control plane with state of its own; the API is at ``server``, certificates verified everywhere.

    It listens on a loopback address of its own, or with ``lab`` at the hub's address of that lab's network, where
    boxes and pods reach it, and this process within ``reach``. ``node_lost_s`` is how long a node may say nothing
    before it is NotReady. ``openshift`` adds what openshift.py has: admission of pods by security context constraints,
    hosts for routes. ``watch_cache=False`` lets ``compact`` end watches with 410. ``flags`` are more words for a
    program, by its name: {"kube-apiserver": ["--max-requests-inflight=1"]}. Everything ends, and is removed, at the
    end of ``with`` or when this process ends in any way.
    """

    def __init__(
        self,
        *,
        lab: Lab | None = None,
        openshift: bool = False,
        node_lost_s: float = 8.0,
        watch_cache: bool = True,
        flags: Mapping[str, Sequence[str]] | None = None,
        progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self.state = Path(tempfile.gettempdir()) / f"burstd-kubernetes-{secrets.token_hex(4)}"
        self._lab = lab
        self._openshift = openshift
        self._node_lost_s = node_lost_s
        self._watch_cache = watch_cache
        self._flags = flags or {}
        self._progress = progress
        self._up = ExitStack()
        self.control: Control
        self.processes: ProcessSupervisor
        self.api: Api
        self._authority: Authority

    def __enter__(self) -> Self:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> Self:
        """Starts it; returns when it serves, with OpenShift's kinds. Raises LabFailed, SandboxError."""
        folder = programs.ensure(self._progress)
        host = _own_loopback() if self._lab is None else self._lab.network.gateway
        self.state.mkdir(mode=0o755)
        self._up.callback(shutil.rmtree, self.state, ignore_errors=True)
        self.control = Control(self.state, folder, host, self._node_lost_s, self._watch_cache, self._flags)
        self._authority = self.control.write()
        self.api = Api(self.server, self.control.ca, self.control.token)
        self._up.callback(self.api.close)
        enter = [] if self._lab is None else self._lab.network.enter()
        self.processes = ProcessSupervisor(self.state, enter, {"PYTHONPATH": str(_PROJECT)})
        self._up.callback(self.processes.close)
        self.processes.open()
        with self.reach():
            self._start()
        return self

    def down(self) -> None:
        """Ends and removes everything. May be repeated."""
        self._up.close()

    @property
    def server(self) -> str:
        """The API's URL."""
        return self.control.server

    @property
    def kubectl(self) -> str:
        """The program."""
        return str(self.control.bin / "kubectl")

    @contextmanager
    def reach(self) -> Iterator[None]:
        """This thread, and what it starts meanwhile, reaches the API."""
        with nullcontext() if self._lab is None else on_network(self._lab.network.hub or ""):
            yield

    def admin(self) -> Path:
        """The kubeconfig of who may do everything."""
        return self.control.kubeconfig

    def user(
        self, namespace: str, rules: Sequence[Mapping[str, Any]], *, name: str = "", everywhere: bool = False
    ) -> Path:
        """The kubeconfig of a new service account that has exactly these rules of a Role in its namespace.

        ``everywhere``: of a ClusterRole, in all. ``name`` is the account's; one of that name may be there already.
        """
        name = name or f"user-{secrets.token_hex(3)}"
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        with self.reach():
            self.namespace(namespace)
            if self.api.find(f"{accounts}/{name}") is None:
                self.api.post(accounts, _named("v1", "ServiceAccount", name))
            self.grant(namespace, name, rules, everywhere=everywhere)
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": _LIFE_S},
            }
            token = self.api.post(f"{accounts}/{name}/token", body)["status"]["token"]
        file = self.state / f"{namespace}-{name}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(self.control.config({"token": token}, namespace), encoding="utf-8")
        return file

    def grant(
        self, namespace: str, account: str, rules: Sequence[Mapping[str, Any]], *, everywhere: bool = False
    ) -> None:
        """Adds rules to a service account's rights; returns when it has them. Raises Refused, LabFailed."""
        name, kind = f"{account}-{secrets.token_hex(3)}", "ClusterRole" if everywhere else "Role"
        where = f"{_RBAC}/" if everywhere else f"{_RBAC}/namespaces/{namespace}/"
        version = "rbac.authorization.k8s.io/v1"
        binding = {
            **_named(version, f"{kind}Binding", name),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
        with self.reach():
            self.api.post(f"{where}{kind.lower()}s", {**_named(version, kind, name), "rules": list(rules)})
            self.api.post(f"{where}{kind.lower()}bindings", binding)
            user = f"system:serviceaccount:{namespace}:{account}"
            self.wait(lambda: all(self._may(user, namespace, rule) for rule in rules), f"{user} has its rights")

    def _may(self, user: str, namespace: str, rule: Mapping[str, Any]) -> bool:
        """Whether the API server knows a rule already, which it learns of a moment after it is made."""
        if "resources" not in rule:
            return True
        resource, _, part = rule["resources"][0].partition("/")
        what = {"namespace": namespace, "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource}
        what |= {"subresource": part, "name": (rule.get("resourceNames") or [""])[0]}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        spec = {"user": user, "resourceAttributes": what}
        asked = self.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", {**review, "spec": spec})
        return bool(asked["status"]["allowed"])

    def node(self, name: str, address: str) -> NodeFiles:
        """What the kubelet of a node needs to join as ``name``; the API server reaches it at ``address``."""
        client = self._authority.pair(f"system:node:{name}", organization="system:nodes")
        serving = self._authority.pair(f"kubelet-{name}", hosts=(address, name))
        file = self.state / f"node-{name}.kubeconfig"
        words = {"client-certificate": str(client.cert), "client-key": str(client.key)}
        file.write_text(self.control.config(words), encoding="utf-8")
        return NodeFiles(file, self.control.ca, serving)

    def namespace(self, name: str, **metadata: Any) -> str:
        """Makes one, if it is not there; returns its name when pods can be made in it."""
        with self.reach():
            if self.api.find(f"/api/v1/namespaces/{name}") is None:
                made = _named("v1", "Namespace", name)
                try:
                    self.api.post("/api/v1/namespaces", {**made, "metadata": {**made["metadata"], **metadata}})
                except Refused as refused:
                    # Its own ones the API server makes too.
                    if refused.status != 409:
                        raise
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            self.wait(lambda: self.api.find(account) is not None, f"the account 'default' of {name}")
        return name

    def storage_class(self, name: str, annotations: Mapping[str, str] | None = None, **words: str) -> None:
        """Makes one whose volumes are folders of the node. ``words``: more of its fields. Raises Refused."""
        head = _named("storage.k8s.io/v1", "StorageClass", name)
        about = {**head["metadata"], "annotations": dict(annotations or {})}
        body = {**head, "metadata": about, "provisioner": "kubernetes.io/host-path", **words}
        with self.reach():
            self.api.post("/apis/storage.k8s.io/v1/storageclasses", body)

    def compact(self) -> int:
        """Forgets all older states of all objects; the revision that is the oldest from now on."""
        with self.reach(), httpx.Client(base_url=self.control.etcd, trust_env=False) as etcd:
            status = etcd.post("/v3/maintenance/status", json={}).raise_for_status().json()
            revision = int(status["header"]["revision"])
            etcd.post("/v3/kv/compaction", json={"revision": str(revision), "physical": True}).raise_for_status()
        return revision

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Returns when the condition holds. Raises LabFailed."""
        self.processes.wait(condition, what)

    def restart(self, name: str) -> None:
        """Ends one of the programs as kill -9 does, and starts it again; returns when the API serves."""
        self.processes.end(name)
        self.processes.start(name, self.control.words(name))
        with self.reach():
            self.wait(self._serves, "the API serves again")

    @property
    def _processes(self) -> ProcessSupervisor:
        return self.processes

    def _start(self) -> None:
        start, words = self.processes.start, self.control.words
        start(control.ETCD, words(control.ETCD))
        start(control.APISERVER, words(control.APISERVER))
        self.wait(self._serves, "the API serves")
        for name in (control.CONTROLLERS, control.SCHEDULER):
            start(name, words(name))
        for definition in crds.DEFINITIONS:
            self.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        self.storage_class("standard", {"storageclass.kubernetes.io/is-default-class": "true"})
        for path in crds.paths():
            self.wait(lambda path=path: self.api.find(path) is not None, f"{path} is served")  # type: ignore[misc]
        if self._openshift:
            self._start_openshift()
        self.namespace("default")

    def _start_openshift(self) -> None:
        host = self.control.inner
        pair = self._authority.pair("openshift", hosts=(host,))
        words = {
            "server": self.server, "ca": str(self.control.ca), "token": self.control.token, "host": host,
            "port": openshift.PORT, "cert": str(pair.cert), "key": str(pair.key),
        }  # fmt: skip
        file = self.state / "openshift.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(words), encoding="utf-8")
        self.processes.start(OPENSHIFT, [sys.executable, "-m", "tests.lab.kubernetes.openshift", str(file)])
        for one in scc.CONSTRAINTS:
            self.api.post("/apis/security.openshift.io/v1/securitycontextconstraints", one)
        self.wait(lambda: _listens(host, openshift.PORT), "what makes it an OpenShift answers")
        hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        self.api.post(hooks, openshift.configuration(host, self.control.ca.read_bytes()))
        self.wait(self._asks_openshift, "the API server asks it")

    def _asks_openshift(self) -> bool:
        trial = self.api.ask("POST", "/api/v1/namespaces", _named("v1", "Namespace", "trial"), query={"dryRun": "All"})
        return scc.UID_RANGE in trial["metadata"].get("annotations", {})

    def _serves(self) -> bool:
        try:
            self.api.get("/api/v1/namespaces/kube-system")
            self.api.get(f"{_RBAC}/clusterroles/system:node")
        except (httpx.TransportError, Refused):
            return False
        return True


def _named(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _own_loopback() -> str:
    """An address of 127.0.0.0/8 that nobody else has chosen, so that each control plane has all ports for itself."""
    while True:
        address = ".".join(["127", *(str(secrets.choice(range(16, 250))) for _ in range(3))])
        if not _listens(address, control.PORT):
            return address


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def main() -> int:
    """Keeps one up for people."""
    with KubernetesPlane(progress=print) as cluster:
        print(f"it is up; for example:\n  export KUBECONFIG={cluster.admin()}\n  {cluster.kubectl} get namespaces")
        print("End it with Ctrl-C.", flush=True)
        done = threading.Event()
        for what in (signal.SIGINT, signal.SIGTERM):
            signal.signal(what, lambda *_: done.set())
        done.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
