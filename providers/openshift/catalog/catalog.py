"""What can be started: the sizes of the settings' groups, where the cluster's nodes and limits leave them a chance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.cloud.read_limits import BoundedList
from burstd.domain.errors import BadRequest, NotAllowed
from burstd.domain.slurm.shape import Gres, Shape
from providers.cache import CachedValue
from providers.openshift.catalog import nodes
from providers.openshift.catalog.limits import (
    LimitRangeLine,
    QuotaLine,
    limit_range_lines,
    limit_range_violation,
    quota_demand,
    quota_lines,
    quota_shortage,
)
from providers.openshift.catalog.nodes import ClusterNode
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.quantities import Amounts, format_quantity
from providers.openshift.errors import NoSuchApi, ResourceVersionExpired
from providers.openshift.settings import NodeGroup, OpenShiftSettings, PodSize

QUOTAS = "quota.openshift.io"
_CACHE_S = 60.0
"""A node that joins is offered soon after."""
_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """Those of the namespace, as far as burstd may read them."""

    quotas: tuple[QuotaLine, ...]
    ranges: tuple[LimitRangeLine, ...]


class OpenShiftCatalog:
    """Of one namespace, for one provider's settings. Used from many threads; makes no call before it is asked."""

    def __init__(
        self, name: str, settings: OpenShiftSettings, calls: OpenShiftCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._settings = settings
        self._calls = calls
        self._nodes = CachedValue(self._read_nodes, _CACHE_S, clock)
        self._limits = CachedValue(self.read_limits, _CACHE_S, clock)

    def offers(self) -> Sequence[Offer]:
        """One for each group and size, whether or not there is room now. Raises BadRequest where there is none."""
        never = self.impossible_sizes()
        offers = [
            self.offer_for_size(zone, name)
            for zone, group in self._settings.groups.items()
            for name in group.sizes
            if (zone, name) not in never
        ]
        if not offers:
            (zone, name), why = next(iter(never.items()))
            raise BadRequest(f"no size of any group can ever be had; size {name} of group {zone}: {why}")
        return offers

    def offer_for_size(self, zone: str, name: str) -> Offer:
        """That of a group's size, whether or not it can be had. Raises KeyError."""
        settings = self._settings
        group = settings.groups[zone]
        size = group.sizes[name]
        gres = (Gres("gpu", group.gres, size.gpus),) if size.gpus else ()
        own = [node for node in self.cluster_nodes() or () if nodes.matches_group(node, group)]
        return Offer(
            provider=self._name, region=settings.namespace, zone=zone, instance_type=name, spot=False,
            shape=Shape(size.cpus, size.memory, gres), price=hourly_price(group, size), currency=settings.currency,
            price_source="settings", hardware=_hardware(group, size, own, settings.scratch.size),
            egress_price=settings.egress_gb,
            capacity_wait_s=settings.autoscale_s if group.autoscaled else settings.unschedulable_s,
        )  # fmt: skip

    def impossible_sizes(self) -> Mapping[tuple[str, str], str]:
        """Group and size -> why no machine of it can ever be had, going by what was read in the last minute."""
        there, bounds = self.cluster_nodes(), self.limits()
        found = {
            (zone, name): self._impossible_reason(group, size, there, bounds)
            for zone, group in self._settings.groups.items()
            for name, size in group.sizes.items()
        }
        return {key: why for key, why in found.items() if why}

    def cluster_nodes(self) -> Sequence[ClusterNode] | None:
        """Every node of the cluster as of the last minute; None: burstd may not see them, so settings are trusted."""
        return self._nodes.get()

    def limits(self) -> NamespaceLimits:
        """Those that bear on our machines, as of the last minute; what burstd may not see is left out."""
        return self._limits.get()

    def read_pod_requests(self) -> Mapping[str, Amounts] | None:
        """What pods of all namespaces take, by node, asked for now; None: burstd may not see them."""
        try:
            return self._read_pod_requests()
        except ResourceVersionExpired:  # The list that the pages are of is too old by now.
            return self._read_pod_requests()
        except NotAllowed:
            return None

    def read_limits(self) -> NamespaceLimits:
        """The same, asked for now."""
        own = self._listed(self._calls.path_of("resourcequotas"), "list the namespace's quotas")
        shared = self._listed(
            self._calls.path_of("appliedclusterresourcequotas", api=f"{QUOTAS}/v1"),
            "list OpenShift's quotas over several projects",
        )
        bounds = self._listed(self._calls.path_of("limitranges"), "list the namespace's LimitRanges")
        return NamespaceLimits(
            tuple(line for quota in (*own, *shared) for line in quota_lines(quota, self._settings)),
            tuple(line for one in bounds for line in limit_range_lines(one)),
        )

    def _read_nodes(self) -> Sequence[ClusterNode] | None:
        try:
            listed = self._calls.pages("/api/v1/nodes", what="list the cluster's nodes")
            return [nodes.parse_node(one) for one in listed]
        except NotAllowed:
            return None

    def _listed(self, path: str, what: str) -> list[nodes.KubeObject]:
        try:
            return list(self._calls.pages(path, what=what))
        except (NotAllowed, NoSuchApi):
            return []

    def _read_pod_requests(self) -> Mapping[str, Amounts]:
        """Page by page, as these may be very many pods."""
        taken: dict[str, dict[str, Decimal]] = {}
        asked = {"fieldSelector": _BOUND, "limit": self._settings.page}
        more, what = "", "list the pods of all namespaces"
        reading = BoundedList(what, keeps_items=False)
        while True:
            query = {**asked, "continue": more} if more else asked
            with reading.page():
                page = self._calls.request_json("GET", "/api/v1/pods", query=query, what=what)
            nodes.add_requested(taken, reading.items(page.get("items")))
            more = page["metadata"].get("continue", "")
            if not more:
                return taken

    def _impossible_reason(
        self, group: NodeGroup, size: PodSize, there: Sequence[ClusterNode] | None, bounds: NamespaceLimits
    ) -> str:
        taken = quota_demand(self._settings, group, size)
        refused = next(filter(None, (quota_shortage(line, taken) for line in bounds.quotas)), "")
        refused = refused or limit_range_violation(bounds.ranges, self._settings, group, size)
        if refused or there is None or group.autoscaled:
            return refused
        return no_node_fits_reason([node for node in there if nodes.matches_group(node, group)], group, size)


def hourly_price(group: NodeGroup, size: PodSize) -> Decimal:
    """Of an hour."""
    if size.price is not None or group.prices is None:
        return size.price or Decimal(0)
    rates = group.prices
    return size.gpus * rates.gpu + size.cpus * rates.cpu + Decimal(size.memory) / 1024 * rates.memory_gib


def no_node_fits_reason(own: Sequence[ClusterNode], group: NodeGroup, size: PodSize) -> str:
    """Why none of the nodes that belong to a group can ever hold a machine of this size; empty: one can.

    What keeps pods out for now - a node that is not ready, or cordoned - does not count.
    """
    if not own:
        return "no node has the labels of its selector and affinity"
    open_ = [node for node in own if not nodes.untolerated_taints(node, group)]
    if not open_:
        return f"of every node that belongs to it a {nodes.untolerated_taints(own[0], group)}"
    wanted = nodes.machine_requests(group, size)
    if any(nodes.machines_that_fit(node.allocatable, {}, wanted) for node in open_):
        return ""
    most = {key: max(node.allocatable.get(key, Decimal(0)) for node in open_) for key in wanted}
    lacking = [key for key, value in wanted.items() if value > most[key]]
    words = [
        f"{format_quantity(key, wanted[key])} {key}, the largest has {format_quantity(key, most[key])}"
        for key in lacking
    ]
    return f"it takes {'; '.join(words)}" if words else "none of its nodes has all of that"


def _hardware(group: NodeGroup, size: PodSize, own: Sequence[ClusterNode], scratch_mib: int) -> Hardware:
    """What all nodes of the group say alike, and the disk of its own. GPUs have the labels of NVIDIA's discovery."""
    architecture = {node.architecture for node in own}
    memory = {node.labels.get(f"{group.gpu_resource}.memory", "") for node in own} if size.gpus else set()
    said = memory.pop() if len(memory) == 1 else ""
    return Hardware(
        architecture=architecture.pop() if len(architecture) == 1 else "",
        gpu_memory_mib=int(said) if said.isdecimal() else 0,
        local_disk_gib=scratch_mib // 1024,
        placement="topology-key" if group.affinity.get("podAffinity") else "",
    )
