"""What users read of their project: in burstctl, in explain and in comments of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Target
from burstd.domain.project import Project, ProjectsView, Share
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres
from burstd.planner.explain.explain import explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.explain.project_text import project_text
from tests.planner.worlds import job, make_snapshot

QUOTAS = {"a": 4, "b": 2, "c": 2, "d": 8, "e": 1}
PROJECTS = {n: Project(n, f"team-{n}", Fraction(quota), partitions=("gpu",)) for n, quota in QUOTAS.items()}


def share(running: float, share: float, demand: float = 0) -> Share:
    return Share(Fraction(max(demand, running)), Fraction(running), Fraction(0), Fraction(share))


FULL = {name: share(quota, quota) for name, quota in QUOTAS.items()}


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({}, "project a: its jobs are not known yet"),
        ({"a": share(3, 3)}, "project a: 3 of 4 GPUs in quota"),
        ({"a": share(6, 6), "d": share(0, 0)}, "project a: 4 of 4 GPUs in quota, 2 over; reclaimed when d asks"),
        (
            {"a": share(6, 6), "d": share(1, 1), "c": share(0.5, 2)},
            "project a: 4 of 4 GPUs in quota, 2 over; reclaimed when c or d ask",
        ),
        (
            {"a": share(6, 6), **{name: share(0, 0) for name in "bcde"}},
            "project a: 4 of 4 GPUs in quota, 2 over; reclaimed when b, c, d or 1 more ask",
        ),
        ({"a": share(5, 5)}, "project a: 4 of 4 GPUs in quota, 1 over; reclaimed when the division changes"),
        ({"a": share(2, 4, 9)}, "project a: 2 of 4 GPUs in quota; asks for 7 more, and is to get 2"),
        ({"a": share(4, 4, 9)}, "project a: 4 of 4 GPUs in quota; asks for 5 more, and has its share of 4"),
        ({"a": share(0.5, 4, 1)}, "project a: 0.5 of 4 GPUs in quota; asks for 0.5 more, and is to get them"),
    ],
)
def test_how_a_project_stands(shares: Mapping[str, Share], text: str) -> None:
    assert project_text(PROJECTS["a"], PROJECTS, {**FULL, **shares} if shares else {}) == text


OVER = {**FULL, "a": share(6, 6), "d": share(0, 0)}
TEXT = "project a: 4 of 4 GPUs in quota, 2 over; reclaimed when d asks"
RUNS = {"state": JobState.RUNNING, "reason": "", "node_list": ("n1",)}


def explanation_and_comment(row: Job, own_part: str = "", shares: Mapping[str, Share] = OVER) -> tuple[str, str | None]:
    snapshot = make_snapshot(row, projects=ProjectsView(PROJECTS))
    plan = Plan(target=Target(shares=shares))
    comment = JobComments(snapshot, plan).comment_for(row, own_part)
    return explain_job(snapshot, plan, "1").summary, comment.text if comment is not None else None


@pytest.mark.parametrize(
    ("row", "own_part", "explained", "comment"),
    [
        (
            job("1", partitions=("o-a",), **RUNS),
            "",
            f"the job is running on n1; it runs beyond its project's quota and may be requeued; {TEXT}",
            TEXT,
        ),
        (job("1", partitions=("o-a",), **RUNS), "project a: 3 of 4", None, TEXT),
        (job("1", partitions=("q-a",), **RUNS), "", f"the job is running on n1; {TEXT}", None),
        (job("1", partitions=("q-a",), **RUNS), f"waits: {TEXT}", None, ""),
        (job("1", partitions=("q-gone",), **RUNS), "", "the job is running on n1", None),
    ],
)
def test_explain_and_the_comment_say_it(row: Job, own_part: str, explained: str | None, comment: str | None) -> None:
    summary, text = explanation_and_comment(row, own_part)
    assert text == comment
    assert explained in (None, summary)


def waiting(*partitions: str, gpus: int = 1, **fields: Any) -> Job:
    return replace(job("1", partitions=partitions, **fields), gres_per_node=(Gres("gpu", "", gpus),) if gpus else ())


AT_SHARE = {**FULL, "a": share(6, 6, 9), "d": share(2, 2)}
ITS_OWN = {**FULL, "a": share(6, 6), "d": share(2, 6, 6)}
TAKES_BACK = {**FULL, "a": share(5, 6, 9), "d": share(2, 2)}
NOT_REQUEUED = "it may not be requeued (srun, salloc, --no-requeue), and so runs within the quota only"
A = "project a: 4 of 4 GPUs in quota, 2 over; reclaimed when d asks; asks for 3 more, and has its share of 6"
D_GETS = (
    "it is within the quota, and goes before all that is beyond quotas; project d: 2 of 8 GPUs in quota; asks for 4 "
    "more, and is to get them"
)
A_GETS = "project a: 4 of 4 GPUs in quota, 1 over; reclaimed when d asks; asks for 4 more, and is to get 1"


@pytest.mark.parametrize(
    ("row", "shares", "verdict", "explained", "comment"),
    [
        (
            waiting("q-d", "o-d", reason="Resources"), ITS_OWN, "wait",
            f"waiting for nodes; {D_GETS}", f"waits: {D_GETS}",
        ),
        (
            waiting("q-a", "o-a", reason="None"), AT_SHARE, "wait",
            f"waiting for its project's share; {A}", f"waits: {A}",
        ),
        (
            waiting("q-a", "o-a", reason="QOSGrpGRES"), TAKES_BACK, "wait",
            f"waiting for nodes; {A_GETS}", f"waits: {A_GETS}",
        ),
        (
            waiting("q-a", "o-a", reason="BeginTime", restarts=1), AT_SHARE, "wait",
            "begin time not reached (two minutes after a requeue); it has been requeued and begins anew; " + A,
            f"waits: begin time not reached (two minutes after a requeue); it has been requeued and begins anew; {A}",
        ),
        (
            waiting("q-a", reason="QOSGrpGRES"), AT_SHARE, "wait",
            f"waiting for its project's quota; {NOT_REQUEUED}; {A}", f"waits: {NOT_REQUEUED}; {A}",
        ),
        (
            waiting("q-a", reason="QOSGrpGRES", gpus=5), AT_SHARE, "impossible",
            f"it asks for more GPUs than the quota of its project; {NOT_REQUEUED}: ask for 4 GPUs at most; {A}",
            f"cannot start: {NOT_REQUEUED}: ask for 4 GPUs at most; {A}",
        ),
        (
            waiting("o-a", reason="Resources", gpus=0), AT_SHARE, "wait",
            f"waiting for nodes; it asks for no GPUs, and runs where projects leave room; {A}",
            f"waits: it asks for no GPUs, and runs where projects leave room; {A}",
        ),
        (waiting("q-a", "o-a", reason="JobHeldUser"), AT_SHARE, "wait", f"held by its user; {A}",
         f"waits: held by its user; {A}"),
        (
            waiting("q-a", "o-a", reason="BadConstraints"), AT_SHARE, "wait",
            f"Slurm cannot meet its constraints; {A}", f"waits: Slurm cannot meet its constraints; {A}",
        ),
    ],
    ids=["within quota", "beyond it, at its share", "beyond it, below its share", "requeued", "interactive",
         "interactive, too large", "no GPUs", "held", "no node has its features"],
)  # fmt: skip
def test_what_is_said_of_a_waiting_job(
    row: Job, shares: Mapping[str, Share], verdict: str, explained: str, comment: str
) -> None:
    assert explanation_and_comment(row, "", shares) == (explained, comment)
    snapshot = make_snapshot(row, projects=ProjectsView(PROJECTS))
    assert explain_job(snapshot, Plan(target=Target(shares=shares)), "1").verdict == verdict
