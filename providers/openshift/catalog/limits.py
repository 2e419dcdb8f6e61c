"""ResourceQuotas and LimitRanges of the namespace, and which sizes of machines they leave no hope for.

https://kubernetes.io/docs/concepts/policy/resource-quotas/ and .../limit-range/; OpenShift's quotas over several
projects: https://docs.openshift.com/container-platform/latest/applications/quotas/quotas-setting-across-multiple-projects.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from providers.openshift.catalog.nodes import machine_requests
from providers.openshift.client.quantities import MIB, Amounts, format_quantity, parse_amounts
from providers.openshift.settings import NodeGroup, OpenShiftSettings, PodSize

_CLASS = "storageclass.storage.k8s.io"
KubeObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """One line of a quota that counts our machines. ``hard`` and ``used`` as Kubernetes counts the resource."""

    quota: str
    resource: str
    hard: Decimal
    used: Decimal


@dataclass(frozen=True, slots=True)
class LimitRangeLine:
    """What a LimitRange allows of one resource to a ``Container``, ``Pod`` or ``PersistentVolumeClaim``."""

    name: str
    kind: str
    resource: str
    least: Decimal | None
    most: Decimal | None


def quota_lines(quota: KubeObject, settings: OpenShiftSettings) -> Iterator[QuotaLine]:
    """Of a ResourceQuota, or of OpenShift's AppliedClusterResourceQuota; none where it is for pods of other kinds."""
    spec: KubeObject = quota.get("spec") or {}
    status: KubeObject = quota.get("status") or {}
    spec, status = spec.get("quota", spec), status.get("total", status)
    scopes = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    if all(_counts(scope, settings.priority_class) for scope in scopes):
        used = parse_amounts(status.get("used"))
        for resource, hard in parse_amounts(spec.get("hard")).items():
            yield QuotaLine(quota["metadata"]["name"], resource, hard, used.get(resource, Decimal(0)))


def limit_range_lines(limit_range: KubeObject) -> Iterator[LimitRangeLine]:
    """Of a LimitRange."""
    for one in (limit_range.get("spec") or {}).get("limits") or ():
        least, most = parse_amounts(one.get("min")), parse_amounts(one.get("max"))
        for resource in sorted({*least, *most}):
            yield LimitRangeLine(
                limit_range["metadata"]["name"], one["type"], resource, least.get(resource), most.get(resource)
            )  # fmt: skip


def quota_demand(settings: OpenShiftSettings, group: NodeGroup, size: PodSize) -> dict[str, Decimal]:
    """What one machine takes of each resource that a quota may count."""
    asked = machine_requests(group, size)
    pods = asked.pop("pods")
    found = {**asked, **{f"{word}.{key}": value for word in ("requests", "limits") for key, value in asked.items()}}
    found |= {"pods": pods, "count/pods": pods}
    scratch = settings.scratch
    if scratch.storage_class is not None:
        storage = {"persistentvolumeclaims": Decimal(1), "requests.storage": Decimal(scratch.size * MIB)}
        found |= {**storage, "count/persistentvolumeclaims": Decimal(1)}
        if scratch.storage_class:
            found |= {f"{scratch.storage_class}.{_CLASS}/{key}": value for key, value in storage.items()}
    return found


def quota_shortage(line: QuotaLine, taken: Amounts) -> str:
    """Why a quota, even an unused one, never allows a machine that takes this; empty: it does."""
    wanted = taken.get(line.resource, Decimal(0))
    if wanted <= line.hard:
        return ""
    allowed, asked = format_quantity(line.resource, line.hard), format_quantity(line.resource, wanted)
    return f"quota {line.quota} allows {line.resource} {allowed} in all, it takes {asked}"


def limit_range_violation(
    lines: Iterable[LimitRangeLine], settings: OpenShiftSettings, group: NodeGroup, size: PodSize
) -> str:
    """Why a LimitRange never allows this machine; empty: all do."""
    asked = {"Container": machine_requests(group, size), "Pod": machine_requests(group, size)}
    if settings.scratch.storage_class is not None:
        asked["PersistentVolumeClaim"] = {"storage": Decimal(settings.scratch.size * MIB)}
    for line in lines:
        value = asked.get(line.kind, {}).get(line.resource)
        if value is None:
            continue
        for word, bound, wrong in (
            ("most", line.most, line.most is not None and value > line.most),
            ("least", line.least, line.least is not None and value < line.least),
        ):
            if wrong and bound is not None:
                return (
                    f"LimitRange {line.name} allows a {line.kind} {line.resource} "
                    f"{format_quantity(line.resource, bound)} at "
                    f"{word}, it takes {format_quantity(line.resource, value)}"
                )
    return ""


def _counts(scope: KubeObject, priority_class: str) -> bool:
    """Whether pods of ours fall under it: they request what they may use, have no time limit and no pod affinity."""
    name, operator, values = scope["scopeName"], scope.get("operator"), scope.get("values") or ()
    if name != "PriorityClass":
        return name in ("NotTerminating", "NotBestEffort")
    return {
        "In": priority_class in values,
        "NotIn": priority_class not in values,
        "Exists": bool(priority_class),
        "DoesNotExist": not priority_class,
    }.get(str(operator), False)
