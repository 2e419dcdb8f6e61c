"""Which jobs are requeued so that projects below their share get it.

slurmctld itself takes back what is within a quota: the quota partition preempts all over-quota partitions. Here it is
about what quotas leave. Victims are of projects above their share, which they keep: so two projects never push each
other out in turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from burstd.domain.project import OverQuotaLimits, gpus_text
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.gres import returns_too_much
from burstd.planner.demand.job_requirements import NodeShare
from burstd.planner.demand.request import ResourceRequest
from burstd.planner.projects.demand import ProjectGroup, ProjectJobs, RunningJob, WaitingJobs
from burstd.planner.projects.room import Room, Taken, nodes_and_share, undo

_MAX_TASKS = 50
"""So many tasks that wait are looked at in one decision; the next one goes on."""
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Victim:
    """A job that is to be requeued, and why."""

    job: Job
    reason: str


@dataclass(slots=True)
class Reclaim:
    """What is to be requeued now, and when to look again."""

    victims: list[Victim] = field(default_factory=list)
    wake_at: float = NEVER


@dataclass(slots=True, eq=False)
class _Candidate:
    rank: int
    """Its turn."""
    project: str
    running: RunningJob
    requeued: bool = False

    @property
    def nodes(self) -> list[str]:
        return [name for job in self.running.jobs for name in job.node_list]


@dataclass(frozen=True, slots=True, order=True)
class _Option:
    """A node that can have room. Of two the one that costs fewer GPUs is less, then the one whose turn it is."""

    gpus: Fraction
    rank: int
    node: str
    victims: list[_Candidate] = field(compare=False)


def may_requeue(running: RunningJob, snapshot: Snapshot) -> bool:
    """Whether a running job may be requeued for others, but for the time that it has run."""
    job = running.jobs[0]
    known = running.leaving or (job.het_job_id or job.id, job.restarts) in snapshot.runtime_state.requeued
    return running.over_quota and not known and all(part.requeue for part in running.jobs) and running.gpus > 0


def exempt_until(running: RunningJob, jobs: ProjectJobs) -> float:
    """When it has run for the least time that its project grants."""
    return running.jobs[0].start + jobs.project.min_runtime_s


def reclaim(group: ProjectGroup, wanted: Mapping[str, OverQuotaLimits], snapshot: Snapshot) -> Reclaim:
    """Who is requeued for whom. ``wanted``: the limits of the group's projects.

    Nothing is requeued for, or of, a project whose limits are not in force: whoever may start more than its share would
    take the room.
    """
    return _Reclaimer(group, wanted, snapshot).run()


class _Reclaimer:
    """One look at a group."""

    def __init__(self, group: ProjectGroup, wanted: Mapping[str, OverQuotaLimits], snapshot: Snapshot) -> None:
        self._group, self._snapshot = group, snapshot
        there = snapshot.projects.limits
        self._settled = {name for name in group.projects if there.get(name) == wanted[name]}
        self._found = Reclaim()
        self._excess = {name: jobs.gpus - jobs.leaving - group.shares[name] for name, jobs in group.projects.items()}
        self._by_node: dict[str, list[_Candidate]] = {}
        """By node, who may be requeued there, first those who are first."""

    def run(self) -> Reclaim:
        self._read_candidates()
        if not self._by_node:
            return self._found
        self._room = Room(self._group)
        self._known: dict[Hashable, dict[str, _Option | None]] = {}
        in_vain: set[Hashable] = set()
        # Jobs that leave do so for somebody, who may be given another place now than when they were chosen.
        stay = (r.gpus for jobs in self._group.projects.values() for r in jobs.running if not r.gives)
        promised = self._group.total - sum(stay, Fraction(0)) if self._group.leaving else Fraction(0)
        for name, waiting in self._due():
            what = tuple(_what(request) for _, request in waiting.pending.components)
            if what in in_vain:
                continue
            if self._room.place(waiting.pending) or waiting.gpus <= promised:
                promised -= waiting.gpus
                continue
            victims = self._make_room(waiting)
            if not victims:
                in_vain.add(what)
            for victim in victims:
                self._found.victims.append(Victim(victim.running.jobs[0], self._reason(victim, name)))
                self._excess[victim.project] -= victim.running.gpus
        return self._found

    def _read_candidates(self) -> None:
        """Of projects above their share, the farthest first; the youngest jobs of each first."""
        projects, rank = self._group.projects, count()
        above = [name for name in projects if self._excess[name] > 0 and name in self._settled]
        for name in sorted(above, key=lambda n: (-self._excess[n] / (projects[n].project.quota or 1), n)):
            jobs = projects[name]
            some = [r for r in jobs.running if may_requeue(r, self._snapshot)]
            for running in sorted(some, key=lambda r: (-r.jobs[0].start, r.jobs[0].id)):
                until = exempt_until(running, jobs)
                if until > self._snapshot.now:
                    self._found.wake_at = min(self._found.wake_at, until)
                    continue
                candidate = _Candidate(next(rank), name, running)
                for node in candidate.nodes:
                    self._by_node.setdefault(node, []).append(candidate)

    def _due(self) -> Iterator[tuple[str, WaitingJobs]]:
        """What waits beyond the quota and within the share for long enough, task by task; the poorest project first."""
        projects, shares, tasks = self._group.projects, self._group.shares, 0
        below = [name for name in projects if self._excess[name] < 0 and name in self._settled]
        for name in sorted(below, key=lambda n: (projects[n].gpus / shares[n], n)):
            jobs = projects[name]
            within, have = jobs.within, jobs.gpus
            for waiting in jobs.waiting:
                job = waiting.pending.job
                for _ in range(waiting.tasks if waiting.gpus else 0):
                    if have + waiting.gpus > shares[name]:
                        break
                    have += waiting.gpus
                    if jobs.project.quota_partition in job.partitions and within + waiting.gpus <= jobs.project.quota:
                        within += waiting.gpus
                        continue
                    if (due := waiting.due(jobs.project)) > self._snapshot.now:
                        self._found.wake_at = min(self._found.wake_at, due)
                        break
                    tasks += 1
                    if tasks > _MAX_TASKS:
                        return
                    yield name, waiting

    def _make_room(self, waiting: WaitingJobs) -> list[_Candidate]:
        """Puts a job where others run, and returns these; none where that is not possible."""
        victims: list[_Candidate] = []
        steps: Taken = []
        for _, request in waiting.pending.components:
            nodes, share = nodes_and_share(request)
            chosen: list[str] = []
            more: list[_Candidate] = []
            for option in sorted(self._options(request, share)):
                union = [*more, *(c for c in option.victims if c not in more)]
                if self._keep_their_shares([*victims, *union]):
                    chosen, more = [*chosen, option.node], union
                    if len(chosen) == nodes:
                        break
            if len(chosen) < nodes:
                undo(steps)
                for victim in victims:
                    victim.requeued = False
                return []
            for victim in more:
                victim.requeued = True
                steps += self._room.vacate(victim.running.jobs)
            steps += self._room.put(chosen, share)
            victims += more
        touched = {saved.bin.name for saved in steps}
        for known in self._known.values():
            for node in touched:
                known.pop(node, None)
        return victims

    def _options(self, request: ResourceRequest, share: NodeShare) -> Iterator[_Option]:
        """Nodes that can have room for their part of a job, and whom that takes."""
        known = self._known.setdefault(_what(request), {})
        for node in self._room.bins:
            option = known.get(node)
            if node not in known or (option is not None and not self._may_be_taken(option.victims)):
                option = known[node] = self._whom_it_takes(node, request, share)
            if option is not None:
                yield option

    def _whom_it_takes(self, node: str, request: ResourceRequest, share: NodeShare) -> _Option | None:
        """As few as make room on a node, the first ones first; None: all of them do not."""

        def have_room(some: Iterable[_Candidate], *, sparing: bool = False) -> bool:
            steps = [step for candidate in some for step in self._room.vacate(candidate.running.jobs)]
            found = self._room.takes(node, request, share)
            found = found and not (sparing and returns_too_much(self._room.bins[node].gres, share.gres))
            undo(steps)
            return found

        there: list[_Candidate] = []
        for candidate in self._by_node.get(node, ()):
            if self._may_be_taken([*there, candidate]):
                there.append(candidate)
        needed: list[_Candidate] | None = None
        if have_room(there):
            needed = next(there[:number] for number in range(len(there) + 1) if have_room(there[:number]))
            # Backwards, without the last one, which made the room: whoever is not needed is spared.
            for candidate in reversed(needed[:-1]):
                rest = [other for other in needed if other is not candidate]
                needed = rest if have_room(rest) else needed
        if self._room.bins[node].gres.gpus and (needed is None or not have_room(needed, sparing=True)):
            # Some jobs of shards make room for sure only where they are many: one that does it alone, or none.
            some = ([candidate] for candidate in self._by_node.get(node, ()) if self._may_be_taken([candidate]))
            needed = next((alone for alone in some if have_room(alone, sparing=True)), None)
        if needed is None:
            return None
        gpus = sum((victim.running.gpus for victim in needed), Fraction(0))
        return _Option(gpus, max((victim.rank for victim in needed), default=-1), node, needed)

    def _may_be_taken(self, victims: list[_Candidate]) -> bool:
        return not any(victim.requeued for victim in victims) and self._keep_their_shares(victims)

    def _keep_their_shares(self, victims: list[_Candidate]) -> bool:
        """Whether no project falls below its share."""
        lost: dict[str, Fraction] = {}
        for victim in victims:
            lost[victim.project] = lost.get(victim.project, Fraction(0)) + victim.running.gpus
        return all(gpus <= self._excess[name] for name, gpus in lost.items())

    def _reason(self, victim: _Candidate, reclaimer: str) -> str:
        have, share = self._group.projects[victim.project].gpus, self._group.shares[victim.project]
        return (
            f"project {reclaimer} asks for its share: project {victim.project} has {gpus_text(have)}, and its share is"
            f" {gpus_text(share)}"
        )


def _what(request: ResourceRequest) -> Hashable:
    """What a job asks for, whosever it is."""
    return request.requirements, request.excluded_nodes, request.required_nodes
