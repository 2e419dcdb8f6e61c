"""The room on a group's nodes, and what it would be if some of its running jobs were requeued."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from burstd.domain.slurm.job import Job
from burstd.planner.demand.demand import PendingJob
from burstd.planner.demand.job_requirements import NodeShare, resource_requirements
from burstd.planner.demand.request import ResourceRequest
from burstd.planner.placement.bins import BinCheckpoint, BinFactory, BinKind
from burstd.planner.projects.demand import ProjectGroup

Taken = list[BinCheckpoint]
"""How to undo a step; an empty one is none."""


class Room:
    """Free CPUs, memory and GRES of each node, while jobs are put there and taken away in thought."""

    def __init__(self, group: ProjectGroup) -> None:
        factory = BinFactory()
        self.bins = {name: factory.node_bin(node, BinKind.SITE_NODE, 0.0) for name, node in group.nodes.items()}
        self._shares: dict[str, NodeShare] = {}
        # What leaves is not there any more: nobody else need go for what it gives.
        self.vacate(group.completing)
        for jobs in group.projects.values():
            for running in jobs.running:
                self.vacate(running.jobs if running.gives else ())

    def place(self, pending: PendingJob, without: Collection[str] = ()) -> Taken:
        """Puts one task of it, or all components of a het job, on nodes but these; empty where there is no room."""
        taken: Taken = []
        for _, request in pending.components:
            nodes, share = nodes_and_share(request)
            full = {saved.bin.name for saved in taken}.union(without)
            found = [name for name in self.bins if name not in full and self.takes(name, request, share)][:nodes]
            if len(found) < nodes:
                undo(taken)
                return []
            taken += self.put(found, share)
        return taken

    def put(self, names: Iterable[str], share: NodeShare) -> Taken:
        """Takes as much of each of these nodes."""
        taken: Taken = []
        for name in names:
            taken.append(BinCheckpoint.save(self.bins[name]))
            self.bins[name].allocate(share)
        return taken

    def takes(self, name: str, request: ResourceRequest, share: NodeShare) -> bool:
        """Whether a node has room for its part of a job, and the job may run there."""
        found = self.bins[name]
        return (
            found.fits(share)
            and request.allows_node(name)
            and request.requirements.constraint.may_use(found.traits.features)
        )

    def vacate(self, jobs: Iterable[Job]) -> Taken:
        """Takes running jobs off their nodes."""
        taken: Taken = []
        for job in jobs:
            share = self._share_of(job)
            for found in (self.bins[name] for name in job.node_list if name in self.bins):
                taken.append(BinCheckpoint.save(found))
                found.cpus += share.cpus
                found.memory_mib += share.memory_mib
                found.gres = found.gres.copy()
                found.gres.give_back(share.gres)
        return taken

    def _share_of(self, job: Job) -> NodeShare:
        """What a running job has of each of its nodes."""
        known = self._shares.get(job.id)
        if known is None:
            nodes = max(1, len(job.node_list))
            known = self._shares[job.id] = resource_requirements(job).share_per_node(nodes)
        return known


def undo(taken: Taken) -> None:
    """Undoes steps, the last first."""
    while taken:
        taken.pop().restore()


def nodes_and_share(request: ResourceRequest) -> tuple[int, NodeShare]:
    """The fewest nodes of a job, and what each of them gives."""
    wanted = request.requirements
    nodes = max(wanted.nodes, wanted.constraint.min_nodes)
    return nodes, wanted.share_per_node(nodes)
