"""A site of one node group whose projects share its GPUs: slurmctld's part of it, in virtual time.

It starts, preempts and limits jobs as slurmctld does with the partitions and QOS of projects (docs/projects.md), at the
scale of whole jobs, of one node or of several. What burstd does is burstd's own decision. ``plain`` is the same site
without projects: one partition, jobs in the order of Slurm's fair share, nobody is preempted. Backfill is EASY: what
starts does not delay the first job that waits for room. Within a quota nobody waits for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from burstd.domain.plan import RequeueJobs, SetProjectLimits, SetQuotaPreemption, StartJobsNow
from burstd.domain.project import OverQuotaLimits, Project, ProjectsView, Share
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import Decider
from burstd.planner.timeouts import Tuning
from burstd.simulate.world.site import BackfillReservation, OnPremSite

REQUEUE_DELAY_S = 121.0
SACCTMGR_S = 0.5
"""How long a limit takes from burstd's decision until slurmctld enforces it."""
BACKFILL_S = 30.0
"""slurmctld looks at its queue so often though nothing happens (bf_interval)."""
LOOP_S = 2.0
"""How long after a change burstd has looked at the latest."""
IDLE_S = 60.0
"""How often it looks where nothing changes: time alone changes little."""
QUOTA_WITHIN_S = 10.0
"""So soon a project is to have the smaller of its quota and of what it asks for."""
PARTITION = "gpu"


@dataclass(frozen=True, slots=True)
class ProjectJob:
    """A job as a trace has it. Times in seconds."""

    id: str
    project: str
    gpus: int
    """On each of its nodes."""
    submitted: float
    run_s: float
    nodes: int = 1
    limit_s: float = inf
    """Its time limit: never less than ``run_s``."""

    @property
    def total(self) -> int:
        """GPUs on all nodes."""
        return self.gpus * self.nodes


@dataclass(slots=True)
class _Row:
    job: ProjectJob
    nodes: tuple[int, ...] = ()
    label: str = ""
    """The partition that it runs in; empty: it waits."""
    started: float = 0.0
    until: float = 0.0
    """When its time limit ends it."""
    begin: float = 0.0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A run that was cut short."""

    job: str
    project: str
    at: float
    ran_s: float
    by: str
    """``slurmctld``, or the cause that burstd gave."""


@dataclass(slots=True)
class ProjectRun:
    """What came of it."""

    waits: dict[str, list[float]] = field(default_factory=dict)
    """By project, seconds from the submission of its jobs to their first start."""
    cuts: list[Cut] = field(default_factory=list)
    shares: list[tuple[float, dict[str, Share]]] = field(default_factory=list)
    """At each moment when one changed, how the projects stood."""
    gpu_seconds: dict[str, float] = field(default_factory=dict)
    late_s: dict[str, float] = field(default_factory=dict)
    """By project, how long a job waited that its quota had GPUs left for, QUOTA_WITHIN_S after it had asked."""
    blocked_s: dict[str, float] = field(default_factory=dict)
    """Of it, while jobs within quotas, which nobody preempts, left no room for such a job on its number of nodes."""


class ProjectSite:
    """Used once. ``projects``: the leaves and their parents."""

    def __init__(
        self,
        nodes: int,
        gpus_per_node: int,
        projects: Mapping[str, Project],
        *,
        plain: bool = False,
        loop_s: float = LOOP_S,
    ) -> None:
        none = dict.fromkeys(projects, 0.0)
        self.result = ProjectRun(
            {name: [] for name in projects}, gpu_seconds=dict(none), late_s=dict(none), blocked_s=dict(none)
        )
        self.now = 0.0
        self._site = OnPremSite(nodes, gpus_per_node)
        self._names = [f"n{number}" for number in range(nodes)]
        self._projects, self._plain, self._loop_s = projects, plain, loop_s
        self._caps: dict[str, OverQuotaLimits] = dict.fromkeys(projects, OverQuotaLimits(Fraction(0), 1))
        self._without_preemption: frozenset[str] = frozenset()
        """Projects whose quota preempts nobody now."""
        self._rows: dict[str, _Row] = {}
        self._cut_rows: dict[str, _Row] = {}
        """Of them, those that were cut short and have not started again."""
        self._used: dict[str, int] = {}
        """GPUs in use by partition."""
        self._running = dict.fromkeys(projects, 0)
        self._asked = dict.fromkeys(projects, 0)
        """GPUs by project, of what runs and of all that has not ended."""
        self._events: list[tuple[float, int, str, str]] = []
        self._turn = count()
        self._below_since: dict[str, float] = {}
        self._next_look = float("inf")
        self._written: dict[str, OverQuotaLimits] = {}
        self._decider = Decider()
        self._views: dict[str, tuple[tuple[object, ...], Job]] = {}
        self._node_views: dict[str, Node] = {}

    def run(self, jobs: Iterable[ProjectJob], until: float) -> ProjectRun:
        """Plays these jobs until a time."""
        trace = {job.id: job for job in jobs}
        self._events = [(job.submitted, next(self._turn), "submit", job.id) for job in trace.values()]
        self._events.append((BACKFILL_S, -1, "backfill", ""))
        heapify(self._events)
        while self._events and self._events[0][0] <= until:
            before = self.now
            self.now, _, kind, word = heappop(self._events)
            self._count_late(before)
            match kind:
                case "submit":
                    self._rows[word] = _Row(trace[word])
                    self._asked[trace[word].project] += trace[word].total
                    self._pass()
                case "end":
                    job_id, _, restarts = word.partition("#")
                    row = self._rows.get(job_id)
                    if row is not None and row.label and row.restarts == int(restarts):
                        self._stop(row)
                        self._asked[row.job.project] -= row.job.total
                        del self._rows[job_id]
                        self._pass()
                case "limits":
                    self._caps = {**self._caps, **self._written}
                    self._pass()
                case "begin":
                    self._pass()
                case "backfill":
                    self._at(self.now + BACKFILL_S, "backfill")
                    self._pass()
                case _:
                    if self.now >= self._next_look:
                        self._next_look = float("inf")
                        self._wake(max(IDLE_S, self._loop_s))
                        self._look()
        return self.result

    def _count_late(self, before: float) -> None:
        """Of the time since then, in which nothing changed."""
        if before == self.now or self._plain:
            return
        running, asked = self._running, self.asked()
        for name, project in self._projects.items():
            left = project.quota - running[name]
            missing = self._waiting(name, left) if left > 0 and asked[name] > running[name] else []
            if not missing:
                self._below_since.pop(name, None)
                continue
            since = self._below_since.setdefault(name, before)
            late_s = max(0.0, self.now - max(before, since + QUOTA_WITHIN_S))
            self.result.late_s[name] += late_s
            if late_s and not any(map(self._has_room_beside_quotas, missing)):
                self.result.blocked_s[name] += late_s

    def _waiting(self, project: str, most: Fraction) -> list[ProjectJob]:
        """What a project waits for, of so many GPUs at most."""
        waiting = (row for row in self._rows.values() if not row.label and row.begin <= self.now)
        return [row.job for row in waiting if row.job.project == project and row.job.total <= most]

    def _has_room_beside_quotas(self, job: ProjectJob) -> bool:
        """Whether it had room if nothing ran beyond quotas."""
        room = [self._site.size] * self._site.nodes
        for row in self._rows.values():
            for node in row.nodes if not self._over_quota(row) else ():
                room[node] -= row.job.gpus
        return sum(1 for free in room if free >= job.gpus) >= job.nodes

    def _at(self, when: float, kind: str, word: str = "") -> None:
        heappush(self._events, (when, next(self._turn), kind, word))

    def _wake(self, after: float) -> None:
        """Has burstd look so soon."""
        if not self._plain and self.now + after < self._next_look:
            self._next_look = self.now + after
            self._at(self._next_look, "look")

    def _look(self) -> None:
        """One loop of burstd."""
        plan = self._decider.decide(self.snapshot(), (), Tuning())
        shares = dict(plan.target.shares)
        if not self.result.shares or self.result.shares[-1][1] != shares:
            self.result.shares.append((self.now, shares))
        for action in plan.actions:
            match action:
                case SetProjectLimits():
                    self._written = dict(action.limits)
                    self._at(self.now + SACCTMGR_S, "limits")
                case SetQuotaPreemption():
                    self._without_preemption = (self._without_preemption | {*action.wait}) - {*action.preempt}
                case RequeueJobs():
                    for run in action.runs:
                        if self._rows[run.job_id].label:
                            self._cut(self._rows[run.job_id], run.cause)
                case StartJobsNow():
                    for job_id in action.jobs:
                        self._rows[job_id].begin = self.now
                case _:
                    continue
            self._pass()

    def _pass(self) -> None:
        """slurmctld goes through its queue, and burstd sees it."""
        self._wake(self._loop_s)
        held: BackfillReservation | None = None
        for row in sorted((r for r in self._rows.values() if not r.label and r.begin <= self.now), key=self._order):
            held = self._start(row, held)

    def _order(self, row: _Row) -> tuple[float, float, str]:
        project = self._projects[row.job.project]
        used = self.result.gpu_seconds[project.name] / float(project.quota or 1) if self._plain else 0.0
        return used, row.job.submitted, row.job.id

    def _start(self, row: _Row, held: BackfillReservation | None) -> BackfillReservation | None:
        """Starts it where there is room. What is kept from then on for the first job that waits for room."""
        project, job, until = self._projects[row.job.project], row.job, self.now + row.job.limit_s
        quota_left = 0 if self._plain else project.quota - self._used.get(project.quota_partition, 0)
        if job.total <= quota_left:
            nodes = self._site.find_nodes(job.nodes, job.gpus, until, None)
            if not nodes and project.name not in self._without_preemption:
                nodes = self._preempt(job)
            if nodes:
                self._begin(row, nodes, project.quota_partition, held)
                return held
        cap, label = self._caps[project.name].gpus, PARTITION if self._plain else project.over_quota_partition
        if self._plain or cap is None or self._used.get(label, 0) + job.total <= cap:
            nodes = self._site.find_nodes(job.nodes, job.gpus, until, held)
            if nodes:
                self._begin(row, nodes, label, held)
                return held
        elif job.total > quota_left:
            return held
        if held is None and self._site.fits_when_empty(job.nodes, job.gpus):
            held = self._site.reserve(job.nodes, job.gpus)
        return held

    def _over_quota(self, row: _Row) -> bool:
        return row.label == self._projects[row.job.project].over_quota_partition

    def _preempt(self, job: ProjectJob) -> tuple[int, ...]:
        """The nodes on which the youngest jobs beyond quotas make room, of the lowest tier first; empty: none.

        A victim of several nodes leaves all of them.
        """
        over = [
            row
            for row in self._rows.values()
            if self._over_quota(row) and self.now - row.started >= self._projects[row.job.project].min_runtime_s
        ]
        over.sort(key=lambda row: (self._caps[row.job.project].tier, -row.started, row.job.id))
        room, taken = list(self._site.free), 0
        ready = sum(1 for free in room if free >= job.gpus)
        while ready < job.nodes and taken < len(over):
            victim = over[taken]
            taken += 1
            for node in victim.nodes:
                ready += room[node] < job.gpus <= room[node] + victim.job.gpus
                room[node] += victim.job.gpus
        if ready < job.nodes:
            return ()
        # Those first that need the fewest victims.
        able = sorted((n for n in range(len(room)) if room[n] >= job.gpus), key=lambda n: -self._site.free[n])
        chosen = tuple(able[: job.nodes])
        for victim in reversed(over[:taken]):
            there = [node for node in victim.nodes if node in chosen]
            if all(room[node] - victim.job.gpus >= job.gpus for node in there):
                # Whoever is not needed is spared.
                for node in there:
                    room[node] -= victim.job.gpus
            else:
                self._cut(victim, "slurmctld")
        return chosen

    def _begin(self, row: _Row, nodes: tuple[int, ...], label: str, held: BackfillReservation | None) -> None:
        if not row.restarts:
            self.result.waits[row.job.project].append(self.now - row.job.submitted)
        row.nodes, row.label, row.started, row.until = nodes, label, self.now, self.now + row.job.limit_s
        self._cut_rows.pop(row.job.id, None)
        self._site.allocate(nodes, row.job.gpus, row.until, held)
        self._count(row, row.job.total)
        self._at(self.now + row.job.run_s, "end", f"{row.job.id}#{row.restarts}")

    def _stop(self, row: _Row) -> None:
        self._site.deallocate(row.nodes, row.job.gpus, row.until)
        self._count(row, -row.job.total)
        self.result.gpu_seconds[row.job.project] += row.job.total * (self.now - row.started)
        row.nodes, row.label = (), ""

    def _count(self, row: _Row, gpus: int) -> None:
        self._used[row.label] = self._used.get(row.label, 0) + gpus
        self._running[row.job.project] += gpus

    def _cut(self, row: _Row, by: str) -> None:
        self.result.cuts.append(Cut(row.job.id, row.job.project, self.now, self.now - row.started, by))
        self._stop(row)
        self._cut_rows[row.job.id] = row
        row.restarts += 1
        row.begin = self.now + REQUEUE_DELAY_S
        self._wake(self._loop_s)
        self._at(row.begin, "begin")

    def running(self) -> dict[str, int]:
        """GPUs that each project has now."""
        return dict(self._running)

    def asked(self) -> dict[str, int]:
        """GPUs that each project has or waits for, but for what slurmctld keeps back after a requeue."""
        found = dict(self._asked)
        for row in self._cut_rows.values():
            found[row.job.project] -= row.job.total if row.begin > self.now else 0
        return found

    def snapshot(self) -> Snapshot:
        """As burstd reads it."""
        pairs = (name for p in self._projects.values() for name in (p.quota_partition, p.over_quota_partition))
        partitions, size = (PARTITION, *pairs), self._site.size
        for node in sorted(self._site.changed):
            name, used = self._names[node], size - self._site.free[node]
            self._node_views[name] = Node(
                name, "MIXED" if used else "IDLE", partitions=partitions, cpus=size, cpus_allocated=used,
                gres=(Gres("gpu", "", size),), gres_used=(Gres("gpu", "", used),) if used else (),
            )  # fmt: skip
        self._site.changed.clear()
        view = ProjectsView(self._projects, self._caps, without_preemption=self._without_preemption)
        jobs = tuple(self._view(row) for row in self._rows.values())
        return Snapshot(self.now, "site", {}, SlurmView(jobs, dict(self._node_views), ()), {}, (), projects=view)

    def _view(self, row: _Row) -> Job:
        held = row.begin > self.now
        key = row.nodes, row.label, row.started, row.restarts, row.begin, held
        known = self._views.get(row.job.id)
        if known is not None and known[0] == key:
            return known[1]
        project, job = self._projects[row.job.project], row.job
        found = Job(
            job.id, "user", JobState.PENDING, (project.quota_partition, project.over_quota_partition), job.submitted,
            account=project.account, reason="BeginTime" if held else "Resources", nodes=job.nodes,
            cpus=job.total, restarts=row.restarts,
            gres_per_node=(Gres("gpu", "", job.gpus),), eligible=max(job.submitted, row.begin),
        )  # fmt: skip
        if row.label:
            found = replace(
                found,
                state=JobState.RUNNING,
                partitions=(row.label,),
                start=row.started,
                node_list=tuple(self._names[node] for node in row.nodes),
                reason="",
            )
        self._views[row.job.id] = key, found
        return found
