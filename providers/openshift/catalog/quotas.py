"""What of the namespace's quotas and of the groups' nodes is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor

from burstd.domain.plugins.provider import Quota
from providers.openshift.catalog import nodes
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.catalog.limits import quota_demand
from providers.openshift.catalog.nodes import ClusterNode
from providers.openshift.client.quantities import Amounts, in_unit
from providers.openshift.settings import NodeGroup, OpenShiftSettings


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """The cluster's nodes, and what pods take of each."""

    nodes: Sequence[ClusterNode]
    taken: Mapping[str, Amounts]

    def machines_now(self, group: NodeGroup, wanted: Amounts) -> int:
        """How many machines that ask for ``wanted`` have room at this moment, whatever quotas say."""
        return sum(
            nodes.machines_that_fit(node.allocatable, self.taken.get(node.name, {}), wanted)
            for node in nodes.usable_nodes(self.nodes, group)
        )


class OpenShiftQuotas:
    """Those that bear on what the settings have burstd make."""

    def __init__(self, settings: OpenShiftSettings, catalog: OpenShiftCatalog) -> None:
        self._settings = settings
        self._catalog = catalog

    def read_quotas(self) -> Sequence[Quota]:
        """Quotas first, then what each group's nodes have together, where burstd may see nodes and all pods."""
        return [*self._lines(), *self._groups()]

    def free_capacity(self) -> FreeCapacity | None:
        """None: burstd may not see it."""
        there = self._catalog.cluster_nodes()
        taken = None if there is None else self._catalog.read_pod_requests()
        return None if there is None or taken is None else FreeCapacity(there, taken)

    def _lines(self) -> Iterator[Quota]:
        groups = self._settings.groups.values()
        counted = {
            key
            for group in groups
            for size in group.sizes.values()
            for key in quota_demand(self._settings, group, size)
        }
        for line in self._catalog.read_limits().quotas:
            if line.resource in counted:
                yield _quota(f"{line.quota} {line.resource}", line.resource, line.hard, line.used)

    def _groups(self) -> Iterator[Quota]:
        capacity = self.free_capacity()
        if capacity is None:
            return
        for zone, group in self._settings.groups.items():
            own = nodes.usable_nodes(capacity.nodes, group)
            wanted = {key for size in group.sizes.values() for key in nodes.machine_requests(group, size)} - {"pods"}
            for resource in sorted(wanted):
                yield _quota(
                    f"group {zone} {resource}", resource, *nodes.total_and_taken(own, capacity.taken, resource)
                )


def _quota(name: str, resource: str, limit: Decimal, used: Decimal) -> Quota:
    (most, word), (taken, _) = in_unit(resource, limit), in_unit(resource, used)
    return Quota(name, floor(most), ceil(taken), word)
