"""A site of one node group whose projects share its GPUs: slurmctld's part of it, in virtual time.

It starts, preempts and limits jobs as slurmctld does with the partitions and QOS of projects (docs/projects.md), at the
scale of whole jobs. What burstd does is burstd's own decision. ``plain`` is the same site without projects: one
partition, jobs in the order of Slurm's fair share, nobody is preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush

from burstd.domain.plan import RequeueJobs, SetProjectLimits, StartJobsNow
from burstd.domain.project import OverQuotaLimits, Project, ProjectsView, Share
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, SharedGpu
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import Decider
from burstd.planner.timeouts import Tuning

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
    """A job of one node, as a trace has it. Times in seconds."""

    id: str
    project: str
    gpus: int
    submitted: float
    run_s: float
    shards: int = 0
    """Of one GPU; ``gpus`` is 0 then."""


@dataclass(slots=True)
class _Row:
    job: ProjectJob
    node: str = ""
    parts: tuple[int, ...] = ()
    """What it has of each GPU of its node."""
    label: str = ""
    """The partition that it runs in; empty: it waits."""
    started: float = 0.0
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
    """By project, how long it was below its quota though it had asked for it for more than QUOTA_WITHIN_S."""


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
        shards: int = 0,
    ) -> None:
        """``shards``: of each GPU; 0: GPUs are given away whole, and nobody asks for shards."""
        none = dict.fromkeys(projects, 0.0)
        self.result = ProjectRun({name: [] for name in projects}, gpu_seconds=dict(none), late_s=dict(none))
        self.now = 0.0
        self._names = [f"n{number}" for number in range(nodes)]
        self._size = gpus_per_node
        self._shards = shards
        self._whole = shards or 1
        self._free = dict.fromkeys(self._names, (self._whole,) * gpus_per_node)
        """What is left of each GPU, in shards or whole GPUs."""
        self._projects, self._plain, self._loop_s = projects, plain, loop_s
        self._caps: dict[str, OverQuotaLimits] = dict.fromkeys(projects, OverQuotaLimits(Fraction(0), 1))
        self._rows: dict[str, _Row] = {}
        self._used: dict[str, Fraction] = {}
        """GPUs in use by partition."""
        self._events: list[tuple[float, int, str, str]] = []
        self._below_since: dict[str, float] = {}
        self._next_look = float("inf")
        self._written: dict[str, OverQuotaLimits] = {}
        self._decider = Decider()
        self._views: dict[str, tuple[tuple[object, ...], Job]] = {}

    def run(self, jobs: Iterable[ProjectJob], until: float) -> ProjectRun:
        """Plays these jobs until a time."""
        trace = {job.id: job for job in jobs}
        self._events = [(job.submitted, n, "submit", job.id) for n, job in enumerate(trace.values())]
        self._events.append((BACKFILL_S, -1, "backfill", ""))
        heapify(self._events)
        while self._events and self._events[0][0] <= until:
            before = self.now
            self.now, _, kind, word = heappop(self._events)
            self._count_late(before)
            match kind:
                case "submit":
                    self._rows[word] = _Row(trace[word])
                    self._pass()
                case "end":
                    job_id, _, restarts = word.partition("#")
                    row = self._rows.get(job_id)
                    if row is not None and row.label and row.restarts == int(restarts):
                        self._stop(row)
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
        if before == self.now:
            return
        running, asked = self.running(), self.asked()
        for name, project in self._projects.items():
            if running[name] >= min(float(project.quota), asked[name]):
                self._below_since.pop(name, None)
                continue
            since = self._below_since.setdefault(name, before)
            self.result.late_s[name] += max(0.0, self.now - max(before, since + QUOTA_WITHIN_S))

    def _at(self, when: float, kind: str, word: str = "") -> None:
        heappush(self._events, (when, len(self._rows), kind, word))

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
        for row in sorted((r for r in self._rows.values() if not r.label and r.begin <= self.now), key=self._order):
            self._start(row)

    def _order(self, row: _Row) -> tuple[float, float, str]:
        project = self._projects[row.job.project]
        used = self.result.gpu_seconds[project.name] / float(project.quota or 1) if self._plain else 0.0
        return used, row.job.submitted, row.job.id

    def _start(self, row: _Row) -> None:
        project, gpus = self._projects[row.job.project], self._gpus(row.job)
        room = next((name for name in self._names if self._parts(row.job, name)), "")
        if self._plain:
            if room:
                self._begin(row, room, PARTITION)
            return
        if self._used.get(project.quota_partition, 0) + gpus <= project.quota:
            room = room or self._preempt(row.job)
            if room:
                self._begin(row, room, project.quota_partition)
                return
        cap = self._caps[project.name].gpus
        if room and (cap is None or self._used.get(project.over_quota_partition, 0) + gpus <= cap):
            self._begin(row, room, project.over_quota_partition)

    def _gpus(self, job: ProjectJob) -> Fraction:
        return job.gpus + Fraction(job.shards, self._whole)

    def _parts(self, job: ProjectJob, node: str, without: Iterable[_Row] = ()) -> tuple[int, ...]:
        """What slurmctld gives it of each GPU of a node, were these jobs gone; empty: there is no room."""
        free, left, each = self._free[node], 1 if job.shards else job.gpus, job.shards or self._whole
        for row in without:
            free = tuple(there + part for there, part in zip(free, row.parts, strict=True))
        if sum(free) < left * each:
            return ()
        found = [0] * self._size
        for n, there in enumerate(free):
            if left and there >= each:
                found[n], left = each, left - 1
        return () if left else tuple(found)

    def _preempt(self, job: ProjectJob) -> str:
        """The node on which the youngest jobs beyond quotas make room, of the lowest tier first; empty: none."""
        over = [
            row
            for row in self._rows.values()
            if row.label.startswith("o-") and self.now - row.started >= self._projects[row.job.project].min_runtime_s
        ]
        over.sort(key=lambda row: (self._caps[row.job.project].tier, -row.started, row.job.id))
        there: dict[str, list[_Row]] = {}
        for row in over:
            some = there.setdefault(row.node, [])
            some.append(row)
            if self._parts(job, row.node, some):
                node = row.node
                for victim in reversed(some):
                    # Whoever is not needed is spared.
                    rest = [r for r in some if r is not victim]
                    if self._parts(job, node, rest):
                        some = rest
                for victim in some:
                    self._cut(victim, "slurmctld")
                return node
        return ""

    def _begin(self, row: _Row, node: str, label: str) -> None:
        if not row.restarts:
            self.result.waits[row.job.project].append(self.now - row.job.submitted)
        row.node, row.label, row.started, row.parts = node, label, self.now, self._parts(row.job, node)
        self._free[node] = tuple(there - part for there, part in zip(self._free[node], row.parts, strict=True))
        self._used[label] = self._used.get(label, Fraction(0)) + self._gpus(row.job)
        self._at(self.now + row.job.run_s, "end", f"{row.job.id}#{row.restarts}")

    def _stop(self, row: _Row) -> None:
        self._free[row.node] = tuple(a + b for a, b in zip(self._free[row.node], row.parts, strict=True))
        self._used[row.label] -= self._gpus(row.job)
        self.result.gpu_seconds[row.job.project] += float(self._gpus(row.job)) * (self.now - row.started)
        row.node = row.label = ""

    def _cut(self, row: _Row, by: str) -> None:
        self.result.cuts.append(Cut(row.job.id, row.job.project, self.now, self.now - row.started, by))
        self._stop(row)
        row.restarts += 1
        row.begin = self.now + REQUEUE_DELAY_S
        self._wake(self._loop_s)
        self._at(row.begin, "begin")

    def running(self) -> dict[str, float]:
        """GPUs that each project has now."""
        found = dict.fromkeys(self._projects, 0.0)
        for row in self._rows.values():
            found[row.job.project] += float(self._gpus(row.job)) if row.label else 0.0
        return found

    def asked(self) -> dict[str, float]:
        """GPUs that each project has or waits for, but for what slurmctld keeps back after a requeue."""
        found = dict.fromkeys(self._projects, 0.0)
        for row in self._rows.values():
            found[row.job.project] += float(self._gpus(row.job)) if row.label or row.begin <= self.now else 0.0
        return found

    def snapshot(self) -> Snapshot:
        """As burstd reads it."""
        pairs = (name for p in self._projects.values() for name in (p.quota_partition, p.over_quota_partition))
        partitions = (PARTITION, *pairs)
        nodes = {}
        cpus = self._size * self._whole
        gres = (Gres("gpu", "", self._size), *([Gres("shard", "", cpus)] if self._shards else []))
        whole: Counter[str] = Counter()
        """By node, GPUs that jobs have whole."""
        for row in self._rows.values():
            whole[row.node] += row.job.gpus if row.label else 0
        for name in self._names:
            used = cpus - sum(self._free[name])
            nodes[name] = Node(
                name, "MIXED" if used else "IDLE", partitions=partitions, cpus=cpus, cpus_allocated=used,
                gres=gres, gres_used=(Gres("gpu", "", whole[name]),) if whole[name] else (),
                shared_gpus=self._shared_gpus(name),
            )  # fmt: skip
        in_shards = dict.fromkeys(self._projects, self._shards) if self._shards else {}
        view = ProjectsView(self._projects, self._caps, shards=in_shards)
        jobs = tuple(self._view(row) for row in self._rows.values())
        return Snapshot(self.now, "site", {}, SlurmView(jobs, nodes, ()), {}, (), projects=view)

    def _shared_gpus(self, node: str) -> tuple[SharedGpu, ...]:
        """As slurmctld from 23.11 on shows what is left of each GPU; none where there are no shards."""
        there = (row for row in self._rows.values() if row.node == node and row.job.gpus and self._shards)
        whole = {n for row in there for n, part in enumerate(row.parts) if part}
        free = enumerate(self._free[node] if self._shards else ())
        return tuple(SharedGpu("", self._shards, left, whole=n in whole) for n, left in free)

    def _view(self, row: _Row) -> Job:
        held = row.begin > self.now
        key = row.node, row.label, row.started, row.restarts, row.begin, held
        known = self._views.get(row.job.id)
        if known is not None and known[0] == key:
            return known[1]
        project, job = self._projects[row.job.project], row.job
        found = Job(
            job.id, "user", JobState.PENDING, (project.quota_partition, project.over_quota_partition), job.submitted,
            account=project.account, reason="BeginTime" if held else "Resources",
            cpus=int(self._gpus(job) * self._whole), restarts=row.restarts,
            gres_per_node=(Gres("shard", "", job.shards) if job.shards else Gres("gpu", "", job.gpus),),
            eligible=max(job.submitted, row.begin),
        )  # fmt: skip
        if row.label:
            found = replace(
                found,
                state=JobState.RUNNING,
                partitions=(row.label,),
                start=row.started,
                node_list=(row.node,),
                reason="",
            )
        self._views[row.job.id] = key, found
        return found
