"""Whether the cluster has nodes for the groups, whether sizes fit them and the namespace's limits, and what is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding
from providers.openshift.catalog import nodes
from providers.openshift.catalog.catalog import Catalog
from providers.openshift.catalog.limits import Limit, takes
from providers.openshift.catalog.nodes import Node
from providers.openshift.catalog.quotas import Quotas, Room
from providers.openshift.checks.findings import failed, some
from providers.openshift.client.quantities import floor, told
from providers.openshift.settings import Group, OpenShiftSettings, Size


def supply(settings: OpenShiftSettings, catalog: Catalog, quotas: Quotas) -> Iterator[Finding]:
    """Groups, sizes, quotas. What burstd may not see was said with its rights."""
    try:
        there = catalog.cluster_nodes()
        room = quotas.room()
        never = catalog.never()
        lines = catalog.limits().quotas
    except ProviderError as error:
        yield failed("groups", error, "look at 'oc get nodes' and 'oc get resourcequotas'")
        return
    for zone, group in settings.groups.items():
        yield _group(zone, group, there, room)
        for name in group.sizes:
            if (zone, name) in never:
                yield Finding(
                    f"size {name} of group {zone}", False, f"not offered: {never[zone, name]}",
                    "make it smaller or take it out, or have what keeps it out changed: 'oc describe nodes', "
                    "'oc describe quota', 'oc describe limits'",
                )  # fmt: skip
    for line in lines:
        yield from _quota(settings, line)


def _own(there: Sequence[Node], group: Group) -> list[Node]:
    return [node for node in there if nodes.belongs(node, group)]


def _group(zone: str, group: Group, there: Sequence[Node] | None, room: Room | None) -> Finding:
    """Its nodes, and how many machines of each size have room at this moment."""
    subject, sizes = f"group {zone}", some(list(group.sizes))
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
    good = nodes.usable(own, group)
    if not good:
        shut = next(filter(None, (nodes.shut(node, group) for node in own)), "")
        remedy = "set tolerations to what 'oc describe node' has as taints" if shut else "oc describe node"
        return Finding(subject, False if shut else None, f"{text}: no pod may go there now", remedy)
    if room is None:
        return Finding(subject, True, text)
    free = {name: room.now(group, nodes.need(group, size)) for name, size in group.sizes.items()}
    text += f"; free now: {', '.join(f'{number} {name}' for name, number in free.items())}"
    if any(free.values()) or group.autoscaled:
        return Finding(subject, True, text)
    return Finding(
        subject, None, text, "all is taken now: 'oc describe node' shows by what, or the sizes are too large"
    )


def _nodes(group: Group, own: Sequence[Node]) -> str:
    """How many, of which kind, and what is wrong with some."""
    products = sorted({node.labels.get(f"{group.gpu_resource}.product", "") for node in own} - {""})
    wrong = Counter(node.problem or nodes.shut(node, group) for node in own)
    wrong.pop("", None)
    said = [f"{number} {why}" for why, number in sorted(wrong.items())]
    return ", ".join([f"{len(own)} node{'s' if len(own) > 1 else ''}", *products, *said])


def _quota(settings: OpenShiftSettings, line: Limit) -> Iterator[Finding]:
    """For how many of the smallest and the largest machine it has room. Those for other things are not spoken of."""
    needs = {
        f"{name} of {zone}": wanted
        for zone, group in settings.groups.items()
        for name, size in group.sizes.items()
        if (wanted := takes(settings, group, size).get(line.resource))
    }
    if not needs:
        return
    subject = f"quota {line.quota} {line.resource}"
    free = max(line.hard - line.used, line.hard * 0)
    text = f"{told(line.resource, line.used)} of {told(line.resource, line.hard)} in use"
    small, large = min(needs, key=lambda name: needs[name]), max(needs, key=lambda name: needs[name])
    if needs[small] == needs[large]:
        text += f", room for {floor(free / needs[small])} machines"
    else:
        text += f", room for {floor(free / needs[large])} {large} or {floor(free / needs[small])} {small}"
    if line.hard < needs[small]:
        yield Finding(subject, False, text, f"ask the namespace's administrator to raise {line.resource}")
    elif free < needs[small]:
        yield Finding(subject, None, f"{text}: all is taken now", "'oc get pods' shows by what")
    else:
        yield Finding(subject, True, text)


def smallest(group: Group) -> tuple[str, Size]:
    """The size that takes least."""
    return min(group.sizes.items(), key=lambda named: (named[1].gpus, named[1].cpus, named[1].memory, named[0]))
