"""burstctl project against a control interface on a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from burstd.cli.commands import project as commands
from burstd.domain.command import ChangeProject, DeleteProject
from tests.api.fake_backend import FakeBackend
from tests.api.test_projects import LOOP, result

from .conftest import Run
from .test_config_check import SETTINGS


@pytest.fixture(autouse=True)
def _projects(backend: FakeBackend) -> None:
    backend.loop = LOOP
    backend.answer = result


def test_the_list_shows_the_tree_and_what_slurm_lacks(run: Run) -> None:
    lines = [line.rstrip() for line in run("project", "list", columns=120).out.splitlines()]
    assert lines == [
        "PROJECT  QUOTA  RUNS  OVER  SHARE  ASKS",
        "e          0.5     0     0    0.5   0.5  ··                        is being set up",
        "physics      0",
        "  a          4     6     2      6     8  ████████████████▒▒▒▒▒▒▒▒  partition q-a: it is not there",
    ]


def test_a_project_is_shown_with_its_jobs_and_what_they_wait_for(run: Run) -> None:
    lines = [line.rstrip() for line in run("project", "show", "a", columns=80).out.splitlines()]
    at = lines.index("JOB  USER    GPUS  STATE")
    assert lines[at + 1 : at + 4] == [
        "201  nobody     4  running",
        "202  daemon     4  running  over quota",
        "203  daemon     4  pending  waiting for its project's share",
    ]


def test_options_become_keys_of_the_table(run: Run, backend: FakeBackend) -> None:
    words = "--account team-f --quota 1/2 --partitions gpu,long --limit none --min-runtime 10m --priority -1"
    done = run("project", "create", "f", *words.split(), "--features", "a100,big", "--burst-over-quota", "budget")
    assert (done.code, done.out) == (0, "project f\n  to take it back: burstctl project delete e\n")
    command = backend.commands[-1]
    assert isinstance(command, ChangeProject)
    assert (command.create, command.values) == (
        True,
        {
            "account": "team-f", "quota": "1/2", "limit": None, "partitions": ["gpu", "long"],
            "features": ["a100", "big"], "min_runtime_s": 600.0,
            "priority": -1, "burst_over_quota": "budget",
        },
    )  # fmt: skip


def test_a_dry_run_prints_the_commands_alone(run: Run, backend: FakeBackend) -> None:
    out = run("project", "set", "e", "--quota", "3", "--dry-run").out
    assert out == "sacctmgr -i add qos q-e\nscontrol create PartitionName=q-e\n"
    assert run("project", "delete", "e", "--dry-run").out == "scontrol delete PartitionName=q-e\n"
    assert {getattr(command, "dry_run", None) for command in backend.commands} == {True}


def test_a_command_stays_on_one_line_in_a_narrow_window(run: Run) -> None:
    out = run("project", "set", "e", "--quota", "3", "--dry-run", columns=20).out
    assert out == "sacctmgr -i add qos q-e\nscontrol create PartitionName=q-e\n"
    out = run("project", "create", "f", "--account", "team-f", columns=20).out
    assert out.splitlines()[1:] == ["  to take it back: burstctl project delete e"]


def test_what_slurm_has_not_taken_yet_is_said_with_why(run: Run, backend: FakeBackend) -> None:
    backend.project_sync.failures["e"] = "slurmdbd does not answer"
    done = run("project", "set", "e", "--quota", "3")
    assert done.code == 1
    assert done.err == (
        "burstctl: project e is on record; Slurm is not ready for it: slurmdbd does not answer. "
        "burstd goes on trying.\n"
    )


def test_deletion_asks_first(run: Run, backend: FakeBackend) -> None:
    assert run("project", "delete", "a", typed="n\n").code == 1
    assert backend.commands == []
    assert run("project", "delete", "a", typed="y\n").code == 0
    assert isinstance(backend.commands[-1], DeleteProject)


def test_a_bad_length_of_time_is_named(run: Run) -> None:
    done = run("project", "set", "a", "--reclaim-after", "soon")
    assert (done.code, done.err) == (
        2, "burstctl: --reclaim-after: 'soon' is no length of time; write 90s, 15m, 2h, 1h30m, 3d or 1w.\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("quota", "running", "share", "bar"),
    [
        (4, 6, 6, "████████████▒▒▒▒▒▒"),
        (8, 2, 8, "██████··················"),
        (4, 0, 4, "············"),
        (0, 0, 0, ""),
    ],
)
def test_a_bar_has_what_runs_and_what_is_still_to_come(quota: float, running: float, share: float, bar: str) -> None:
    assert commands.share_bar(quota, running, share, 8).plain == bar


def test_the_lines_for_slurm_are_of_the_projects_as_burstctl_has_changed_and_made_them(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "burstd.toml"
    projects = '[projects.a]\naccount = "team-a"\nquota = 3\npartitions = ["main"]\n'
    file.write_text(f'{SETTINGS}[daemon]\nspool_dir = "{tmp_path}"\n{projects}', encoding="utf-8")
    words = ("slurm-config", "--slurm", "24.11", "--config", str(file))
    out = run(*words).out
    assert "sacctmgr -i add qos q-a 'Description=burstd project a' GrpTRES=gres/gpu=4 " in out
    assert "Include" not in out
    assert "GrpTRES=gres/gpu=3 " in run(*words, "--socket", str(tmp_path / "none.sock")).out, "what the file says"
    (tmp_path / "projects.conf").write_text("# project e\nPartitionName=q-e Nodes=n1\n", encoding="utf-8")
    assert run(*words).out.splitlines()[-4:] == [
        "# 'burstctl project' has made e: burstd keeps the lines in",
        f"# {tmp_path}/projects.conf. Before slurm.conf has the next line, link this file as",
        "# burstd-projects.conf beside it.",
        "Include burstd-projects.conf",
    ]
