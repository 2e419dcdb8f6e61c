"""What is offered, for how much, and what is not and why; on a cluster in memory."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.cloud.offer import Hardware
from burstd.domain.errors import BadRequest, CloudUnavailable, NotAllowed
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.client.quantities import parse_amounts
from providers.openshift.errors import NoSuchApi, ResourceVersionExpired
from providers.openshift.settings import NodeGroup, PodSize
from tests.providers.openshift.cluster import (
    NODES,
    PODS,
    QUOTAS,
    RANGES,
    SHARED,
    FakeCluster,
    node,
    pod,
    quota,
    settings,
)

GPU_TAINT = {"key": "gpu", "effect": "NoSchedule"}
DENIED = NotAllowed("not allowed")


class Site:
    """A cluster with these answers, and burstd's catalogue of it."""

    def __init__(self, answers: dict[str, Any] | None = None, **words: Any) -> None:
        self.settings = settings(**words)
        self.cluster = FakeCluster(self.settings, answers)
        self.now = 0.0
        self.catalog = OpenShiftCatalog("ocp", self.settings, self.cluster, lambda: self.now)

    def ids(self) -> list[str]:
        return [offer.id for offer in self.catalog.offers()]


def test_an_offer_says_what_a_job_finds() -> None:
    labels = {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    site = Site({NODES: [node("n", "gpu", gpus="4", labels=labels, taints=[GPU_TAINT])]}, currency="CHF")
    (offer,) = site.catalog.offers()
    assert offer.id == "ocp/burst/gpu/g1/on-demand"
    assert (offer.shape.cpus, offer.shape.memory_mib, str(offer.shape.gres[0])) == (8, 32768, "gpu:h100:1")
    assert (offer.price, offer.currency, offer.price_source) == (Decimal("2.50"), "CHF", "settings")
    assert offer.hardware == Hardware("x86_64", gpu_memory_mib=81559, local_disk_gib=20)


def test_what_nodes_do_not_say_alike_is_not_said() -> None:
    nodes = [node("a", "cpu"), node("b", "cpu", labels={"kubernetes.io/arch": "arm64"})]
    assert {offer.hardware for offer in Site({NODES: nodes}).catalog.offers()} == {Hardware(local_disk_gib=20)}


@pytest.mark.parametrize(("kind", "binding"), [("podAffinity", "topology-key"), ("podAntiAffinity", "")])
def test_an_affinity_of_pods_keeps_machines_near_each_other(kind: str, binding: str) -> None:
    term = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "burst"}}}
    group = NodeGroup(
        affinity={kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        sizes={"c1": PodSize(cpus=1, memory=1024, price=Decimal(1))},
    )
    assert [offer.hardware.binding for offer in Site(groups={"cpu": group}).catalog.offers()] == [binding]


def test_a_size_without_a_price_has_that_of_its_parts() -> None:
    prices = {offer.instance_type: offer.price for offer in Site().catalog.offers()}
    assert prices == {"c4": Decimal("0.36"), "c16": Decimal("1.44"), "g1": Decimal("2.50")}


EVERY = ["cpu/c4", "cpu/c16", "gpu/g1"]


@pytest.mark.parametrize(
    ("answers", "offered", "why"),
    [
        ({}, EVERY, ""),
        ({NODES: DENIED}, EVERY, ""),
        ({QUOTAS: DENIED, SHARED: NoSuchApi("plain Kubernetes"), RANGES: DENIED}, EVERY, ""),
        ({NODES: [node("n", "cpu", cpu="15500m")]}, ["cpu/c4"], "it takes 16 cpu, the largest has 15.5"),
        ({NODES: [node("n", "cpu", memory="60Gi")]}, ["cpu/c4"], "it takes 64 GiB memory, the largest has 60 GiB"),
        ({NODES: [node("n", "cpu", memory="8Gi"), node("m", "cpu", cpu="8")]}, ["cpu/c4"],
         "none of its nodes has all of that"),
        ({NODES: [node("n", "cpu"), node("g", "gpu", taints=[GPU_TAINT])]}, EVERY[:2],
         "it takes 1 nvidia.com/gpu, the largest has 0"),
        ({NODES: [node("n", "cpu"), node("g", "gpu", gpus="4", taints=[{"key": "x", "effect": "NoExecute"}])]},
         EVERY[:2], "of every node that belongs to it a taint x:NoExecute is not tolerated"),
        ({NODES: [node("n", "cpu")]}, EVERY[:2], "no node has the labels of its selector and affinity"),
        ({NODES: [node("n", "cpu", ready=False), node("g", "gpu", gpus="4", unschedulable=True)]}, EVERY, ""),
        ({QUOTAS: [quota("q", {"requests.cpu": "8"}, {"requests.cpu": "8"})]}, ["cpu/c4", "gpu/g1"],
         "quota q allows requests.cpu 8 in all, it takes 16"),
        ({SHARED: [quota("q", {"requests.nvidia.com/gpu": "0"}, {})]}, EVERY[:2],
         "quota q allows requests.nvidia.com/gpu 0 in all, it takes 1"),
        ({RANGES: [{"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Pod", "max": {"memory": "40Gi"}}]}}]},
         ["cpu/c4", "gpu/g1"], "LimitRange r allows a Pod memory 40 GiB at most, it takes 64 GiB"),
    ],
)  # fmt: skip
def test_what_can_never_be_had_is_not_offered(answers: dict[str, Any], offered: list[str], why: str) -> None:
    site = Site(answers)
    assert site.ids() == [f"ocp/burst/{one}/on-demand" for one in offered]
    assert sorted("/".join(key) for key in site.catalog.impossible_sizes()) == sorted(set(EVERY) - set(offered))
    assert not why or any(why in said for said in site.catalog.impossible_sizes().values()), (
        site.catalog.impossible_sizes()
    )


def test_nodes_that_come_when_pods_wait_need_not_be_there() -> None:
    sizes = {"s": {"cpus": 4, "memory": "16G", "price": "1"}}
    site = Site({NODES: []}, groups={"auto": {"autoscaled": True, "sizes": sizes}})
    assert site.ids() == ["ocp/burst/auto/s/on-demand"]


def test_nothing_to_offer_is_an_error_that_says_why() -> None:
    with pytest.raises(BadRequest, match="size c4 of group cpu: no node has the labels"):
        Site({NODES: []}).catalog.offers()


def test_a_cluster_that_does_not_answer_is_no_cluster_without_nodes() -> None:
    with pytest.raises(CloudUnavailable):
        Site({NODES: CloudUnavailable("down")}).catalog.offers()


def test_offers_are_kept_for_a_minute_and_longer_where_the_cluster_does_not_answer() -> None:
    site = Site()
    first = site.ids()
    asked = len(site.cluster.said)
    site.now = 59.0
    assert (site.ids(), len(site.cluster.said)) == (first, asked)
    site.cluster.answers[NODES] = CloudUnavailable("down")
    site.now = 61.0
    assert site.ids() == first
    site.cluster.answers[NODES] = [node("n1", "cpu")]
    site.now = 200.0
    assert site.ids() == first[:2]


def test_pods_of_all_namespaces_are_read_page_by_page_and_again_where_the_list_is_too_old() -> None:
    class Paged(FakeCluster):
        def request_json(self, method: str, path: str, *args: Any, **more: Any) -> dict[str, Any]:
            if path != PODS:
                return super().request_json(method, path, *args, **more)
            query = more["query"]
            self.said.append(query.get("continue", "first"))
            if self.said == ["first", "second"]:
                raise ResourceVersionExpired("too old")
            after = {} if query.get("continue") else {"continue": "second"}
            return {"items": [pod("n1", "2")], "metadata": after}

    cluster = Paged(settings())
    assert OpenShiftCatalog("ocp", settings(), cluster).read_pod_requests() == {
        "n1": parse_amounts({"cpu": 4, "nvidia.com/gpu": 0, "pods": 2})
    }
    assert cluster.said == ["first", "second", "first", "second"]
