"""Pending jobs whose paths their nodes do not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.mounts import MountRule, MountsView
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import StageState
from burstd.planner.decide import decide
from burstd.planner.explain.explain import explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.timeouts import Tuning

from .test_inputs import data
from .worlds import job, make_snapshot, pool

RULES = (
    MountRule("home", "/home/{user}"),
    MountRule("project", "/project", pools=("gpu",)),
    MountRule("software", "/sw", read_only=True, public=True),
)
GPU, CPU = pool("gpu"), pool("cpu", partitions=("cpu",))


def world(rules: tuple[MountRule, ...] = RULES, **fields: Any) -> Snapshot:
    fields = {"user": "ada", "work_dir": "/home/ada", **fields}
    return replace(make_snapshot(job("7", **fields), pools=(GPU, CPU)), mounts=MountsView(rules=rules))


def warnings(snapshot: Snapshot) -> list[str]:
    return [r.reason for r in decide(snapshot, (), Tuning()).remarks if r.verdict == "warn"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"work_dir": "/home/ada/../ada/x/"}, ""),
        ({"work_dir": "/sw/tool"}, ""),
        ({"work_dir": "/project"}, ""),
        (
            {"work_dir": "/project", "partitions": ("cpu",)},
            "working directory /project is not shown on nodes of pool cpu",
        ),
        ({"work_dir": "/project", "partitions": ("burst", "cpu")}, "/project is not shown on nodes of pool cpu"),
        ({"work_dir": "/home/bob"}, "working directory /home/bob is not shown on nodes of pool gpu"),
        ({"work_dir": "/home/adam"}, "working directory /home/adam is not shown"),
        ({"output_dir": "/logs"}, "directory of its output /logs is not shown on nodes of pool gpu"),
        ({"output_dir": "/project/logs"}, ""),
        ({"work_dir": "/a\x1b\n" + "b" * 200}, "working directory /a??bbb"),
        ({"work_dir": "/x", "state": JobState.RUNNING}, ""),
        ({"work_dir": ""}, ""),
        ({"work_dir": "/x", "partitions": ("onprem",)}, ""),
    ],
)
def test_a_path_in_no_tree_is_told(fields: dict[str, Any], text: str) -> None:
    found = warnings(world(**fields))
    assert len(found) == bool(text)
    assert not text or text in found[0]


def test_a_home_that_is_not_known_so_far_may_be_anywhere() -> None:
    snapshot = world((MountRule("home", "{home}"),), work_dir="/users/x/ada")
    assert warnings(snapshot) == []
    known = replace(snapshot.mounts, homes={"ada": "/users/y/ada"})
    assert len(warnings(replace(snapshot, mounts=known))) == 1
    assert warnings(replace(snapshot, mounts=replace(known, homes={"ada": "/users/x/ada"}))) == []


def test_nothing_is_told_without_trees_and_of_staged_jobs() -> None:
    assert warnings(world((), work_dir="/x")) == []
    assert warnings(replace(world(work_dir="/x"), data={"7": data(StageState.STAGED)["1"]})) == []


def test_explain_and_comment_have_it_behind_the_last_word() -> None:
    snapshot = world(work_dir="/x")
    plan = decide(snapshot, (), Tuning())
    explained = explain_job(snapshot, plan, "7")
    text = "; working directory /x is not shown on nodes of pool gpu"
    assert explained.verdict != "warn"
    assert explained.summary.endswith(text)
    comment = JobComments(snapshot, plan).comment_for(job("7", user="ada", work_dir="/x"), "")
    assert comment is not None
    assert comment.text.endswith(text)
