"""What burstctl project has changed, over what burstd.toml says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from burstd.domain.project import ProjectOverride, SetupStep
from burstd.settings import parse_settings
from burstd.settings.project_overrides import changed_projects, project_values, projects_in_force

WRITTEN = parse_settings("""
cluster = "lab"
[projects.a]
account = "team-a"
quota = 4
limit = 8
partitions = ["gpu"]
[projects.b]
account = "team-b"
quota = 2
partitions = ["gpu"]
""").projects


def override(
    name: str, values: Mapping[str, object], *, created: bool = False, removed: bool = False
) -> ProjectOverride:
    pending = SetupStep.REMOVE if removed else SetupStep.SET_UP
    return ProjectOverride(name, values, created, pending, "user:root", 1.0)


NEW = {"account": "team-c", "quota": "1/3", "partitions": ["gpu"]}


@pytest.mark.parametrize(
    ("changes", "name", "values"),
    [
        ([], "a", {"account": "team-a", "quota": "4", "limit": "8", "partitions": ["gpu"]}),
        (
            [override("a", {"quota": "0.5"})],
            "a",
            {"account": "team-a", "quota": "0.5", "limit": "8", "partitions": ["gpu"]},
        ),
        ([override("a", {"limit": None})], "a", {"account": "team-a", "quota": "4", "partitions": ["gpu"]}),
        ([override("c", NEW, created=True)], "c", NEW),
    ],
)
def test_a_change_lies_over_the_file(changes: list[ProjectOverride], name: str, values: Mapping[str, object]) -> None:
    projects, faults = changed_projects(WRITTEN, changes)
    assert (project_values(projects[name]), faults) == (values, [])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (override("a", {"quota": "-1"}), "projects.a.quota: must not be negative"),
        (override("a", {"quota": "many"}), "projects.a.quota: must be a number of GPUs, such as 4, 0.5 or '1/3'"),
        (override("a", {"quotas": "1"}), "projects.a.quotas: there is no such key; did you mean 'quota'? "),
        (override("b", {"parent": "z"}), "projects.b.parent: no project is called 'z'; known: a"),
        (override("b", {"account": "team-a"}), "projects.a.account: team-a is the account of project b too"),
        (override("C", NEW, created=True), "projects.C: a project's name is 1 to 28 of a-z"),
        (override("z", {"quota": "1"}), "projects.z: burstd.toml has it no more: 'burstctl project set z --reset'"),
    ],
)
def test_a_change_that_does_not_fit_is_named(change: ProjectOverride, fault: str) -> None:
    _, faults = changed_projects(WRITTEN, [change])
    assert str(faults[0]).startswith(fault)


def test_at_the_start_what_does_not_fit_any_more_is_left_out_and_the_rest_holds() -> None:
    child = override("c1", {"account": "team-c1", "parent": "c"}, created=True)
    parent = override("c", {"account": None, "partitions": ["gpu"], "quota": "1"}, created=True)
    projects, refused = projects_in_force(WRITTEN, [child, override("z", {"quota": "1"}), parent])
    assert projects.keys() == {"a", "b", "c", "c1"}
    assert [*refused] == ["z"]
    assert "burstd.toml has it no more" in refused["z"]


def test_a_project_that_is_being_removed_is_not_in_force() -> None:
    assert changed_projects(WRITTEN, [override("c", NEW, created=True, removed=True)])[0].keys() == {"a", "b"}
