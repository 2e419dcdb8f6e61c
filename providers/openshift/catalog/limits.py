"""ResourceQuotas and LimitRanges of the namespace, and which sizes of machines they leave no hope for.

https://kubernetes.io/docs/concepts/policy/resource-quotas/ and .../limit-range/; OpenShift's quotas over several
projects: https://docs.openshift.com/container-platform/latest/applications/quotas/quotas-setting-across-multiple-projects.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from providers.openshift.catalog.nodes import need
from providers.openshift.client.quantities import MIB, Amounts, amounts, told
from providers.openshift.settings import Group, OpenShiftSettings, Size

_CLASS = "storageclass.storage.k8s.io"
Thing = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of a quota that counts our machines. ``hard`` and ``used`` as Kubernetes counts the resource."""

    quota: str
    resource: str
    hard: Decimal
    used: Decimal


@dataclass(frozen=True, slots=True)
class Range:
    """What a LimitRange allows of one resource to a ``Container``, ``Pod`` or ``PersistentVolumeClaim``."""

    name: str
    kind: str
    resource: str
    least: Decimal | None
    most: Decimal | None


def limits(quota: Thing, settings: OpenShiftSettings) -> Iterator[Limit]:
    """Of a ResourceQuota, or of OpenShift's AppliedClusterResourceQuota; none where it is for pods of other kinds."""
    spec: Thing = quota.get("spec") or {}
    status: Thing = quota.get("status") or {}
    spec, status = spec.get("quota", spec), status.get("total", status)
    scopes = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    if all(_counts(scope, settings.priority_class) for scope in scopes):
        used = amounts(status.get("used"))
        for resource, hard in amounts(spec.get("hard")).items():
            yield Limit(quota["metadata"]["name"], resource, hard, used.get(resource, Decimal(0)))


def ranges(limit_range: Thing) -> Iterator[Range]:
    """Of a LimitRange."""
    for one in (limit_range.get("spec") or {}).get("limits") or ():
        least, most = amounts(one.get("min")), amounts(one.get("max"))
        for resource in sorted({*least, *most}):
            yield Range(
                limit_range["metadata"]["name"], one["type"], resource, least.get(resource), most.get(resource)
            )  # fmt: skip


def takes(settings: OpenShiftSettings, group: Group, size: Size) -> dict[str, Decimal]:
    """What one machine takes of each resource that a quota may count."""
    asked = need(group, size)
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


def short(line: Limit, taken: Amounts) -> str:
    """Why a quota, even an unused one, never allows a machine that takes this; empty: it does."""
    wanted = taken.get(line.resource, Decimal(0))
    if wanted <= line.hard:
        return ""
    allowed, asked = told(line.resource, line.hard), told(line.resource, wanted)
    return f"quota {line.quota} allows {line.resource} {allowed} in all, it takes {asked}"


def outside(lines: Iterable[Range], settings: OpenShiftSettings, group: Group, size: Size) -> str:
    """Why a LimitRange never allows this machine; empty: all do."""
    asked = {"Container": need(group, size), "Pod": need(group, size)}
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
                    f"LimitRange {line.name} allows a {line.kind} {line.resource} {told(line.resource, bound)} at "
                    f"{word}, it takes {told(line.resource, value)}"
                )
    return ""


def _counts(scope: Thing, priority_class: str) -> bool:
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
