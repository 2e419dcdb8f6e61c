"""Which limits are told, in which units, and how much of the nodes is taken."""

from __future__ import annotations

from burstd.domain.errors import NotAllowed
from burstd.domain.plugins.provider import Quota
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.catalog.quotas import OpenShiftQuotas
from tests.providers.openshift.cluster import NODES, PODS, QUOTAS, SHARED, FakeCluster, node, pod, quota, settings

HARD = {"pods": "50", "limits.memory": "512Gi", "requests.cpu": "99500m", "services": "5"}
USED = {"pods": "3", "limits.memory": "1536Mi", "requests.cpu": "1500m"}


def read(cluster: FakeCluster) -> list[Quota]:
    return list(OpenShiftQuotas(settings(), OpenShiftCatalog("ocp", settings(), cluster)).read_quotas())


def test_quotas_that_count_our_machines() -> None:
    shared = quota("all", {"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "5"})
    cluster = FakeCluster(settings(), {QUOTAS: [quota("q", HARD, USED)], SHARED: [shared], NODES: NotAllowed("no")})
    assert read(cluster) == [
        Quota("q pods", 50, 3, "pods"), Quota("q limits.memory", 524288, 1536, "MiB"),
        Quota("q requests.cpu", 99, 2, "cores"), Quota("all requests.nvidia.com/gpu", 8, 5, "GPUs"),
    ]  # fmt: skip


def test_what_the_nodes_of_each_group_have() -> None:
    nodes = [node("a", "cpu"), node("b", "cpu"), node("c", "cpu", ready=False), node("g", "gpu", gpus="4")]
    cluster = FakeCluster(settings(), {NODES: nodes, PODS: [pod("a", "2500m"), pod("g", "8", "1"), pod("c", "4")]})
    assert read(cluster) == [
        Quota("group cpu cpu", 64, 3, "cores"), Quota("group cpu memory", 262144, 0, "MiB"),
        Quota("group gpu cpu", 32, 8, "cores"), Quota("group gpu memory", 131072, 0, "MiB"),
        Quota("group gpu nvidia.com/gpu", 4, 1, "GPUs"),
    ]  # fmt: skip


def test_without_a_look_at_all_pods_nothing_is_said_of_nodes() -> None:
    assert read(FakeCluster(settings(), {PODS: NotAllowed("no")})) == []
