"""The cluster's nodes: which of them a group's pods may go to, what they have, and what of it is free; all pure.

What the scheduler goes by:
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ and .../taint-and-toleration/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor
from typing import Any

from providers.openshift.client.quantities import MIB, Amounts, parse_amounts
from providers.openshift.settings import NodeGroup, PodSize

_KEEPS_OUT = ("NoSchedule", "NoExecute")
_STATE = "node.kubernetes.io/"
"""Taints of this name are Kubernetes' own, and say how a node is for now."""
_ENDED = ("Succeeded", "Failed")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686"}
"""Go's words, and those of ``uname -m`` where they differ."""
_NAME = 253
"""Letters of a node's name at most."""
KubeObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One of the cluster's."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[KubeObject, ...]
    """That keep pods out which do not tolerate them, for good."""
    problem: str
    """Why no new pod goes there for now; empty: some do."""
    allocatable: Amounts

    @property
    def architecture(self) -> str:
        """As ``uname -m`` has it; empty: the node does not say."""
        word = self.labels.get("kubernetes.io/arch", "")
        return _ARCHITECTURES.get(word, word)


def parse_node(said: KubeObject) -> ClusterNode:
    """An item of ``/api/v1/nodes``."""
    spec, status = said.get("spec") or {}, said.get("status") or {}
    ready = next((one["status"] for one in status.get("conditions") or () if one["type"] == "Ready"), "Unknown")
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in _KEEPS_OUT]
    states = [taint["key"].removeprefix(_STATE) for taint in taints if taint["key"].startswith(_STATE)]
    problem = "cordoned" if spec.get("unschedulable") else "not ready" if ready != "True" else ", ".join(states)
    return ClusterNode(
        name=said["metadata"]["name"],
        labels=said["metadata"].get("labels") or {},
        taints=tuple(taint for taint in taints if not taint["key"].startswith(_STATE)),
        problem=problem,
        allocatable=parse_amounts(status.get("allocatable")),
    )


def matches_group(node: ClusterNode, group: NodeGroup) -> bool:
    """Whether its labels are what the group asks for."""
    required = group.affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return all(node.labels.get(key) == value for key, value in group.selector.items()) and (
        required is None or any(_matches_term(node, term) for term in required.get("nodeSelectorTerms") or ())
    )


def untolerated_taints(node: ClusterNode, group: NodeGroup) -> str:
    """Which taints keep the group's pods out for good; empty: none."""
    untolerated = [taint for taint in node.taints if not any(_tolerates(one, taint) for one in group.tolerations)]
    return ", ".join(f"taint {_format_taint(taint)} is not tolerated" for taint in untolerated)


def usable_nodes(nodes: Iterable[ClusterNode], group: NodeGroup) -> list[ClusterNode]:
    """Those that the group's pods may go to."""
    return [
        node
        for node in nodes
        if not node.problem and matches_group(node, group) and not untolerated_taints(node, group)
    ]


def machine_requests(group: NodeGroup, size: PodSize) -> dict[str, Decimal]:
    """What one machine asks a node for."""
    gpus = {group.gpu_resource: Decimal(size.gpus)} if size.gpus else {}
    return {"cpu": Decimal(size.cpus), "memory": Decimal(size.memory * MIB), **gpus, "pods": Decimal(1)}


def pod_requests(pod: KubeObject) -> dict[str, Decimal]:
    """What a pod takes of its node. Containers that prepare run one after the other, before the others; those of them
    that stay (``restartPolicy: Always``) beside all that come later.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    spec = pod["spec"]
    staying: dict[str, Decimal] = {}
    most: dict[str, Decimal] = {}
    for one in spec.get("initContainers") or ():
        own = _requests(one)
        if one.get("restartPolicy") == "Always":
            staying = _sum(staying, own)
            own = {}
        most = _most(most, _sum(staying, own))
    together = staying
    for one in spec.get("containers") or ():
        together = _sum(together, _requests(one))
    whole = {**_most(most, together), **_requests(spec)}
    return _sum(_sum(whole, parse_amounts(spec.get("overhead"))), {"pods": Decimal(1)})


def add_requested(taken: dict[str, dict[str, Decimal]], pods: Iterable[KubeObject]) -> None:
    """Adds what those of the pods that are bound and not ended take, by node."""
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and len(node) <= _NAME and (pod.get("status") or {}).get("phase") not in _ENDED:
            taken[node] = _sum(taken.get(node, {}), pod_requests(pod))


def machines_that_fit(node: Amounts, taken: Amounts, wanted: Amounts) -> int:
    """How many machines that ask for ``wanted`` fit on a node beside what is ``taken``."""
    zero = Decimal(0)
    return max(min(floor((node.get(k, zero) - taken.get(k, zero)) / v) for k, v in wanted.items() if v), 0)


def total_and_taken(
    nodes: Sequence[ClusterNode], taken: Mapping[str, Amounts], resource: str
) -> tuple[Decimal, Decimal]:
    """What these nodes have of a resource together, and what is taken of it."""
    zero = Decimal(0)
    return (
        sum((node.allocatable.get(resource, zero) for node in nodes), zero),
        sum((taken.get(node.name, {}).get(resource, zero) for node in nodes), zero),
    )


def _matches_term(node: ClusterNode, term: KubeObject) -> bool:
    """One of a node affinity's terms; one that asks for nothing fits no node."""
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return (
        bool(labels or fields)
        and all(_matches_expression(node.labels, one) for one in labels)
        and all(_matches_expression({"metadata.name": node.name}, one) for one in fields)
    )


def _matches_expression(labels: Mapping[str, str], wanted: KubeObject) -> bool:
    value, values = labels.get(wanted["key"]), list(wanted.get("values") or ())
    match wanted["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as word:
            if value is None or not (_whole(value) and len(values) == 1 and _whole(values[0])):
                return False
            return int(value) > int(values[0]) if word == "Gt" else int(value) < int(values[0])
    return False


def _whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _tolerates(toleration: KubeObject, taint: KubeObject) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    same = toleration["key"] == taint["key"]
    return same and (exists or (toleration.get("value") or "") == (taint.get("value") or ""))


def _format_taint(taint: KubeObject) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _requests(part: KubeObject) -> dict[str, Decimal]:
    """Of a container, or of a pod as a whole. What has a limit only requests that; the API server fills it in."""
    return parse_amounts((part.get("resources") or {}).get("requests"))


def _sum(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {key: one.get(key, Decimal(0)) + other.get(key, Decimal(0)) for key in (*one, *other)}


def _most(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {key: max(one.get(key, Decimal(0)), other.get(key, Decimal(0))) for key in (*one, *other)}
