"""Whether projects can be promised what they are: quotas that can be kept, and no node in two groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations

from burstd.domain.project import NodeGroup, Project, gpu_number, gpus_text
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import shards_of_gpus
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.lifecycle.listing import abbreviated_list
from burstd.planner.placement.bins import shape_of
from burstd.planner.projects.division import quotas_in_force


def quota_faults(projects: Mapping[str, Project], nodes: Mapping[str, Node]) -> list[str]:
    """A sentence for each node group whose projects' quotas are more than its nodes have, cloud nodes among them, up or
    not.
    """
    quotas = quotas_in_force(projects)
    found = []
    for group, names in _groups(projects).items():
        there = sum(shape_of(node).gpus() for node in nodes.values() if group.has(node.partitions, node.features))
        given = sum((quotas[name] for name in names), Fraction(0))
        if given > there:
            shown = ", ".join(f"{name} {gpus_text(quotas[name])}" for name in sorted(names))
            if lacking := _lacking(group, nodes.values()):
                found.append(f"project {abbreviated_list(names)} has no nodes: {lacking}")
                continue
            found.append(
                f"quotas add up to {gpus_text(given)} ({shown}), and the nodes of {group} have {there}: lower one, or "
                "set overcommit = true in [fair_share] of burstd.toml"
            )
    return found


def _lacking(group: NodeGroup, nodes: Iterable[Node]) -> str:
    """What of a group's partitions and features no node has, and what there is; empty: some node is of the group."""
    partitions: set[str] = set()
    features: set[str] = set()
    for node in nodes:
        if group.has(node.partitions, node.features):
            return ""
        partitions.update(node.partitions)
        if not group.partitions.isdisjoint(node.partitions):
            features.update(node.features)
    if unknown := sorted(group.partitions - partitions):
        return f"there is no node in partition {' and '.join(unknown)} (partitions: {_listed(partitions)})"
    place = " and ".join(sorted(group.partitions))
    if unknown := sorted(group.features - features):
        return f"no node of {place} has feature {' and '.join(unknown)} (features: {_listed(features)})"
    return f"no node of {place} has all of the features {', '.join(sorted(group.features))}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def group_faults(projects: Mapping[str, Project], nodes: Mapping[str, Node]) -> list[str]:
    """A sentence for each two node groups that have nodes in common: the GPUs of these would be divided twice."""
    groups = _groups(projects)
    common: dict[tuple[NodeGroup, NodeGroup], list[str]] = {}
    for name, node in nodes.items() if len(groups) > 1 else ():
        for both in combinations([group for group in groups if group.has(node.partitions, node.features)], 2):
            common.setdefault(both, []).append(name)
    return [
        f"projects share all nodes or none, and {abbreviated_list(names)} {'is' if len(names) == 1 else 'are'} of "
        f"{one} (project {abbreviated_list(groups[one])}) and of {other} (project {abbreviated_list(groups[other])}): "
        "take them out of one of the partitions, change their features, or give these projects the same partitions "
        "and features"
        for (one, other), names in common.items()
    ]


def _groups(projects: Mapping[str, Project]) -> dict[NodeGroup, list[str]]:
    """The projects of each node group but those below others."""
    groups: dict[NodeGroup, list[str]] = {}
    for name, project in projects.items():
        if not project.parent and project.partitions:
            groups.setdefault(project.node_group, []).append(name)
    return groups


def part_faults(projects: Mapping[str, Project], nodes: Mapping[str, Node]) -> list[str]:
    """A sentence for each quota that is no whole number of GPUs where these have no shards, or of shards where all GPUs
    have the same number of them.
    """
    found = []
    for name, project in projects.items():
        if not project.account or project.quota.denominator == 1:
            continue
        group = project.node_group
        there = [node.gres for node in nodes.values() if group.has(node.partitions, node.features)]
        numbers = shards_of_gpus(there)
        if there and not numbers:
            kept = Fraction(project.quota.numerator // project.quota.denominator)
            found.append(
                f"project {name} has a quota of {gpus_text(project.quota)}, and the GPUs of {group} have no shards: it "
                f"counts as {gpus_text(kept)}; set quota to {gpu_number(kept)} or {gpu_number(kept + 1)}, or divide "
                "the GPUs into shards"
            )
        if len(numbers) == 1 and (project.quota * max(numbers)).denominator != 1:
            part = Fraction(1, max(numbers))
            kept = project.quota // part * part
            found.append(
                f"project {name} has a quota of {gpus_text(project.quota)}, and a GPU of "
                f"{group} has {max(numbers)} shards: {gpus_text(kept)} count; set quota to "
                f"{gpu_number(kept)} or {gpu_number(kept + part)}"
            )
    return found


def capacity_faults(projects: Mapping[str, Project], nodes: Mapping[str, Node], *, overcommit: bool) -> list[str]:
    """All of it. ``overcommit``: quotas may be more than there is."""
    too_much = [] if overcommit else quota_faults(projects, nodes)
    return [*group_faults(projects, nodes), *too_much, *part_faults(projects, nodes)]


def capacity_alarms(snapshot: Snapshot) -> list[str]:
    """Of the projects in force."""
    view = snapshot.projects
    if not view.projects or not isinstance(snapshot.slurm, SlurmView):
        return []
    return capacity_faults(view.projects, snapshot.slurm.nodes, overcommit=view.fair_share.overcommit)
