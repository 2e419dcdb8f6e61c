"""Division, victims and slurmctld's part in a closed loop: the reference table, an hour of arrivals, no loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.domain.project import Project
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.simulate.project_site import ProjectJob, ProjectSite
from burstd.simulate.project_study import replay_projects
from burstd.simulate.study import Study, prepare_study
from burstd.simulate.traces.trace_job import Trace, TraceJob
from tests.examples import examples

F = Fraction
LONG = 1e6


def project(name: str, quota: int, **fields: object) -> Project:
    return Project(name, account=name, quota=F(quota), partitions=("gpu",), **fields)  # type: ignore[arg-type]


REFERENCE = {name: project(name, quota) for name, quota in {"a": 4, "b": 2, "c": 2, "d": 8}.items()}


GANGS = ((2, 1), (2, 2), (2, 4), (2, 8), (4, 1), (4, 2), (4, 4))
"""Nodes, and GPUs on each."""


def burst(name: str, count: int, at: float, run_s: float = LONG, gpus: int = 1, nodes: int = 1) -> list[ProjectJob]:
    return [ProjectJob(f"{name}{at:.0f}-{n}", name, gpus, at, run_s, nodes) for n in range(count)]


@pytest.mark.parametrize("reclaim_after_s", [0.0, 600.0])
def test_the_six_phases_of_the_reference_table(reclaim_after_s: float) -> None:
    """Also where d waits for cloud nodes first, and there are none."""
    projects = {**REFERENCE, "d": replace(REFERENCE["d"], reclaim_after_s=reclaim_after_s)}
    jobs = [*burst("a", 16, 0), *burst("b", 16, 0, 300), *burst("c", 16, 0)]
    jobs += [*burst("d", 4, 20, 60), *burst("d", 4, 40, 40)]
    seen = {}
    for until in (15.0, 35.0, 60.0, 200.0):
        site = ProjectSite(2, 8, projects)
        site.run(jobs, until)
        seen[until] = tuple(site.running().values())
    assert seen == {15.0: (8, 4, 4, 0), 35.0: (6, 3, 3, 4), 60.0: (4, 2, 2, 8), 200.0: (8, 4, 4, 0)}
    assert len(site.result.cuts) <= 12, "at most half as many again as the eight that have to be"
    site = ProjectSite(2, 8, REFERENCE)
    site.run(burst("a", 16, 0) + burst("c", 16, 0), 30.0)
    assert tuple(site.running().values()) == (11, 0, 5, 0)


def nodes_of(site: ProjectSite) -> dict[str, tuple[str, ...]]:
    """By job, in the order of submission."""
    view = site.snapshot().slurm
    assert isinstance(view, SlurmView)
    return {job.id: job.node_list for job in view.jobs}


def test_a_job_of_several_nodes_starts_on_all_of_them_or_waits() -> None:
    """A quota of 8 of 16 GPUs, of which the other project's jobs within its quota leave 4 on one node."""
    for plain in (False, True):
        projects = {"a": project("a", 4), "b": project("b", 12)}
        jobs = [*burst("a", 1, 0, gpus=4), *burst("b", 1, 1, gpus=6, nodes=2), *burst("b", 1, 2, gpus=4, nodes=2)]
        site = ProjectSite(2, 8, projects, plain=plain)
        site.run(jobs, 100.0)
        assert nodes_of(site) == {"a0-0": ("n0",), "b1-0": (), "b2-0": ("n0", "n1")}
        assert not site.result.cuts


def test_a_victim_of_several_nodes_leaves_all_of_them() -> None:
    """Beyond the quota a gang of a has 4 GPUs on each node, and a single job 4 on one; d asks for a whole node."""
    projects = {"a": project("a", 4), "d": project("d", 12)}
    jobs = [*burst("a", 1, 0, gpus=4), *burst("a", 1, 1, gpus=4, nodes=2)]
    site = ProjectSite(2, 8, projects)
    result = site.run([*jobs, *burst("d", 1, 60, gpus=8)], 100.0)
    assert nodes_of(site) == {"a0-0": ("n0",), "a1-0": (), "d60-0": ("n1",)}
    assert [(cut.job, cut.by) for cut in result.cuts] == [("a1-0", "slurmctld")]


def test_a_job_of_several_nodes_takes_as_few_victims_as_it_needs() -> None:
    """Two whole nodes of three, on which a has one job beyond its quota each, and the oldest of them fills its node."""
    projects = {"a": project("a", 0), "d": project("d", 16)}
    jobs = [*burst("a", 1, 0, gpus=8), *burst("a", 1, 5, gpus=5), *burst("a", 1, 10, gpus=6)]
    site = ProjectSite(3, 8, projects)
    result = site.run([*jobs, *burst("d", 1, 60, gpus=8, nodes=2)], 100.0)
    assert nodes_of(site)["d60-0"] == ("n1", "n2")
    assert {cut.job for cut in result.cuts} == {"a5-0", "a10-0"}


def test_backfill_does_not_delay_a_job_of_several_nodes() -> None:
    """b's gang waits for a's job to end at 100. Till then there is room for d's job, but not for c's."""
    projects = {name: project(name, 4) for name in "abcd"}
    jobs = {
        "a": ProjectJob("a", "a", 4, 0.0, 100.0, limit_s=100.0),
        "b": ProjectJob("b", "b", 8, 10.0, 50.0, nodes=2, limit_s=50.0),
        "c": ProjectJob("c", "c", 1, 11.0, 250.0, limit_s=250.0),
        "d": ProjectJob("d", "d", 1, 12.0, 40.0, limit_s=40.0),
    }
    result = ProjectSite(2, 8, projects, plain=True).run(jobs.values(), 400.0)
    begun = {name: result.waits[name][0] + job.submitted for name, job in jobs.items()}
    assert begun == {"a": 0.0, "b": 100.0, "c": 150.0, "d": 12.0}


@st.composite
def mixes(draw: st.DrawFn) -> tuple[dict[str, Project], list[ProjectJob], bool]:
    """Jobs of one node and of several, that come and end."""
    projects = {n: project(n, draw(st.integers(0, 8)), min_runtime_s=draw(st.sampled_from([0.0, 50.0]))) for n in "abc"}
    jobs = []
    for number in range(draw(st.integers(1, 25))):
        shape = draw(st.sampled_from([(1, 1), (1, 3), (1, 8), *GANGS]))
        run_s = draw(st.floats(10.0, 300.0))
        limit_s = run_s * draw(st.sampled_from([1.0, 2.0, float("inf")]))
        name, at = draw(st.sampled_from("abc")), draw(st.floats(0.0, 300.0))
        jobs.append(ProjectJob(str(number), name, shape[1], at, run_s, shape[0], limit_s))
    return projects, jobs, draw(st.booleans())


@settings(deadline=None, max_examples=examples(100))
@given(mixes(), st.floats(0.0, 600.0))
def test_no_gpu_is_given_twice_and_a_gang_has_all_its_nodes_or_none(
    mix: tuple[dict[str, Project], list[ProjectJob], bool], until: float
) -> None:
    projects, jobs, plain = mix
    wanted = {job.id: job for job in jobs}
    # What burstd saw before.
    looks: list[Snapshot] = []

    class Watched(ProjectSite):
        def snapshot(self) -> Snapshot:
            looks.append(super().snapshot())
            return looks[-1]

    site = Watched(4, 8, projects, plain=plain)
    result = site.run(jobs, until)
    site.snapshot()
    for look in looks:
        assert isinstance(look.slurm, SlurmView)
        used: Counter[str] = Counter()
        for job in look.slurm.jobs:
            nodes = wanted[job.id].nodes if job.state is JobState.RUNNING else 0
            assert len(set(job.node_list)) == len(job.node_list) == nodes
            used.update(dict.fromkeys(job.node_list, wanted[job.id].gpus))
        assert all(gpus <= 8 for gpus in used.values())
        shown = {name: sum(gres.count for gres in node.gres_used) for name, node in look.slurm.nodes.items()}
        assert shown == {name: used[name] for name in shown}
    running = [wanted[job.id] for job in looks[-1].slurm.jobs if job.node_list]  # type: ignore[union-attr]
    assert site.running() == {n: sum(job.total for job in running if job.project == n) for n in "abc"}
    assert all(cut.ran_s >= projects[cut.project].min_runtime_s for cut in result.cuts)
    assert not (plain and result.cuts)


@st.composite
def loads(draw: st.DrawFn) -> tuple[dict[str, Project], list[ProjectJob]]:
    names = "abcde"[: draw(st.integers(2, 5))]
    left, projects, jobs = 16, {}, []
    for name in names:
        quota = draw(st.integers(0, left))
        left -= quota
        weight = draw(st.none() | st.integers(0, 8).map(F))
        projects[name] = replace(project(name, quota), weight=weight, priority=draw(st.integers(0, 1)))
        sizes = draw(
            st.lists(st.sampled_from([(1, 1), (1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 4)]), max_size=12)
        )
        jobs += [ProjectJob(f"{name}{n}", name, gpus, n % 3, LONG, nodes) for n, (nodes, gpus) in enumerate(sizes)]
    return projects, jobs


@settings(deadline=None, max_examples=examples(100))
@given(loads())
def test_no_two_projects_push_each_other_out_in_turn(load: tuple[dict[str, Project], list[ProjectJob]]) -> None:
    """No job arrives after three seconds and none ends: from then on there must be an end of evictions."""
    projects, jobs = load
    site = ProjectSite(2, 8, projects)
    site.run(jobs, 900.0)
    late = [cut for cut in site.result.cuts if cut.at > 300.0 and cut.by != "consolidation"]
    assert not late
    moved = [cut for cut in site.result.cuts if cut.by == "consolidation"]
    assert len(moved) <= len(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("min_runtime_s", [0.0, 60.0])
@pytest.mark.parametrize("gangs", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_an_hour_of_arrivals(seed: int, gangs: float, min_runtime_s: float) -> None:
    """``gangs``: so many of the jobs are of 2 or 4 nodes."""
    draw = Random(seed)  # noqa: S311  examples, not secrets
    quotas = {"a": 8, "b": 4, "c": 4, "d": 16}
    projects = {name: project(name, quota, min_runtime_s=min_runtime_s) for name, quota in quotas.items()}
    jobs: list[ProjectJob] = []
    for name, quota in quotas.items():
        at = 0.0
        while at < 3600.0:
            # Campaigns with pauses between them.
            for _ in range(draw.randint(1, 2 * quota)):
                nodes, gpus = draw.choice(GANGS) if draw.random() < gangs else (1, 1)
                run_s = draw.uniform(30.0, 900.0)
                limit_s = run_s * draw.uniform(1.0, 4.0)
                jobs.append(ProjectJob(f"{name}{len(jobs)}", name, gpus, at, run_s, nodes, limit_s))
            at += draw.uniform(60.0, 600.0)
    site = ProjectSite(4, 8, projects)
    result = site.run(jobs, 3600.0)
    assert all(cut.ran_s >= min_runtime_s for cut in result.cuts), "nobody is cut within its least run time"
    assert max(Counter(cut.job for cut in result.cuts).values(), default=0) <= 10
    late_s, blocked_s = sum(result.late_s.values()), sum(result.blocked_s.values())
    assert blocked_s == 0 or gangs, "jobs of one GPU have room wherever there is one"
    # A gang that finds no room beside jobs within quotas waits for one of them to end: nobody preempts these. Jobs that
    # may not be requeued for a minute keep others waiting for as long.
    allowed = 0.03 if min_runtime_s else 0.001
    assert late_s - blocked_s <= 3600.0 * len(projects) * allowed, "else everybody has its quota within 10 s of asking"
    assert len(result.cuts) < len(jobs)


def test_jobs_of_several_nodes_are_replayed_and_those_larger_than_the_site_left_out(tmp_path: Path) -> None:
    """Sixteen GPUs on two nodes: a's 16 GPUs are a gang; 24 GPUs are three nodes."""
    config = tmp_path / "burstd.toml"
    quotas = {"a": 4, "b": 12}
    config.write_text(
        'cluster = "hpc"\n'
        + "".join(f'[projects.{n}]\naccount = "{n}"\nquota = {q}\npartitions = ["gpu"]\n' for n, q in quotas.items())
    )
    asked = ((0.0, "a", 16), (600.0, "b", 1), (700.0, "b", 24))
    trace = Trace(tuple(TraceJob(str(at), at, 3600.0, gpus=gpus, account=n) for at, n, gpus in asked), "csv")
    study = Study(tmp_path / "trace.csv", config=config, days=None, nodes=2, tick_s=10.0)
    found = replay_projects(prepare_study(study, trace=trace))
    assert "1 jobs of more nodes than the site has are left out" in found.notes
    a, b = found.projects
    assert (a.jobs, a.evictions, a.fair_share_mean_wait_s) == (1, 1, 0.0)
    assert a.lost_gpu_h == pytest.approx(16 * (600.0 - a.mean_wait_s) / 3600)
    assert (b.jobs, b.mean_wait_s) == (1, 0.0)
