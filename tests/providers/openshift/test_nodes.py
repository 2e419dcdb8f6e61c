"""Which nodes a group's pods may go to, what pods take, and what is free."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from providers.openshift.catalog import nodes
from providers.openshift.client.quantities import parse_amounts
from providers.openshift.settings import NodeGroup, PodSize

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
SIZES = {"one": {"cpus": 4, "memory": "16G", "gpus": 1, "price": "1"}}


def node(**more: Any) -> nodes.ClusterNode:
    said = {
        "metadata": {"name": "n1", "labels": {"pool": "gpu", "rank": "7", **more.pop("labels", {})}},
        "spec": more.pop("spec", {}),
        "status": {"conditions": more.pop("conditions", [{"type": "Ready", "status": "True"}]),
                   "allocatable": more.pop("allocatable", {"cpu": "8", "memory": "64Gi", "pods": "110"})},
    }  # fmt: skip
    assert not more
    return nodes.parse_node(said)


def group(**more: Any) -> NodeGroup:
    return NodeGroup(**{"sizes": SIZES, **more})


def affinity(*terms: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def names(*values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(values)}]}


def labels(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize(
    ("wanted", "is_in"),
    [
        ({}, True),
        ({"selector": {"pool": "gpu"}}, True),
        ({"selector": {"pool": "gpu", "zone": "a"}}, False),
        ({"affinity": affinity(labels("pool", "In", "cpu", "gpu"))}, True),
        ({"affinity": affinity(labels("pool", "In", "cpu"))}, False),
        ({"affinity": affinity(labels("pool", "In", "cpu"), labels("rank", "Gt", "6"))}, True),
        ({"affinity": affinity(labels("rank", "Gt", "7"))}, False),
        ({"affinity": affinity(labels("rank", "Lt", "8"))}, True),
        ({"affinity": affinity(labels("pool", "Gt", "1"))}, False),
        ({"affinity": affinity(labels("zone", "NotIn", "a"))}, True),
        ({"affinity": affinity(labels("pool", "NotIn", "gpu"))}, False),
        ({"affinity": affinity(labels("pool", "Exists"))}, True),
        ({"affinity": affinity(labels("pool", "DoesNotExist"))}, False),
        ({"affinity": affinity(labels("zone", "DoesNotExist"))}, True),
        ({"affinity": affinity(labels("pool", "Resembles", "gpu"))}, False),
        ({"affinity": affinity(names("n1"))}, True),
        ({"affinity": affinity({**labels("pool", "Exists"), **names("n2")})}, False),
        ({"affinity": affinity({})}, False),
        ({"affinity": affinity(labels("pool", "Exists")), "selector": {"pool": "cpu"}}, False),
        ({"affinity": {"podAntiAffinity": {}}}, True),
    ],
)  # fmt: skip
def test_a_node_belongs_to_a_group_by_its_labels(wanted: dict[str, Any], is_in: bool) -> None:
    assert nodes.matches_group(node(), group(**wanted)) is is_in


@pytest.mark.parametrize(
    ("toleration", "may"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": ""}, True),
        ({"key": "nvidia.com/gpu"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "present"}, False),
    ],
)
def test_a_taint_keeps_out_what_does_not_tolerate_it(toleration: dict[str, Any] | None, may: bool) -> None:
    found, asks = node(spec={"taints": [TAINT]}), group(tolerations=[toleration] if toleration else [])
    assert nodes.untolerated_taints(found, asks) == (
        "" if may else "taint nvidia.com/gpu=present:NoSchedule is not tolerated"
    )
    assert nodes.usable_nodes([found], asks) == ([found] if may else [])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, ""),
        ({"spec": {"taints": [{"key": "slow", "effect": "PreferNoSchedule"}]}}, ""),
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, "not ready"),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "not ready"),
        ({"conditions": [{"type": "DiskPressure", "status": "True"}]}, "not ready"),
        ({"spec": {"taints": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]}}, "disk-pressure"),
    ],
)  # fmt: skip
def test_a_node_may_be_out_of_use_for_now(more: dict[str, Any], problem: str) -> None:
    found = node(**more)
    assert found.problem == problem
    assert not nodes.untolerated_taints(found, group()), "what passes is no reason for good"
    assert nodes.usable_nodes([found], group()) == ([] if problem else [found])


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


SIDECAR = container("1", restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "cpus"),
    [
        ({"containers": [{}]}, None),
        ({"containers": [{"resources": {}}, container("500m"), container("1")]}, "1.5"),
        ({"initContainers": [container("3"), container("2")], "containers": [container("1")]}, "3"),
        ({"initContainers": [SIDECAR], "containers": [container("1")]}, "2"),
        ({"initContainers": [SIDECAR, container("4")], "containers": [container("1")]}, "5"),
        ({"initContainers": [container("4"), SIDECAR], "containers": [container("1")]}, "4"),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, "1.25"),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "8"}}}, "8"),
    ],
)  # fmt: skip
def test_what_a_pod_requests(spec: dict[str, Any], cpus: str | None) -> None:
    found = nodes.pod_requests({"spec": spec})
    assert found == {"pods": 1, **({} if cpus is None else {"cpu": Decimal(cpus)})}


def pod(on: str | None, cpu: str, phase: str = "Running") -> dict[str, Any]:
    return {"spec": {"nodeName": on, "containers": [container(cpu)]}, "status": {"phase": phase}}


def test_only_pods_that_are_bound_and_live_take_of_a_node() -> None:
    pods = [pod("n1", "1"), pod("n1", "500m", "Pending"), pod("n2", "2"), pod(None, "4", "Pending"),
            pod("n1", "8", "Succeeded"), pod("n2", "8", "Failed")]  # fmt: skip
    taken: dict[str, dict[str, Decimal]] = {}
    nodes.add_requested(taken, pods[:1])
    nodes.add_requested(taken, pods[1:])
    assert taken == {"n1": {"cpu": Decimal("1.5"), "pods": 2}, "n2": {"cpu": 2, "pods": 1}}


@pytest.mark.parametrize(
    ("taken", "machines"),
    [
        ({}, 2), ({"cpu": "500m"}, 1), ({"memory": "33Gi"}, 1), ({"nvidia.com/mig-1g.10gb": "7"}, 0),
        ({"pods": "109"}, 1), ({"cpu": "9"}, 0),
    ],
)  # fmt: skip
def test_how_many_machines_have_room(taken: dict[str, str], machines: int) -> None:
    kind = "nvidia.com/mig-1g.10gb"
    there = node(allocatable={"cpu": "8", "memory": "64Gi", "pods": "110", kind: "7"}).allocatable
    wanted = nodes.machine_requests(group(gpu_resource=kind), PodSize(cpus=4, memory="16G", gpus=1, price=Decimal(1)))
    assert nodes.machines_that_fit(there, parse_amounts(taken), wanted) == machines


def test_a_machine_without_gpus_goes_to_nodes_without() -> None:
    wanted = nodes.machine_requests(group(), PodSize(cpus=4, memory="16G", price=Decimal(1)))
    assert nodes.machines_that_fit(node().allocatable, {}, wanted) == 2
    assert nodes.machines_that_fit(node().allocatable, {}, {**wanted, "nvidia.com/gpu": Decimal(1)}) == 0


def test_architectures_in_the_words_of_uname() -> None:
    said = [node(labels={"kubernetes.io/arch": word}).architecture for word in ("amd64", "arm64", "ppc64le")]
    assert said == ["x86_64", "aarch64", "ppc64le"]
    assert node().architecture == ""
