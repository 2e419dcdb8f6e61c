"""Moves small jobs together, where a large one has enough free GPUs for it, but not on one node."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.demand import PendingJob
from burstd.planner.demand.gres import returns_too_much
from burstd.planner.demand.request import RequestIndex, ResourceRequest
from burstd.planner.projects.demand import ProjectGroup, RunningJob, WaitingJobs
from burstd.planner.projects.room import Room, Taken, nodes_and_share, undo
from burstd.planner.projects.victims import Victim, exempt_until, may_requeue

LEAST_RUNTIME_S = 300.0
"""A job that has run for less is not moved, whatever its project's min_runtime_s is."""
_MAX_JOBS = 3
"""So many large jobs are looked at in one decision."""


def consolidate(group: ProjectGroup, snapshot: Snapshot) -> list[Victim]:
    """The jobs that are requeued so that one large job of one node starts: each has room on another node, or none is
    moved. One node is cleared in a decision.
    """
    movable = _movable(group, snapshot)
    if not movable:
        return []
    room = Room(group)
    for waiting in _large_jobs(group, snapshot):
        if steps := room.place(waiting.pending):
            undo(steps)
            continue
        options = [moved for name, some in movable.items() if (moved := _moved_from(name, some, waiting, room))]
        if options:
            moved = min(options, key=lambda some: (sum(r.gpus for r in some), some[0].jobs[0].node_list))
            node, job = moved[0].jobs[0].node_list[0], waiting.pending.job
            return [Victim(r.jobs[0], f"makes room on {node} for job {job.id}, and has room elsewhere") for r in moved]
    return []


def _movable(group: ProjectGroup, snapshot: Snapshot) -> dict[str, list[RunningJob]]:
    """By node, the jobs of one node that may be requeued, the youngest first."""
    found: dict[str, list[RunningJob]] = {}
    for jobs in group.projects.values():
        for running in jobs.running:
            if running.jobs[0].node_list[0] not in group.nodes:
                continue
            nodes = running.jobs[0].node_list
            until = max(exempt_until(running, jobs), running.jobs[0].start + LEAST_RUNTIME_S)
            if len(running.jobs) == len(nodes) == 1 and until <= snapshot.now and may_requeue(running, snapshot):
                found.setdefault(nodes[0], []).append(running)
    for some in found.values():
        some.sort(key=lambda running: -running.jobs[0].start)
    return found


def _large_jobs(group: ProjectGroup, snapshot: Snapshot) -> list[WaitingJobs]:
    """The first jobs of one node that are within their project's share, and for which there are GPUs enough."""
    free = group.total - sum((jobs.gpus for jobs in group.projects.values()), Fraction(0))
    found: dict[ResourceRequest, WaitingJobs] = {}
    for name, jobs in group.projects.items():
        left = min(free, group.shares[name] - jobs.gpus)
        for waiting in jobs.waiting if left > 0 else ():
            one_node = not waiting.pending.other_components and waiting.pending.request.requirements.nodes == 1
            if one_node and 1 < waiting.gpus <= left and waiting.due(jobs.project) <= snapshot.now:
                found.setdefault(waiting.pending.request, waiting)
    return list(found.values())[:_MAX_JOBS]


def _moved_from(node: str, some: list[RunningJob], waiting: WaitingJobs, room: Room) -> list[RunningJob]:
    """As few of the jobs on a node as it takes, the youngest first; none where one of them has no room elsewhere."""
    request = waiting.pending.request
    _, share = nodes_and_share(request)
    steps: Taken = []
    moved: list[RunningJob] = []
    for running in some:
        steps += room.vacate(running.jobs)
        moved.append(running)
        if room.takes(node, request, share):
            break
    possible = room.takes(node, request, share) and not returns_too_much(room.bins[node].gres, share.gres)
    for running in moved if possible else ():
        elsewhere = room.place(_again(running.jobs[0]), without=[node])
        steps += elsewhere
        possible = possible and bool(elsewhere)
    undo(steps)
    return moved if possible else []


def _again(job: Job) -> PendingJob:
    """A running job as it will wait: on any node."""
    waiting = replace(job, node_list=())
    return PendingJob(waiting, RequestIndex().request_for(waiting))
