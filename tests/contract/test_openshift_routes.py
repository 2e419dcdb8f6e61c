"""Routes to pods' ports on a real API server, with exactly the rights that config/openshift/role.yaml has."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import yaml

from burstd.domain.errors import BadRequest, NotFound
from burstd.domain.plugins.provider import Route
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.routes import PodRoutes
from providers.openshift.settings import OpenShiftSettings
from tests.lab.kubernetes.hollow import HollowNodes
from tests.lab.kubernetes.plane import KubernetesPlane
from tests.lab.programs import PROJECT

pytestmark = [pytest.mark.clouds, pytest.mark.boxes]
NS, CLUSTER = "burst", "mysite"
ROUTES = f"/apis/route.openshift.io/v1/namespaces/{NS}/routes"
SERVICES = f"/api/v1/namespaces/{NS}/services"
PODS = f"/api/v1/namespaces/{NS}/pods"


@pytest.fixture(scope="module")
def plane() -> Iterator[KubernetesPlane]:
    with KubernetesPlane() as cluster, HollowNodes(cluster) as nodes:
        nodes.add("n1", cpus=8, memory_gib=32)
        cluster.namespace(NS)
        yield cluster


@pytest.fixture(scope="module")
def calls(plane: KubernetesPlane) -> Iterator[OpenShiftCalls]:
    text = (PROJECT / "config" / "openshift" / "role.yaml").read_text(encoding="utf-8")
    rules = [rule for part in yaml.safe_load_all(text) for rule in part.get("rules", ())]
    group = {"cpu": {"sizes": {"small": {"cpus": 1, "memory": "1G", "price": "0"}}}}
    settings = {"kubeconfig": plane.user(NS, rules, name="burstd"), "namespace": NS, "groups": group}
    with closing(OpenShiftCalls(OpenShiftSettings.model_validate(settings))) as made:
        yield made


@pytest.fixture
def routes(calls: OpenShiftCalls) -> PodRoutes:
    return PodRoutes(calls, CLUSTER, "apps.example.org")


@pytest.fixture
def pod(plane: KubernetesPlane) -> Iterator[str]:
    """One of ours that runs."""
    name = f"mysite-node-{secrets.token_hex(3)}"
    make_pod(plane, name, labels.claim_labels(CLUSTER, f"claim-{name}"))
    yield name
    plane.api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
    plane.wait(lambda: not names(plane, ROUTES) and names(plane, SERVICES) == [], "everything of the pod is gone")


def make_pod(plane: KubernetesPlane, name: str, own_labels: dict[str, str]) -> None:
    spec = {"containers": [{"name": "node", "image": "node"}]}
    plane.api.post(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": own_labels}, "spec": spec}
    )
    plane.wait(lambda: plane.api.get(f"{PODS}/{name}")["status"]["phase"] == "Running", f"{name} runs")


def names(plane: KubernetesPlane, path: str) -> list[str]:
    return [one["metadata"]["name"] for one in plane.api.get(path)["items"]]


def test_opened_twice_listed_and_closed(plane: KubernetesPlane, routes: PodRoutes, pod: str) -> None:
    made = [routes.open_route(pod, "123_7", 8888) for _ in range(2)]
    (name,) = names(plane, ROUTES)
    assert made == [Route("123_7", 8888, pod, f"https://{name}.apps.example.org")] * 2
    assert routes.open_route(pod, "9+1", 8888).job_id == "9+1"
    assert sorted(routes.routes(), key=lambda one: one.job_id) == [
        made[0],
        Route("9+1", 8888, pod, others(plane, name)),
    ]

    service = plane.api.get(f"{SERVICES}/{name}")
    assert service["spec"]["selector"] == {"burstd-cluster": CLUSTER, "burstd-claim": f"claim-{pod}"}
    plane.wait(
        lambda: addresses(plane, name) == [plane.api.get(f"{PODS}/{pod}")["status"]["podIP"]], "the Service leads there"
    )
    route = plane.api.get(f"{ROUTES}/{name}")
    assert route["spec"]["tls"] == {"termination": "edge", "insecureEdgeTerminationPolicy": "Redirect"}
    assert route["spec"]["to"]["name"] == name
    for _ in range(2):
        routes.close_routes(made[:1])
    assert [one.job_id for one in routes.routes()] == ["9+1"]
    assert names(plane, SERVICES) == names(plane, ROUTES)


def others(plane: KubernetesPlane, name: str) -> str:
    (other,) = (one for one in names(plane, ROUTES) if one != name)
    return f"https://{other}.apps.example.org"


def addresses(plane: KubernetesPlane, name: str) -> list[str]:
    found = plane.api.find(f"/api/v1/namespaces/{NS}/endpoints/{name}") or {}
    return [one["ip"] for subset in found.get("subsets") or () for one in subset.get("addresses", ())]


def test_they_end_with_the_pod_without_burstd(plane: KubernetesPlane, routes: PodRoutes, pod: str) -> None:
    routes.open_route(pod, "123", 8888)
    assert len(names(plane, ROUTES)) == len(names(plane, SERVICES)) == 1
    # The end of the fixture waits for it.


def test_what_is_not_ours_is_left_alone(plane: KubernetesPlane, calls: OpenShiftCalls, pod: str) -> None:
    mine, theirs = PodRoutes(calls, CLUSTER, ""), PodRoutes(calls, "other", "")
    assert mine.open_route(pod, "123", 8888).url == ""
    with pytest.raises(NotFound, match="is not one of cluster other"):
        theirs.open_route(pod, "123", 8888)
    with pytest.raises(NotFound):
        mine.open_route("nosuch", "123", 8888)
    assert theirs.routes() == ()
    theirs.close_routes(mine.routes())
    assert len(mine.routes()) == 1
    (name,) = names(plane, ROUTES)
    plane.api.patch(f"{ROUTES}/{name}", {"metadata": {"labels": {"burstd-cluster": "somebody"}}})
    with pytest.raises(BadRequest, match="is not burstd's"):
        mine.open_route(pod, "123", 8888)
    assert mine.routes() == ()


def test_a_cluster_without_routes(plane: KubernetesPlane, routes: PodRoutes, pod: str) -> None:
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/routes.route.openshift.io"
    kept: dict[str, Any] = plane.api.get(definition)
    plane.api.delete(definition)
    plane.wait(lambda: plane.api.find(ROUTES) is None, "Routes are gone")
    try:
        assert routes.routes() == ()
        with pytest.raises(BadRequest, match="no Routes, which are OpenShift's own: burstctl port-forward"):
            routes.open_route(pod, "123", 8888)
        assert names(plane, SERVICES) == []
        routes.close_routes([Route("123", 8888, pod, "")])
    finally:
        metadata = {"name": kept["metadata"]["name"], "annotations": kept["metadata"]["annotations"]}
        plane.api.post(definition.rpartition("/")[0], {**kept, "metadata": metadata, "status": None})
        plane.wait(lambda: plane.api.find(ROUTES) is not None, "Routes are back")
