"""The cluster's nodes: which of them a group's pods may go to, what they have, and what of it is free; all pure.

What the scheduler goes by:
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ and .../taint-and-toleration/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from providers.openshift.client.quantities import MIB, Amounts, amounts, floor
from providers.openshift.settings import Group, Size

_KEEPS_OUT = ("NoSchedule", "NoExecute")
_STATE = "node.kubernetes.io/"
"""Taints of this name are Kubernetes' own, and say how a node is for now."""
_ENDED = ("Succeeded", "Failed")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686"}
"""Go's words, and those of ``uname -m`` where they differ."""
_NAME = 253
"""Letters of a node's name at most."""
Thing = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """One of the cluster's."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Thing, ...]
    """That keep pods out which do not tolerate them, for good."""
    problem: str
    """Why no new pod goes there for now; empty: some do."""
    allocatable: Amounts

    @property
    def architecture(self) -> str:
        """As ``uname -m`` has it; empty: the node does not say."""
        word = self.labels.get("kubernetes.io/arch", "")
        return _ARCHITECTURES.get(word, word)


def parsed(said: Thing) -> Node:
    """An item of ``/api/v1/nodes``."""
    spec, status = said.get("spec") or {}, said.get("status") or {}
    ready = next((one["status"] for one in status.get("conditions") or () if one["type"] == "Ready"), "Unknown")
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in _KEEPS_OUT]
    states = [taint["key"].removeprefix(_STATE) for taint in taints if taint["key"].startswith(_STATE)]
    problem = "cordoned" if spec.get("unschedulable") else "not ready" if ready != "True" else ", ".join(states)
    return Node(
        name=said["metadata"]["name"],
        labels=said["metadata"].get("labels") or {},
        taints=tuple(taint for taint in taints if not taint["key"].startswith(_STATE)),
        problem=problem,
        allocatable=amounts(status.get("allocatable")),
    )


def belongs(node: Node, group: Group) -> bool:
    """Whether its labels are what the group asks for."""
    required = group.affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return all(node.labels.get(key) == value for key, value in group.selector.items()) and (
        required is None or any(_meets(node, term) for term in required.get("nodeSelectorTerms") or ())
    )


def shut(node: Node, group: Group) -> str:
    """Which taints keep the group's pods out for good; empty: none."""
    kept = [taint for taint in node.taints if not any(_tolerates(one, taint) for one in group.tolerations)]
    return ", ".join(f"taint {_told(taint)} is not tolerated" for taint in kept)


def usable(nodes: Iterable[Node], group: Group) -> list[Node]:
    """Those that the group's pods may go to."""
    return [node for node in nodes if not node.problem and belongs(node, group) and not shut(node, group)]


def need(group: Group, size: Size) -> dict[str, Decimal]:
    """What one machine asks a node for."""
    gpus = {group.gpu_resource: Decimal(size.gpus)} if size.gpus else {}
    return {"cpu": Decimal(size.cpus), "memory": Decimal(size.memory * MIB), **gpus, "pods": Decimal(1)}


def requests(pod: Thing) -> dict[str, Decimal]:
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
    return _sum(_sum(whole, amounts(spec.get("overhead"))), {"pods": Decimal(1)})


def add_requested(taken: dict[str, dict[str, Decimal]], pods: Iterable[Thing]) -> None:
    """Adds what those of the pods that are bound and not ended take, by node."""
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and len(node) <= _NAME and (pod.get("status") or {}).get("phase") not in _ENDED:
            taken[node] = _sum(taken.get(node, {}), requests(pod))


def room(node: Amounts, taken: Amounts, wanted: Amounts) -> int:
    """How many machines that ask for ``wanted`` fit on a node beside what is ``taken``."""
    zero = Decimal(0)
    return max(min(floor((node.get(k, zero) - taken.get(k, zero)) / v) for k, v in wanted.items() if v), 0)


def total(nodes: Sequence[Node], taken: Mapping[str, Amounts], resource: str) -> tuple[Decimal, Decimal]:
    """What these nodes have of a resource together, and what is taken of it."""
    zero = Decimal(0)
    return (
        sum((node.allocatable.get(resource, zero) for node in nodes), zero),
        sum((taken.get(node.name, {}).get(resource, zero) for node in nodes), zero),
    )


def _meets(node: Node, term: Thing) -> bool:
    """One of a node affinity's terms; one that asks for nothing fits no node."""
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return (
        bool(labels or fields)
        and all(_holds(node.labels, one) for one in labels)
        and all(_holds({"metadata.name": node.name}, one) for one in fields)
    )


def _holds(labels: Mapping[str, str], wanted: Thing) -> bool:
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


def _tolerates(toleration: Thing, taint: Thing) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    same = toleration["key"] == taint["key"]
    return same and (exists or (toleration.get("value") or "") == (taint.get("value") or ""))


def _told(taint: Thing) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _requests(part: Thing) -> dict[str, Decimal]:
    """Of a container, or of a pod as a whole. What has a limit only requests that; the API server fills it in."""
    return amounts((part.get("resources") or {}).get("requests"))


def _sum(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {key: one.get(key, Decimal(0)) + other.get(key, Decimal(0)) for key in (*one, *other)}


def _most(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {key: max(one.get(key, Decimal(0)), other.get(key, Decimal(0))) for key in (*one, *other)}
