"""Whether quotas add up to more GPUs than there are: then no promise is worth anything."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from burstd.domain.project import Project, gpus_text
from burstd.domain.slurm.node import Node
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


def quota_alarms(snapshot: Snapshot) -> list[str]:
    """Of the quotas in force; none where the site wants it so."""
    view = snapshot.projects
    if not view.projects or view.fair_share.overcommit or not isinstance(snapshot.slurm, SlurmView):
        return []
    return quota_faults(view.projects, snapshot.slurm.nodes)
