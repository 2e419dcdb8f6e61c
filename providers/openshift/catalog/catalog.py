"""What can be started: the sizes of the settings' groups, where the cluster's nodes and limits leave them a chance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.cloud.read_limits import WholeList
from burstd.domain.errors import BadRequest, NotAllowed
from burstd.domain.slurm.shape import Gres, Shape
from providers.cache import Kept
from providers.openshift.catalog import nodes
from providers.openshift.catalog.limits import Limit, Range, limits, outside, ranges, short, takes
from providers.openshift.catalog.nodes import Node
from providers.openshift.client.calls import Calls
from providers.openshift.client.quantities import Amounts, told
from providers.openshift.errors import Expired, NoSuchApi
from providers.openshift.settings import Group, OpenShiftSettings, Size

QUOTAS = "quota.openshift.io"
_KEPT_S = 60.0
"""A node that joins is offered soon after."""
_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Limits:
    """Those of the namespace, as far as burstd may read them."""

    quotas: tuple[Limit, ...]
    ranges: tuple[Range, ...]


class Catalog:
    """Of one namespace, for one provider's settings. Used from many threads; makes no call before it is asked."""

    def __init__(
        self, name: str, settings: OpenShiftSettings, calls: Calls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._settings = settings
        self._calls = calls
        self._nodes = Kept(self._read_nodes, _KEPT_S, clock)
        self._limits = Kept(self.read_limits, _KEPT_S, clock)

    def offers(self) -> Sequence[Offer]:
        """One for each group and size, whether or not there is room now. Raises BadRequest where there is none."""
        never = self.never()
        offers = [
            self.offer(zone, name)
            for zone, group in self._settings.groups.items()
            for name in group.sizes
            if (zone, name) not in never
        ]
        if not offers:
            (zone, name), why = next(iter(never.items()))
            raise BadRequest(f"no size of any group can ever be had; size {name} of group {zone}: {why}")
        return offers

    def offer(self, zone: str, name: str) -> Offer:
        """That of a group's size, whether or not it can be had. Raises KeyError."""
        settings = self._settings
        group = settings.groups[zone]
        size = group.sizes[name]
        gres = (Gres("gpu", group.gres, size.gpus),) if size.gpus else ()
        own = [node for node in self.cluster_nodes() or () if nodes.belongs(node, group)]
        return Offer(
            provider=self._name, region=settings.namespace, zone=zone, instance_type=name, spot=False,
            shape=Shape(size.cpus, size.memory, gres), price=price(group, size), currency=settings.currency,
            price_source="settings", hardware=_hardware(group, size, own, settings.scratch.size),
            placing_s=settings.autoscale_s if group.autoscaled else settings.unschedulable_s,
        )  # fmt: skip

    def never(self) -> Mapping[tuple[str, str], str]:
        """Group and size -> why no machine of it can ever be had, going by what was read in the last minute."""
        there, bounds = self.cluster_nodes(), self.limits()
        found = {
            (zone, name): self._hopeless(group, size, there, bounds)
            for zone, group in self._settings.groups.items()
            for name, size in group.sizes.items()
        }
        return {key: why for key, why in found.items() if why}

    def cluster_nodes(self) -> Sequence[Node] | None:
        """Every node of the cluster as of the last minute; None: burstd may not see them, so settings are trusted."""
        return self._nodes.get()

    def limits(self) -> Limits:
        """Those that bear on our machines, as of the last minute; what burstd may not see is left out."""
        return self._limits.get()

    def read_taken(self) -> Mapping[str, Amounts] | None:
        """What pods of all namespaces take, by node, asked for now; None: burstd may not see them."""
        try:
            return self._taken()
        except Expired:  # The list that the pages are of is too old by now.
            return self._taken()
        except NotAllowed:
            return None

    def read_limits(self) -> Limits:
        """The same, asked for now."""
        own = self._listed(self._calls.place("resourcequotas"), "list the namespace's quotas")
        shared = self._listed(
            self._calls.place("appliedclusterresourcequotas", api=f"{QUOTAS}/v1"),
            "list OpenShift's quotas over several projects",
        )
        bounds = self._listed(self._calls.place("limitranges"), "list the namespace's LimitRanges")
        return Limits(
            tuple(line for quota in (*own, *shared) for line in limits(quota, self._settings)),
            tuple(line for one in bounds for line in ranges(one)),
        )

    def _read_nodes(self) -> Sequence[Node] | None:
        try:
            listed = self._calls.pages("/api/v1/nodes", what="list the cluster's nodes")
            return [nodes.parsed(one) for one in listed]
        except NotAllowed:
            return None

    def _listed(self, path: str, what: str) -> list[nodes.Thing]:
        try:
            return list(self._calls.pages(path, what=what))
        except (NotAllowed, NoSuchApi):
            return []

    def _taken(self) -> Mapping[str, Amounts]:
        """Page by page, as these may be very many pods."""
        taken: dict[str, dict[str, Decimal]] = {}
        asked = {"fieldSelector": _BOUND, "limit": self._settings.page}
        more, what = "", "list the pods of all namespaces"
        reading = WholeList(what, kept=False)
        while True:
            query = {**asked, "continue": more} if more else asked
            with reading.page():
                page = self._calls.ask("GET", "/api/v1/pods", query=query, what=what)
            nodes.add_requested(taken, reading.things(page.get("items")))
            more = page["metadata"].get("continue", "")
            if not more:
                return taken

    def _hopeless(self, group: Group, size: Size, there: Sequence[Node] | None, bounds: Limits) -> str:
        taken = takes(self._settings, group, size)
        refused = next(filter(None, (short(line, taken) for line in bounds.quotas)), "")
        refused = refused or outside(bounds.ranges, self._settings, group, size)
        if refused or there is None or group.autoscaled:
            return refused
        return unfit([node for node in there if nodes.belongs(node, group)], group, size)


def price(group: Group, size: Size) -> Decimal:
    """Of an hour."""
    if size.price is not None or group.prices is None:
        return size.price or Decimal(0)
    rates = group.prices
    return size.gpus * rates.gpu + size.cpus * rates.cpu + Decimal(size.memory) / 1024 * rates.memory_gib


def unfit(own: Sequence[Node], group: Group, size: Size) -> str:
    """Why none of the nodes that belong to a group can ever hold a machine of this size; empty: one can.

    What keeps pods out for now - a node that is not ready, or cordoned - does not count.
    """
    if not own:
        return "no node has the labels of its selector and affinity"
    open_ = [node for node in own if not nodes.shut(node, group)]
    if not open_:
        return f"of every node that belongs to it a {nodes.shut(own[0], group)}"
    wanted = nodes.need(group, size)
    if any(nodes.room(node.allocatable, {}, wanted) for node in open_):
        return ""
    most = {key: max(node.allocatable.get(key, Decimal(0)) for node in open_) for key in wanted}
    lacking = [key for key, value in wanted.items() if value > most[key]]
    words = [f"{told(key, wanted[key])} {key}, the largest has {told(key, most[key])}" for key in lacking]
    return f"it takes {'; '.join(words)}" if words else "none of its nodes has all of that"


def _hardware(group: Group, size: Size, own: Sequence[Node], scratch_mib: int) -> Hardware:
    """What all nodes of the group say alike, and the disk of its own. GPUs have the labels of NVIDIA's discovery."""
    architecture = {node.architecture for node in own}
    memory = {node.labels.get(f"{group.gpu_resource}.memory", "") for node in own} if size.gpus else set()
    said = memory.pop() if len(memory) == 1 else ""
    return Hardware(
        architecture=architecture.pop() if len(architecture) == 1 else "",
        gpu_memory_mib=int(said) if said.isdecimal() else 0,
        local_disk_gib=scratch_mib // 1024,
    )
