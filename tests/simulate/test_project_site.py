"""Division, victims and slurmctld's part in a closed loop: the reference table, an hour of arrivals, no loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.domain.project import Project
from burstd.simulate.project_site import ProjectJob, ProjectSite
from tests.examples import examples

F = Fraction
LONG = 1e6


def project(name: str, quota: int, **fields: object) -> Project:
    return Project(name, account=name, quota=F(quota), partitions=("gpu",), **fields)  # type: ignore[arg-type]


REFERENCE = {name: project(name, quota) for name, quota in {"a": 4, "b": 2, "c": 2, "d": 8}.items()}


def burst(name: str, count: int, at: float, run_s: float = LONG, gpus: int = 1) -> list[ProjectJob]:
    return [ProjectJob(f"{name}{at:.0f}-{n}", name, gpus, at, run_s) for n in range(count)]


def test_the_six_phases_of_the_reference_table() -> None:
    jobs = [*burst("a", 16, 0), *burst("b", 16, 0, 300), *burst("c", 16, 0)]
    jobs += [*burst("d", 4, 20, 60), *burst("d", 4, 40, 40)]
    seen = {}
    for until in (15.0, 35.0, 60.0, 200.0):
        site = ProjectSite(2, 8, REFERENCE)
        site.run(jobs, until)
        seen[until] = tuple(site.running().values())
    assert seen == {15.0: (8, 4, 4, 0), 35.0: (6, 3, 3, 4), 60.0: (4, 2, 2, 8), 200.0: (8, 4, 4, 0)}
    assert len(site.result.cuts) <= 12, "at most half as many again as the eight that have to be"
    site = ProjectSite(2, 8, REFERENCE)
    site.run(burst("a", 16, 0) + burst("c", 16, 0), 30.0)
    assert tuple(site.running().values()) == (11, 0, 5, 0)


@st.composite
def loads(draw: st.DrawFn) -> tuple[dict[str, Project], list[ProjectJob]]:
    names = "abcde"[: draw(st.integers(2, 5))]
    left, projects, jobs = 16, {}, []
    for name in names:
        quota = draw(st.integers(0, left))
        left -= quota
        weight = draw(st.none() | st.integers(0, 8).map(F))
        projects[name] = replace(project(name, quota), weight=weight, priority=draw(st.integers(0, 1)))
        sizes = draw(st.lists(st.sampled_from([1, 1, 1, 2, 4, 8]), max_size=12))
        jobs += [ProjectJob(f"{name}{n}", name, gpus, float(n % 3), LONG) for n, gpus in enumerate(sizes)]
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


@st.composite
def loads_of_shards(draw: st.DrawFn) -> tuple[int, int, dict[str, Project], list[ProjectJob]]:
    """Nodes, GPUs of each, and projects whose quotas are in quarters of a GPU; jobs of shards and of whole GPUs."""
    nodes, gpus = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]))
    left, projects, jobs = nodes * gpus * 4, {}, []
    for name in "abcd"[: draw(st.integers(2, 4))]:
        shards = draw(st.integers(0, left))
        left -= shards
        projects[name] = replace(project(name, 0), quota=F(shards, 4), weight=draw(st.none() | st.just(F(1))))
        sizes = draw(st.lists(st.sampled_from([1, 1, 2, 2, 3, 4, 0]), max_size=8))
        for n, size in enumerate(sizes):
            jobs.append(ProjectJob(f"{name}{n}", name, 0 if size else 1, float(n % 3), LONG, size))
    return nodes, gpus, projects, jobs


@settings(deadline=None, max_examples=examples(100))
@given(loads_of_shards())
def test_no_two_projects_push_each_other_out_in_turn_on_shards(
    load: tuple[int, int, dict[str, Project], list[ProjectJob]],
) -> None:
    """Though burstd does not know which GPU a job's shards are on."""
    nodes, gpus, projects, jobs = load
    site = ProjectSite(nodes, gpus, projects, shards=4)
    site.run(jobs, 900.0)
    late = [cut for cut in site.result.cuts if cut.at > 300.0 and cut.by != "consolidation"]
    assert not late
    assert sum(cut.by == "consolidation" for cut in site.result.cuts) <= len(jobs)


def test_a_gpu_is_divided_in_shards() -> None:
    """Two projects with a quarter each, and one GPU: what is left is divided in shards, not given to one of them."""
    halves = {name: replace(project(name, 0), quota=F(1, 4)) for name in "ab"}
    site = ProjectSite(1, 1, halves, shards=4)
    jobs = [
        ProjectJob(f"{name}{n}", name, 0, float(at), LONG, 1) for at, name in ((0, "a"), (20, "b")) for n in range(6)
    ]
    site.run(jobs, 15.0)
    assert site.running() == {"a": 1.0, "b": 0.0}
    site = ProjectSite(1, 1, halves, shards=4)
    site.run(jobs, 60.0)
    assert site.running() == {"a": 0.5, "b": 0.5}
    assert Counter(cut.by for cut in site.result.cuts) == {"slurmctld": 1, "reclaim": 1}


@pytest.mark.slow
@pytest.mark.parametrize("min_runtime_s", [0.0, 60.0])
@pytest.mark.parametrize("seed", range(4))
def test_an_hour_of_arrivals(seed: int, min_runtime_s: float) -> None:
    draw = Random(seed)  # noqa: S311  examples, not secrets
    quotas = {"a": 8, "b": 4, "c": 4, "d": 16}
    projects = {name: project(name, quota, min_runtime_s=min_runtime_s) for name, quota in quotas.items()}
    jobs: list[ProjectJob] = []
    for name, quota in quotas.items():
        at = 0.0
        while at < 3600.0:
            # Campaigns with pauses between them.
            for _ in range(draw.randint(1, 2 * quota)):
                jobs.append(ProjectJob(f"{name}{len(jobs)}", name, 1, at, draw.uniform(30.0, 900.0)))
            at += draw.uniform(60.0, 600.0)
    site = ProjectSite(4, 8, projects)
    result = site.run(jobs, 3600.0)
    assert all(cut.ran_s >= min_runtime_s for cut in result.cuts), "nobody is cut within its least run time"
    assert max(Counter(cut.job for cut in result.cuts).values(), default=0) <= 10
    if not min_runtime_s:
        late_s, asked_s = sum(result.late_s.values()), 3600.0 * len(projects)
        assert late_s <= asked_s / 1000, "99.9 % of the time everybody has its quota within 10 s of asking"
    assert len(result.cuts) < len(jobs)
