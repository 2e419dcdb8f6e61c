"""What of the namespace's quotas and of the groups' nodes is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.plugins.provider import Quota
from providers.openshift.catalog import nodes
from providers.openshift.catalog.catalog import Catalog
from providers.openshift.catalog.limits import takes
from providers.openshift.catalog.nodes import Node
from providers.openshift.client.quantities import Amounts, ceiling, floor, unit
from providers.openshift.settings import Group, OpenShiftSettings


@dataclass(frozen=True, slots=True)
class Room:
    """The cluster's nodes, and what pods take of each."""

    nodes: Sequence[Node]
    taken: Mapping[str, Amounts]

    def now(self, group: Group, wanted: Amounts) -> int:
        """How many machines that ask for ``wanted`` have room at this moment, whatever quotas say."""
        return sum(
            nodes.room(node.allocatable, self.taken.get(node.name, {}), wanted)
            for node in nodes.usable(self.nodes, group)
        )


class Quotas:
    """Those that bear on what the settings have burstd make."""

    def __init__(self, settings: OpenShiftSettings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog

    def read(self) -> Sequence[Quota]:
        """Quotas first, then what each group's nodes have together, where burstd may see nodes and all pods."""
        return [*self._lines(), *self._groups()]

    def room(self) -> Room | None:
        """None: burstd may not see it."""
        there = self._catalog.cluster_nodes()
        taken = None if there is None else self._catalog.read_taken()
        return None if there is None or taken is None else Room(there, taken)

    def _lines(self) -> Iterator[Quota]:
        groups = self._settings.groups.values()
        ours = {key for group in groups for size in group.sizes.values() for key in takes(self._settings, group, size)}
        for line in self._catalog.read_limits().quotas:
            if line.resource in ours:
                yield _quota(f"{line.quota} {line.resource}", line.resource, line.hard, line.used)

    def _groups(self) -> Iterator[Quota]:
        room = self.room()
        if room is None:
            return
        for zone, group in self._settings.groups.items():
            own = nodes.usable(room.nodes, group)
            wanted = {key for size in group.sizes.values() for key in nodes.need(group, size)} - {"pods"}
            for resource in sorted(wanted):
                yield _quota(f"group {zone} {resource}", resource, *nodes.total(own, room.taken, resource))


def _quota(name: str, resource: str, limit: Decimal, used: Decimal) -> Quota:
    (most, word), (taken, _) = unit(resource, limit), unit(resource, used)
    return Quota(name, floor(most), ceiling(taken), word)
