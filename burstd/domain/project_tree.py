"""The tree of projects: which have jobs, whose nodes they share, and what is wrong between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction

from burstd.domain.project import NodeGroup, Project


def leaves_of(projects: Mapping[str, Project]) -> list[Project]:
    """Those in which jobs run."""
    parents = {project.parent for project in projects.values()}
    return [project for project in projects.values() if project.name not in parents]


def pairs_on(partitions: Iterable[str], features: AbstractSet[str], projects: Mapping[str, Project]) -> tuple[str, ...]:
    """The partitions of all projects whose node group has the nodes of these partitions with these features."""
    there = frozenset(partitions)
    return tuple(
        name
        for project in leaves_of(projects)
        if project.node_group.has(there, features)
        for name in (project.quota_partition, project.over_quota_partition)
    )


def group_of(name: str, projects: Mapping[str, Project]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Partitions and features of a project, or of the nearest above it that has any. The tree must have no loop."""
    while name and not projects[name].partitions:
        name = projects[name].parent
    return (projects[name].partitions, projects[name].features) if name else ((), ())


def tree_faults(projects: Mapping[str, Project]) -> Iterator[tuple[str, str, str]]:
    """What is wrong between projects: the project, its key, and a sentence with the remedy."""
    parents = {project.parent for project in projects.values()}
    sound = True
    for name, project in projects.items():
        if project.parent and project.parent not in projects:
            known = ", ".join(sorted(projects.keys() - {name})) or "none"
            yield name, "parent", f"no project is called {project.parent!r}; known: {known}"
            sound = False
        elif loop := _loop(name, projects):
            yield name, "parent", f"makes a loop: {' -> '.join(loop)}; leave it out of one of them"
            sound = False
    by_account = Counter(project.account for project in projects.values() if project.account)
    for name, project in projects.items():
        if name in parents and project.account:
            children = ", ".join(sorted(child.name for child in projects.values() if child.parent == name))
            yield name, "account", f"jobs run in projects without children, and this one has {children}; leave it out"
        elif name not in parents and not project.account:
            yield name, "account", "must be set: the Slurm account whose jobs the project has"
        elif by_account[project.account] > 1 and project.account:
            others = sorted(p.name for p in projects.values() if p.account == project.account and p.name != name)
            yield name, "account", f"{project.account} is the account of project {others[0]} too; give each its own"
    if sound:
        yield from _group_faults(projects, parents)
        yield from _quota_faults(projects, parents)


def _loop(name: str, projects: Mapping[str, Project]) -> list[str]:
    """The way from a project back to it; empty: there is none."""
    way = [name]
    while (above := projects[way[-1]].parent) in projects and above not in way:
        way.append(above)
    return [*way, name] if above == name else []


def _group_faults(projects: Mapping[str, Project], parents: set[str]) -> Iterator[tuple[str, str, str]]:
    groups = {name: NodeGroup(*map(frozenset, group_of(name, projects))) for name in projects}
    for name, group in groups.items():
        project = projects[name]
        if project.features and not project.partitions:
            yield name, "features", "are of nodes of partitions: set partitions as well, or leave features out"
        elif not group.partitions and name not in parents:
            yield name, "partitions", "must be set: the partitions whose nodes the project shares with others"
        elif project.parent and group != groups[project.parent]:
            key = "partitions" if group.partitions != groups[project.parent].partitions else "features"
            yield name, key, f"must be those of its parent {project.parent}: set them there, and leave them out here"
        for other in sorted(groups):
            if other > name and (text := _overlap(group, groups[other], other)):
                yield name, "features" if group.partitions == groups[other].partitions else "partitions", text


def _overlap(group: NodeGroup, other: NodeGroup, name: str) -> str:
    """Why two projects would share some of their nodes; empty: they share all, or what they share only nodes tell."""
    shared = group.partitions & other.partitions
    if group == other or not shared or not (group.features <= other.features or group.features >= other.features):
        return ""
    common, rule = ", ".join(sorted(shared)), "projects share all nodes or none"
    if group.features == other.features:
        return f"has {common} in common with project {name}, but not all: {rule}"
    return (
        f"has nodes of {group}, and project {name} those of {other}, which are some of the same: {rule}; give each "
        "features that no node of the other has"
    )


def _quota_faults(projects: Mapping[str, Project], parents: set[str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(parents - {""}):
        parent = projects[name]
        given = sum((p.quota for p in projects.values() if p.parent == name), Fraction(0))
        if parent.quota and given > parent.quota:
            text = f"its children have {given} GPUs of quota together, more than its own {parent.quota}"
            yield name, "quota", f"{text}: raise it, or leave it out"
        elif parent.limit is not None and given > parent.limit:
            yield name, "limit", f"its children have {given} GPUs of quota together: raise it to that at least"
