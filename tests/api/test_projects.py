"""Projects over the control interface: who sees what, who may change what, and what is asked of Slurm before."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from burstd.domain.command import ChangeProject, Command, CommandResult, DeleteProject
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Target
from burstd.domain.project import OverQuotaLimits, Project, ProjectsView, Share
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView

from .client import ApiTestClient
from .fake_backend import FakeBackend
from .world import OTHER_USER, SLURM, SNAPSHOT, USER, job

PROJECTS = {
    "physics": Project("physics", partitions=("gpu",)),
    "a": Project("a", "team-a", Fraction(4), parent="physics", partitions=("gpu",)),
    "e": Project("e", "team-e", Fraction(1, 2), partitions=("gpu",), min_runtime_s=600.0),
}
JOBS = (
    job("201", USER, JobState.RUNNING, partitions=("q-a",)),
    job("202", OTHER_USER, JobState.RUNNING, partitions=("o-a",)),
    job("203", OTHER_USER, partitions=("q-a", "o-a")),
    job("204", USER, JobState.RUNNING, partitions=("o-e",)),
)
VIEW = ProjectsView(PROJECTS, {"a": OverQuotaLimits(Fraction(2), 1)}, {"a": "partition q-a: it is not there"})
SHARES = {
    "a": Share(Fraction(8), Fraction(6), Fraction(3), Fraction(6)),
    "e": Share(Fraction(1, 2), Fraction(0), Fraction(0), Fraction(1, 2)),
}
LOOP = (
    replace(SNAPSHOT, slurm=SlurmView(JOBS, SLURM.nodes, ()), projects=VIEW),
    Plan(target=Target(shares=SHARES)),
)


@pytest.fixture(autouse=True)
def _projects(backend: FakeBackend) -> None:
    backend.loop = LOOP


def test_everybody_sees_all_projects_each_after_its_parent(nobody: ApiTestClient) -> None:
    found = {project["name"]: project for project in nobody.get("/v1/projects")["projects"]}
    assert [*found] == ["e", "physics", "a"]
    a, e = found["a"], found["e"]
    assert (a["quota"], a["cap"], a["origin"], a["changed"]) == (4, 2, "burstd.toml, changed by burstctl", ["quota"])
    assert (a["error"], a["pending"]) == ("partition q-a: it is not there", "")
    assert a["share"] == {"demand": 8, "running": 6, "over_quota": 2, "share": 6}
    assert a["text"].startswith("project a: 4 of 4 GPUs in quota, 2 over; reclaimed when e asks; asks for 2 more")
    assert found["physics"]["share"] is None
    assert [text.partition(":")[0] for text in nobody.get("/v1/status")["projects"]] == ["project e", "project a"]
    assert (e["quota"], e["cap"], e["origin"], e["pending"]) == (0.5, None, "burstctl", "set up")


def test_users_see_their_own_jobs_of_a_project_and_how_many_there_are_of_others(
    nobody: ApiTestClient, root: ApiTestClient
) -> None:
    seen = nobody.get("/v1/projects/a")
    assert [(one["id"], one["over_quota"]) for one in seen["jobs"]] == [("201", False)]
    assert (seen["other_jobs"], seen["history"]) == (2, [])
    seen = root.get("/v1/projects/a")
    assert [(one["id"], one["over_quota"]) for one in seen["jobs"]] == [("201", False), ("202", True), ("203", False)]
    assert (seen["other_jobs"], [event["reason"] for event in seen["history"]]) == (0, ["quota 3 -> 4"])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/projects/f", {"values": {}}),
        ("PUT", "/v1/projects/a", {"values": {}, "dry_run": True}),
        ("DELETE", "/v1/projects/e", {}),
    ],
)
def test_users_change_none(nobody: ApiTestClient, backend: FakeBackend, method: str, path: str, body: object) -> None:
    status, answer = nobody.request(method, path, body)
    assert (status, backend.commands) == (403, [])
    assert "This is for root" in answer["error"]


def result(command: Command) -> CommandResult:
    assert isinstance(command, ChangeProject | DeleteProject)
    return CommandResult(f"project {command.name}", project=PROJECTS["e"], undo="burstctl project delete e")


def test_a_project_is_checked_then_planned_with_slurm_then_written(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.answer = result
    values = {"account": "team-e", "quota": "1/2", "partitions": ["gpu"], "limit": None, "min_runtime_s": 600.0}
    status, answer = root.request("POST", "/v1/projects/e", {"values": values})
    assert (status, answer["undo"]) == (200, "burstctl project delete e")
    assert answer["commands"] == ["sacctmgr -i add qos q-e", "scontrol create PartitionName=q-e"]
    assert backend.commands == [
        ChangeProject("e", values, create=True, reset=False, dry_run=dry_run, by=backend.commands[0].by)
        for dry_run in (True, False)
    ]
    backend.commands.clear()
    root.request("PUT", "/v1/projects/e", {"values": {}, "reset": True, "dry_run": True})
    root.request("DELETE", "/v1/projects/e", {"dry_run": True})
    assert [getattr(command, "dry_run", None) for command in backend.commands] == [True, True]


def test_a_name_that_slurm_has_for_something_else_is_refused_and_nothing_is_written(
    root: ApiTestClient, backend: FakeBackend
) -> None:
    backend.answer = result
    backend.project_sync.slurm.refuses = "partition q-e was not made for project e: rename the project"
    status, answer = root.request("POST", "/v1/projects/e", {"values": {"account": "team-e"}})
    assert (status, answer["error"]) == (409, "partition q-e was not made for project e: rename the project.")
    assert [command.dry_run for command in backend.commands if isinstance(command, ChangeProject)] == [True]


def test_an_unknown_project_is_named_with_those_that_there_are(root: ApiTestClient) -> None:
    status, answer = root.request("GET", "/v1/projects/z")
    assert (status, answer["known"]) == (404, ["e", "physics", "a"])
