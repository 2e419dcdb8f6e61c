"""Whether the cluster has nodes for the groups, whether sizes fit them and the namespace's limits, and what is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding
from providers.findings import first_few
from providers.openshift.catalog import nodes
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.catalog.limits import QuotaLine, quota_demand
from providers.openshift.catalog.nodes import ClusterNode
from providers.openshift.catalog.quotas import FreeCapacity, OpenShiftQuotas
from providers.openshift.checks.findings import finding_for_error
from providers.openshift.client.quantities import format_quantity, round_down
from providers.openshift.settings import NodeGroup, OpenShiftSettings, PodSize


def check_supply(settings: OpenShiftSettings, catalog: OpenShiftCatalog, quotas: OpenShiftQuotas) -> Iterator[Finding]:
    """Groups, sizes, quotas. What burstd may not see was said with its rights."""
    try:
        there = catalog.cluster_nodes()
        capacity = quotas.free_capacity()
        never = catalog.impossible_sizes()
        lines = catalog.limits().quotas
    except ProviderError as error:
        yield finding_for_error("groups", error, "look at 'oc get nodes' and 'oc get resourcequotas'")
        return
    for zone, group in settings.groups.items():
        yield _group(zone, group, there, capacity)
        for name in group.sizes:
            if (zone, name) in never:
                yield Finding(
                    f"size {name} of group {zone}", False, f"not offered: {never[zone, name]}",
                    "make it smaller or take it out, or have what keeps it out changed: 'oc describe nodes', "
                    "'oc describe quota', 'oc describe limits'",
                )  # fmt: skip
    for line in lines:
        yield from _quota(settings, line)


def _own(there: Sequence[ClusterNode], group: NodeGroup) -> list[ClusterNode]:
    return [node for node in there if nodes.matches_group(node, group)]


def _group(zone: str, group: NodeGroup, there: Sequence[ClusterNode] | None, capacity: FreeCapacity | None) -> Finding:
    """Its nodes, and how many machines of each size have room at this moment."""
    subject, sizes = f"group {zone}", first_few(list(group.sizes))
    if there is None:
        return Finding(subject, True, f"sizes {sizes}, as the settings have them; burstd may not see the nodes")
    own = _own(there, group)
    if not own and group.autoscaled:
        return Finding(subject, True, f"sizes {sizes}; no node now, and nodes come when pods wait")
    if not own:
        return Finding(
            subject, False, f"none of the cluster's {len(there)} nodes has the labels of selector and affinity",
            "compare them with 'oc get nodes --show-labels', or set autoscaled = true where nodes come when pods wait",
        )  # fmt: skip
    text = _nodes(group, own)
    good = nodes.usable_nodes(own, group)
    if not good:
        shut = next(filter(None, (nodes.untolerated_taints(node, group) for node in own)), "")
        remedy = "set tolerations to what 'oc describe node' has as taints" if shut else "oc describe node"
        return Finding(subject, False if shut else None, f"{text}: no pod may go there now", remedy)
    if capacity is None:
        return Finding(subject, True, text)
    free = {
        name: capacity.machines_now(group, nodes.machine_requests(group, size)) for name, size in group.sizes.items()
    }
    text += f"; free now: {', '.join(f'{number} {name}' for name, number in free.items())}"
    if any(free.values()) or group.autoscaled:
        return Finding(subject, True, text)
    return Finding(
        subject, None, text, "all is taken now: 'oc describe node' shows by what, or the sizes are too large"
    )


def _nodes(group: NodeGroup, own: Sequence[ClusterNode]) -> str:
    """How many, of which kind, and what is wrong with some."""
    products = sorted({node.labels.get(f"{group.gpu_resource}.product", "") for node in own} - {""})
    wrong = Counter(node.problem or nodes.untolerated_taints(node, group) for node in own)
    wrong.pop("", None)
    said = [f"{number} {why}" for why, number in sorted(wrong.items())]
    return ", ".join([f"{len(own)} node{'s' if len(own) > 1 else ''}", *products, *said])


def _quota(settings: OpenShiftSettings, line: QuotaLine) -> Iterator[Finding]:
    """For how many of the smallest and the largest machine it has room. Those for other things are not spoken of."""
    needs = {
        f"{name} of {zone}": wanted
        for zone, group in settings.groups.items()
        for name, size in group.sizes.items()
        if (wanted := quota_demand(settings, group, size).get(line.resource))
    }
    if not needs:
        return
    subject = f"quota {line.quota} {line.resource}"
    free = max(line.hard - line.used, line.hard * 0)
    text = f"{format_quantity(line.resource, line.used)} of {format_quantity(line.resource, line.hard)} in use"
    smallest_size, largest_size = min(needs, key=lambda name: needs[name]), max(needs, key=lambda name: needs[name])
    if needs[smallest_size] == needs[largest_size]:
        text += f", room for {round_down(free / needs[smallest_size])} machines"
    else:
        text += (
            f", room for {round_down(free / needs[largest_size])} {largest_size} or "
            f"{round_down(free / needs[smallest_size])} {smallest_size}"
        )
    if line.hard < needs[smallest_size]:
        yield Finding(subject, False, text, f"ask the namespace's administrator to raise {line.resource}")
    elif free < needs[smallest_size]:
        yield Finding(subject, None, f"{text}: all is taken now", "'oc get pods' shows by what")
    else:
        yield Finding(subject, True, text)


def smallest(group: NodeGroup) -> tuple[str, PodSize]:
    """The size that takes least."""
    return min(group.sizes.items(), key=lambda named: (named[1].gpus, named[1].cpus, named[1].memory, named[0]))
