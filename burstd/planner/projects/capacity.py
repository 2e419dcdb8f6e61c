"""Quotas that cannot be kept: more GPUs than there are, or parts of one that no GPU has."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from burstd.domain.project import Project, gpu_number, gpus_text
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import shards_of_gpus
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.placement.bins import shape_of
from burstd.planner.projects.division import quotas_in_force


def quota_faults(projects: Mapping[str, Project], nodes: Mapping[str, Node]) -> list[str]:
    """A sentence for each node group whose projects' quotas are more than its nodes have, cloud nodes among them, up or
    not.
    """
    quotas = quotas_in_force(projects)
    groups: dict[frozenset[str], list[str]] = {}
    for name, project in projects.items():
        if not project.parent and project.partitions:
            groups.setdefault(frozenset(project.partitions), []).append(name)
    found = []
    for partitions, names in groups.items():
        there = sum(shape_of(node).gpus() for node in nodes.values() if not partitions.isdisjoint(node.partitions))
        given = sum((quotas[name] for name in names), Fraction(0))
        if given > there:
            shown = ", ".join(f"{name} {gpus_text(quotas[name])}" for name in sorted(names))
            where = " and ".join(sorted(partitions))
            found.append(
                f"quotas add up to {gpus_text(given)} ({shown}), and the nodes of {where} have {there}: lower one, or "
                "set overcommit = true in [fair_share] of burstd.toml"
            )
    return found


def part_faults(projects: Mapping[str, Project], nodes: Mapping[str, Node]) -> list[str]:
    """A sentence for each quota that is no whole number of shards, where all GPUs have the same number of them."""
    found = []
    for name, project in projects.items():
        if not project.account or project.quota.denominator == 1:
            continue
        own = set(project.partitions)
        numbers = shards_of_gpus(node.gres for node in nodes.values() if not own.isdisjoint(node.partitions))
        if len(numbers) == 1 and (project.quota * max(numbers)).denominator != 1:
            part = Fraction(1, max(numbers))
            kept = project.quota // part * part
            found.append(
                f"project {name} has a quota of {gpus_text(project.quota)}, and a GPU of "
                f"{' and '.join(project.partitions)} has {max(numbers)} shards: {gpus_text(kept)} count; set quota to "
                f"{gpu_number(kept)} or {gpu_number(kept + part)}"
            )
    return found


def quota_alarms(snapshot: Snapshot) -> list[str]:
    """Of the quotas in force."""
    view = snapshot.projects
    if not view.projects or not isinstance(snapshot.slurm, SlurmView):
        return []
    nodes = snapshot.slurm.nodes
    too_much = [] if view.fair_share.overcommit else quota_faults(view.projects, nodes)
    return [*too_much, *part_faults(view.projects, nodes)]
