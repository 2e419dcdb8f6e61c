"""Which quotas and LimitRanges count our machines, and which machines they never allow."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Shape
from providers.openshift.catalog.limits import (
    QuotaLine,
    limit_range_lines,
    limit_range_violation,
    quota_demand,
    quota_lines,
    quota_shortage,
)
from providers.openshift.catalog.nodes import machine_requests, pod_requests
from providers.openshift.pods import manifest
from providers.openshift.settings import OpenShiftSettings

GIB = 1 << 30
CLASS = "gold.storageclass.storage.k8s.io"


def settings(**more: Any) -> OpenShiftSettings:
    sizes = {"one": {"cpus": 4, "memory": "16G", "gpus": 2, "price": "1"}}
    return OpenShiftSettings(**{"namespace": "burst", "groups": {"gpu": {"sizes": sizes}}, **more})


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def test_a_quota_line_by_line() -> None:
    said = quota({"pods": "10", "requests.cpu": "40"}, {"pods": "3", "requests.cpu": "12500m"})
    expected = [
        QuotaLine("q", "pods", Decimal(10), Decimal(3)),
        QuotaLine("q", "requests.cpu", Decimal(40), Decimal("12.5")),
    ]
    assert list(quota_lines(said, settings())) == expected


def test_a_quota_over_several_projects_counts_what_all_of_them_use() -> None:
    said = quota({}, namespaces=[])
    said["spec"] = {"selector": {}, "quota": {"hard": {"requests.nvidia.com/gpu": "8"}}}
    said["status"] = {"total": {"hard": {}, "used": {"requests.nvidia.com/gpu": "5"}}, "namespaces": []}
    assert list(quota_lines(said, settings())) == [QuotaLine("q", "requests.nvidia.com/gpu", Decimal(8), Decimal(5))]


def by_class(operator: str, *values: str) -> dict[str, Any]:
    return {"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": operator, **({"values": list(values)} if values else {})}
    ]}}  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "priority_class", "counts"),
    [
        ({"scopes": ["NotTerminating"]}, "", True),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, "", True),
        ({"scopes": ["NotBestEffort", "Terminating"]}, "", False),
        ({"scopes": ["BestEffort"]}, "", False),
        ({"scopes": ["CrossNamespacePodAffinity"]}, "", False),
        ({"scopes": ["PriorityClass"]}, "", False),
        ({"scopes": ["PriorityClass"]}, "low", True),
        (by_class("In", "high", "low"), "low", True),
        (by_class("In", "high"), "low", False),
        (by_class("In", "high"), "", False),
        (by_class("NotIn", "high"), "low", True),
        (by_class("NotIn", "high"), "high", False),
        (by_class("Exists"), "low", True),
        (by_class("DoesNotExist"), "", True),
        (by_class("DoesNotExist"), "low", False),
    ],
)
def test_a_quota_may_be_for_pods_of_other_kinds(spec: dict[str, Any], priority_class: str, counts: bool) -> None:
    found = list(quota_lines(quota({"pods": "1"}, **spec), settings(priority_class=priority_class)))
    assert bool(found) is counts


@pytest.mark.parametrize(
    ("scratch", "resource", "amount"),
    [
        (None, "cpu", 4), (None, "requests.cpu", 4), (None, "limits.cpu", 4), (None, "memory", 16 * GIB),
        (None, "limits.memory", 16 * GIB), (None, "requests.nvidia.com/gpu", 2), (None, "pods", 1),
        (None, "count/pods", 1), (None, "requests.storage", None), (None, "persistentvolumeclaims", None),
        ("", "requests.storage", 20 * GIB), ("", "count/persistentvolumeclaims", 1),
        ("", f"{CLASS}/requests.storage", None), ("gold", f"{CLASS}/requests.storage", 20 * GIB),
        ("gold", f"{CLASS}/persistentvolumeclaims", 1), ("gold", "persistentvolumeclaims", 1),
    ],
)  # fmt: skip
def test_what_a_machine_takes_of_quotas(scratch: str | None, resource: str, amount: int | None) -> None:
    words = settings(scratch={"storage_class": scratch})
    group = words.groups["gpu"]
    assert quota_demand(words, group, group.sizes["one"]).get(resource) == amount


@pytest.mark.parametrize("gpus", [0, 2])
def test_what_is_reckoned_with_is_what_pods_ask_for(gpus: int) -> None:
    sizes = {"one": {"cpus": 4, "memory": "16G", "gpus": gpus, "price": "1"}}
    words = settings(groups={"g": {"gpu_resource": "nvidia.com/mig-1g.10gb", "sizes": sizes}})
    group = words.groups["g"]
    offer = Offer("ocp", "burst", "g", "one", False, Shape(4, 16384), Decimal(1))
    pod = manifest.pod_manifest(
        words, LaunchRequest("c", "burst-c", offer, "node:1", "", {TAG_CLUSTER: "ada", TAG_CLAIM: "c"})
    )
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert pod_requests(pod) == machine_requests(group, group.sizes["one"])


@pytest.mark.parametrize(
    ("resource", "hard", "told"),
    [
        ("requests.nvidia.com/gpu", "2", ""),
        ("requests.nvidia.com/gpu", "1", "quota q allows requests.nvidia.com/gpu 1 in all, it takes 2"),
        ("limits.memory", "12Gi", "quota q allows limits.memory 12 GiB in all, it takes 16 GiB"),
        ("services", "0", ""),
    ],
)
def test_a_quota_that_is_smaller_than_one_machine(resource: str, hard: str, told: str) -> None:
    words = settings()
    group = words.groups["gpu"]
    (line,) = quota_lines(quota({resource: hard}, {resource: hard}), words)
    assert quota_shortage(line, quota_demand(words, group, group.sizes["one"])) == told


@pytest.mark.parametrize(
    ("limit", "scratch", "told"),
    [
        ({"type": "Container", "max": {"cpu": "4", "memory": "16Gi"}}, None, ""),
        ({"type": "Container", "max": {"cpu": "2"}}, None,
         "LimitRange r allows a Container cpu 2 at most, it takes 4"),
        ({"type": "Pod", "min": {"memory": "32Gi"}}, None,
         "LimitRange r allows a Pod memory 32 GiB at least, it takes 16 GiB"),
        ({"type": "Container", "max": {"ephemeral-storage": "1Gi"}, "default": {"cpu": "1"}}, None, ""),
        ({"type": "PersistentVolumeClaim", "max": {"storage": "10Gi"}}, None, ""),
        ({"type": "PersistentVolumeClaim", "max": {"storage": "10Gi"}}, "",
         "LimitRange r allows a PersistentVolumeClaim storage 10 GiB at most, it takes 20 GiB"),
        ({"type": "openshift.io/Image", "max": {"storage": "1Gi"}}, "", ""),
    ],
)  # fmt: skip
def test_a_limit_range_that_a_machine_is_outside_of(limit: dict[str, Any], scratch: str | None, told: str) -> None:
    words = settings(scratch={"storage_class": scratch})
    group = words.groups["gpu"]
    lines = list(limit_range_lines({"metadata": {"name": "r"}, "spec": {"limits": [limit]}}))
    assert limit_range_violation(lines, words, group, group.sizes["one"]) == told
