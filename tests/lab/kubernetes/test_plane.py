"""The lab's Kubernetes does what tests count on."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.lab.kubernetes import control, orders, scc
from tests.lab.kubernetes.api import Api, Refused
from tests.lab.kubernetes.hollow import HollowNodes
from tests.lab.kubernetes.orders import Order
from tests.lab.kubernetes.plane import KubernetesPlane

pytestmark = [pytest.mark.clouds, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
_PROJECT = Path(__file__).parents[3]
NS = "burst"
PODS = f"/api/v1/namespaces/{NS}/pods"
ROUTES = f"/apis/route.openshift.io/v1/namespaces/{NS}/routes"
LOOK = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "delete"]}]
ROUTE = [{"apiGroups": ["route.openshift.io"], "resources": ["routes"], "verbs": ["get", "create"]}]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesPlane]:
    with KubernetesPlane(openshift=True, node_lost_s=2.0, watch_cache=False) as up:
        up.namespace(NS)
        yield up


@pytest.fixture(scope="module")
def nodes(cluster: KubernetesPlane) -> Iterator[HollowNodes]:
    with HollowNodes(cluster) as up:
        for name in ("n1", "n2"):
            up.add(name, cpus=8, gpus=4)
        yield up


@pytest.fixture
def api(cluster: KubernetesPlane, nodes: HollowNodes) -> Iterator[Api]:
    """The administrator's; no pods are left at the end."""
    yield cluster.api
    nodes.forget_orders()
    for pod in cluster.api.get(PODS)["items"]:
        cluster.api.delete(f"{PODS}/{pod['metadata']['name']}", grace_s=0)


def api_of(kubeconfig: Path) -> Api:
    words = json.loads(kubeconfig.read_text(encoding="utf-8"))
    where = words["clusters"][0]["cluster"]
    return Api(where["server"], Path(where["certificate-authority"]), words["users"][0]["user"]["token"])


def pod(name: str, *, gpus: int = 0, user: int | None = None, **spec: Any) -> dict[str, Any]:
    room = {"cpu": "100m", "memory": "64Mi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container = {"name": "slurmd", "image": "registry.test/slurmd:1", "resources": {"requests": room, "limits": room}}
    context = {} if user is None else {"runAsUser": user}
    whole = {"restartPolicy": "Never", "containers": [container], "securityContext": context, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


def status(api: Api, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{PODS}/{name}")["status"]
    return found


def container_state(api: Api, name: str) -> dict[str, Any]:
    found = status(api, name).get("containerStatuses") or [{"state": {}}]
    return dict(found[0]["state"])


def test_pods_run_and_end(cluster: KubernetesPlane, api: Api) -> None:
    made = api.post(PODS, pod("runs", gpus=1))
    cluster.wait(lambda: status(api, "runs")["phase"] == "Running", "it runs")
    found = status(api, "runs")
    assert found["podIP"].startswith("10.128.")
    assert (found["containerStatuses"][0]["started"], found["containerStatuses"][0]["ready"]) == (True, True)
    api.delete(f"{PODS}/runs")
    cluster.wait(lambda: api.find(f"{PODS}/runs") is None, "it is gone")
    api.post(PODS, pod("runs"))
    cluster.wait(lambda: status(api, "runs")["phase"] == "Running", "its namesake runs")
    assert api.get(f"{PODS}/runs")["metadata"]["uid"] != made["metadata"]["uid"]


def test_pod_that_no_node_has_room_for_waits(cluster: KubernetesPlane, api: Api) -> None:
    api.post(PODS, pod("big", gpus=5))
    cluster.wait(lambda: bool(status(api, "big").get("conditions")), "the scheduler has looked at it")
    (condition,) = status(api, "big")["conditions"]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in condition["message"]


@pytest.mark.parametrize(
    ("order", "phase", "reason"),
    [
        (orders.no_image(), "Pending", "ImagePullBackOff"),
        (orders.bad_image_name(), "Pending", "InvalidImageName"),
        (orders.config_error(), "Pending", "CreateContainerConfigError"),
        (orders.rejected("cpu"), "Failed", "OutOfcpu"),
        (orders.no_device(), "Failed", "UnexpectedAdmissionError"),
        (orders.running().then(orders.evicted()), "Failed", "Evicted"),
        (orders.running().then(orders.out_of_memory()), "Failed", "OOMKilled"),
        (orders.exited(0), "Succeeded", "Completed"),
    ],
    ids=["no-image", "image-name", "config", "no-room", "no-device", "evicted", "out-of-memory", "exited"],
)
def test_pods_fail_as_told(
    cluster: KubernetesPlane, nodes: HollowNodes, api: Api, order: Order, phase: str, reason: str
) -> None:
    nodes.order("bad", order)
    api.post(PODS, pod("bad"))

    def reasons() -> set[str]:
        states = container_state(api, "bad").values()
        return {status(api, "bad").get("reason", ""), *(state.get("reason", "") for state in states)}

    cluster.wait(lambda: reason in reasons(), reason)
    assert status(api, "bad")["phase"] == phase


def test_pod_that_does_not_end_stays(cluster: KubernetesPlane, nodes: HollowNodes, api: Api) -> None:
    nodes.order("stays", orders.running().with_end_time(orders.NEVER))
    api.post(PODS, pod("stays"))
    api.post(PODS, pod("goes"))
    for name in ("stays", "goes"):
        cluster.wait(lambda name=name: status(api, name)["phase"] == "Running", f"{name} runs")  # type: ignore[misc]
    api.delete(f"{PODS}/stays")
    api.delete(f"{PODS}/goes")
    cluster.wait(lambda: api.find(f"{PODS}/goes") is None, "the other is gone")
    assert "deletionTimestamp" in api.get(f"{PODS}/stays")["metadata"]
    api.delete(f"{PODS}/stays", grace_s=0)
    assert api.find(f"{PODS}/stays") is None


def test_pods_of_a_silent_node_are_deleted_and_go_when_it_is_back(
    cluster: KubernetesPlane, nodes: HollowNodes, api: Api
) -> None:
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 1}
    api.post(PODS, pod("lost", nodeName="n2", tolerations=[{**unreachable, "effect": "NoExecute"}]))
    cluster.wait(lambda: status(api, "lost")["phase"] == "Running", "it runs")
    nodes.silence("n2")
    cluster.wait(lambda: "deletionTimestamp" in api.get(f"{PODS}/lost")["metadata"], "the controllers delete it")
    nodes.revive("n2")
    cluster.wait(lambda: api.find(f"{PODS}/lost") is None, "it is gone")


def test_removed_node_takes_its_pods_along(cluster: KubernetesPlane, nodes: HollowNodes, api: Api) -> None:
    nodes.add("n3")
    api.post(PODS, pod("orphan", nodeName="n3"))
    cluster.wait(lambda: status(api, "orphan")["phase"] == "Running", "it runs")
    nodes.remove("n3", collect=True)
    assert api.find(f"{PODS}/orphan") is None


def test_forgotten_version_ends_watches_and_pages_with_410(cluster: KubernetesPlane, api: Api) -> None:
    for name in ("a", "b"):
        api.post(PODS, pod(name))
    page = api.get(PODS, limit="1")["metadata"]
    api.delete(f"{PODS}/a", grace_s=0)
    assert cluster.compact() > int(page["resourceVersion"])
    (event,) = api.events(PODS, page["resourceVersion"], lambda _stream: None)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    with pytest.raises(Refused) as refused:
        api.get(PODS, limit="1", **{"continue": page["continue"]})
    assert refused.value.status == 410


def test_quota_is_counted(cluster: KubernetesPlane, api: Api) -> None:
    namespace = cluster.namespace("small")
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    hard = {"hard": {"requests.nvidia.com/gpu": "1"}}
    api.post(quotas, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": hard})
    cluster.wait(lambda: "hard" in api.get(f"{quotas}/q").get("status", {}), "the quota is counted")
    with pytest.raises(Refused, match="exceeded quota: q, requested: requests"):
        api.post(f"/api/v1/namespaces/{namespace}/pods", pod("two", gpus=2))


def test_claim_of_the_default_class_is_bound_and_another_is_not(cluster: KubernetesPlane, api: Api) -> None:
    claims = f"/api/v1/namespaces/{NS}/persistentvolumeclaims"
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for name, more in (("made", {}), ("waits", {"storageClassName": "none"})):
        head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        api.post(claims, {**head, "spec": {**wanted, **more}})
    cluster.wait(lambda: api.get(f"{claims}/made")["status"]["phase"] == "Bound", "it is bound")
    assert api.get(f"{claims}/waits")["status"]["phase"] == "Pending"
    (volume,) = (cluster.state / "volumes").iterdir()
    api.delete(f"{claims}/made")
    cluster.wait(lambda: not volume.exists(), "the volume is gone")


def test_user_has_the_rules_and_no_more(cluster: KubernetesPlane, api: Api) -> None:
    user = api_of(cluster.user(NS, LOOK))
    assert user.get(PODS)["kind"] == "PodList"
    for path in ("/api/v1/nodes", "/api/v1/namespaces/default/pods", f"/api/v1/namespaces/{NS}/secrets"):
        with pytest.raises(Refused, match="is forbidden"):
            user.get(path)
    words = [cluster.kubectl, f"--kubeconfig={cluster.user(NS, LOOK)}", "auth", "can-i", "create", "pods"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "yes\n"


def test_certificates_are_verified(cluster: KubernetesPlane, tmp_path: Path) -> None:
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(cluster.server, trust_env=False)


def test_kubelet_joins_as_its_node_only(cluster: KubernetesPlane) -> None:
    files = cluster.node("real1", "10.77.0.9")
    words = [cluster.kubectl, f"--kubeconfig={files.kubeconfig}", "auth", "can-i"]
    asked = {
        what: subprocess.run([*words, *what.split()], capture_output=True, text=True, check=False).stdout.split()[0]
        for what in ("create nodes", "list secrets")
    }
    assert asked == {"create nodes": "yes", "list secrets": "no"}
    assert files.serving.key.stat().st_mode & 0o777 == 0o600


def test_frozen_api_has_the_request_and_carries_it_out(cluster: KubernetesPlane, api: Api) -> None:
    done = threading.Event()

    def ask() -> None:
        api.post(PODS, pod("late"))
        done.set()

    with cluster.frozen(control.APISERVER):
        thread = threading.Thread(target=ask)
        thread.start()
        assert not done.wait(0.3)
    thread.join()
    assert status(api, "late")["phase"] in {"Pending", "Running"}


def test_restricted_pods_get_a_user_of_the_namespace(cluster: KubernetesPlane) -> None:
    user = api_of(cluster.user(NS, LOOK))
    made = user.post(PODS, pod("nobody"))
    annotations = cluster.api.get(f"/api/v1/namespaces/{NS}")["metadata"]["annotations"]
    place = scc.Place.from_annotations(annotations)
    own = made["spec"]["containers"][0]["securityContext"]
    assert own == {
        "runAsUser": place.low,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert made["spec"]["securityContext"]["fsGroup"] == place.low
    assert made["metadata"]["annotations"][scc.CHOSEN] == "restricted-v2"


def test_root_needs_constraints_that_allow_it(cluster: KubernetesPlane) -> None:
    user = api_of(cluster.user(NS, LOOK, name="rooted"))
    wanted = pod("rooted", user=0)
    with pytest.raises(Refused, match="unable to validate against any security context constraint") as refused:
        user.post(PODS, wanted)
    assert refused.value.status == 403
    assert "restricted-v2: .containers[0].runAsUser: Invalid value: 0: must be in the ranges" in str(refused.value)
    what = {"apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"], "verbs": ["use"]}
    cluster.grant(NS, "rooted", [{**what, "resourceNames": ["anyuid"]}])
    made = user.post(PODS, wanted)
    assert made["metadata"]["annotations"][scc.CHOSEN] == "anyuid"


def test_routes_get_hosts_and_are_admitted(cluster: KubernetesPlane) -> None:
    user = api_of(cluster.user(NS, ROUTE))
    head = {"apiVersion": "route.openshift.io/v1", "kind": "Route", "metadata": {"name": "notebook"}}
    to = {"to": {"kind": "Service", "name": "notebook"}}
    with pytest.raises(Refused, match="you do not have permission to set the host field"):
        user.post(ROUTES, {**head, "spec": {**to, "host": "mine.test"}})
    assert user.post(ROUTES, {**head, "spec": to})["spec"]["host"] == "notebook-burst.apps.lab.test"
    cluster.wait(lambda: "status" in user.get(f"{ROUTES}/notebook"), "the router has seen it")
    (admitted,) = user.get(f"{ROUTES}/notebook")["status"]["ingress"]
    assert admitted["conditions"][0]["type"] == "Admitted"


def test_nothing_is_left_of_a_test_that_was_killed() -> None:
    lines = ["from tests.lab.kubernetes.plane import KubernetesPlane", "cluster = KubernetesPlane().up()"]
    lines += ["print(cluster.state, cluster.server, flush=True)", "input()"]
    words = [sys.executable, "-c", "\n".join(lines)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_PROJECT) as child:
        assert child.stdout is not None
        state, server = child.stdout.readline().split()
        assert httpx.get(server, verify=ssl.create_default_context(cafile=f"{state}/pki/ca.crt")).status_code == 403
        child.kill()
    deadline = time.monotonic() + 30
    while Path(state).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(state).exists()
    with pytest.raises(httpx.ConnectError, match="refused"):
        httpx.get(server, trust_env=False)
