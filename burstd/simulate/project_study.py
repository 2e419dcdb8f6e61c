"""What quotas would have meant to each project: a trace replayed with projects, and with plain Slurm fair share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from pydantic import BaseModel

from burstd.domain.project import Project, gpu_number
from burstd.domain.project_tree import leaves_of
from burstd.settings.projects import projects_of
from burstd.simulate.project_site import ProjectJob, ProjectRun, ProjectSite
from burstd.simulate.study import PreparedStudy
from burstd.simulate.traces.window import WindowError

_PARTS = 8
"""Of the window, of each of which the mean share is told."""


class ProjectFigures(BaseModel):
    """One project. Times in seconds, of jobs that started."""

    project: str
    quota: str
    jobs: int
    mean_wait_s: float
    p95_wait_s: float
    fair_share_mean_wait_s: float
    """Of the same jobs without projects."""
    fair_share_p95_wait_s: float
    evictions: int
    lost_gpu_h: float
    """What runs that were cut short had done."""
    late_s: float
    """How long one of its jobs, that its quota had GPUs left for, waited more than ten seconds after it had asked."""
    blocked_s: float
    """Of it, while jobs within quotas left no room for it on its number of nodes."""
    shares: list[float]
    """Its mean share, in GPUs, in each eighth of the window."""


class ProjectReport(BaseModel):
    """The answer."""

    version: int = 1
    trace: str
    window: str
    site: str
    projects: list[ProjectFigures]
    notes: list[str]

    def json_text(self) -> str:
        """As --json prints it."""
        return self.model_dump_json(indent=1) + "\n"


def replay_projects(prepared: PreparedStudy) -> ProjectReport:
    """Replays the trace with the projects of the study's settings. Raises WindowError where that is not possible."""
    projects, site, window = projects_of(prepared.settings.projects), prepared.scenario, prepared.workload.window
    leaves = {project.account: project for project in leaves_of(projects)}
    if not projects or prepared.workload.unit != "gpu":
        raise WindowError("--projects needs [projects.NAME] in the file of --config, and a trace with GPUs")
    groups = sorted({str(project.node_group) for project in leaves.values()})
    if len(groups) > 1:
        raise WindowError(f"--projects replays one node group, and the projects are of several: {'; '.join(groups)}")
    known = [job for job in prepared.workload.jobs if job.account in leaves]
    jobs = [
        ProjectJob(
            str(job.number), leaves[job.account].name, job.units, job.submitted - window.start, job.run_s, job.nodes,
            job.limit_s,
        )
        for job in known
        if job.nodes <= site.nodes
    ]  # fmt: skip
    if not jobs:
        raise WindowError(f"no job that the site can run is of an account of the projects: {', '.join(sorted(leaves))}")
    length = window.end - window.start
    run, plain = (
        ProjectSite(site.nodes, site.node_size, projects, plain=how, loop_s=site.tick_s).run(jobs, length)
        for how in (False, True)
    )
    others = len(prepared.workload.jobs) - len(known)
    notes = [
        f"{others} jobs of accounts without a project are left out" if others else "",
        f"{len(known) - len(jobs)} jobs of more nodes than the site has are left out" if len(known) > len(jobs) else "",
        f"burstd decides at most {site.tick_s:g} s after a change",
        "plain fair share: one partition, whoever has used least of its quota goes first, nobody is preempted",
    ]
    return ProjectReport(
        trace=prepared.study.trace.name,
        window=f"{_date(window.start)} to {_date(window.end)}",
        site=f"{site.nodes} nodes with {site.node_size} GPUs each",
        projects=[_figures(project, jobs, run, plain, length) for project in leaves.values()],
        notes=[note for note in notes if note],
    )


def _figures(
    project: Project, jobs: Sequence[ProjectJob], run: ProjectRun, plain: ProjectRun, length: float
) -> ProjectFigures:
    name, gpus = project.name, {job.id: job.total for job in jobs}
    cuts = [cut for cut in run.cuts if cut.project == name]
    return ProjectFigures(
        project=name,
        quota=gpu_number(project.quota),
        jobs=sum(1 for job in jobs if job.project == name),
        mean_wait_s=_mean(run.waits[name]),
        p95_wait_s=_p95(run.waits[name]),
        fair_share_mean_wait_s=_mean(plain.waits[name]),
        fair_share_p95_wait_s=_p95(plain.waits[name]),
        evictions=len(cuts),
        lost_gpu_h=sum(cut.ran_s * gpus[cut.job] for cut in cuts) / 3600,
        late_s=run.late_s[name],
        blocked_s=run.blocked_s[name],
        shares=_mean_shares(name, run, length),
    )


def _mean_shares(project: str, run: ProjectRun, length: float) -> list[float]:
    part = length / _PARTS
    found = [0.0] * _PARTS
    moments = [*run.shares, (length, {})]
    for (begin, shares), (end, _) in pairwise(moments):
        gpus = float(shares[project].share) if project in shares else 0.0
        for number in range(_PARTS):
            found[number] += gpus * max(0.0, min(end, (number + 1) * part) - max(begin, number * part)) / part
    return [round(gpus, 2) for gpus in found]


def _mean(waits: Sequence[float]) -> float:
    return sum(waits) / len(waits) if waits else 0.0


def _p95(waits: Sequence[float]) -> float:
    return sorted(waits)[int(0.95 * (len(waits) - 1))] if waits else 0.0


def _date(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
