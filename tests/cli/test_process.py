"""burstctl as a process of its own: what it loads, how it ends, what the shell completes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from burstd.cli.main import COMMANDS, GROUPS, load_command
from tests.api.fake_backend import FakeBackend

from .conftest import Run

pytestmark = pytest.mark.slow


BURSTCTL = "import sys; sys.argv[0] = 'burstctl'; from burstd.cli.main import main; main()"
HEAVY = ("fastapi", "httpx", "uvicorn", "sqlmodel", "sqlalchemy", "alembic", "paramiko", "jinja2", "textual",
         "prometheus_client", "burstd.settings", "burstd.db", "burstd.planner", "burstd.daemon", "burstd.reconciler",
         "burstd.api.routers", "burstd.staging", "burstd.simulate", "burstd.cli.checks", "burstd.cli.offline",
         "burstd.cli.commands.provider", "burstd.cli.commands.job")  # fmt: skip


def burstctl(control: Path, *words: str, code: str = BURSTCTL, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BURSTD_SOCKET": str(control), **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "more"),
    [("status", ()), ("--help", ("http.client", "pydantic", "burstd.cli.commands")), ("--version", ("pydantic",)),
     ("volume --help", ("http.client", "pydantic"))],
)  # fmt: skip
def test_it_loads_little(control: Path, backend: FakeBackend, word: str, more: tuple[str, ...]) -> None:
    look = f"print([m for m in {(*HEAVY, *more)} if m in sys.modules], file=sys.stderr)"
    process = burstctl(control, *word.split(), code=BURSTCTL.replace("; main()", f"\ntry: main()\nfinally: {look}"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "[]\n")
    assert "burstd" in out or "burstctl" in out


def test_a_command_has_the_same_line_in_the_list_as_in_its_own_help() -> None:
    for name, (_, line) in COMMANDS.items():
        assert load_command(name).help.split("\n\n")[0] == line, name


def test_each_command_is_in_one_group_of_the_list(run: Run) -> None:
    names = [name for group in GROUPS.values() for name in group if name in COMMANDS]
    assert sorted(names) == sorted(COMMANDS)
    listed = run("--help").out.partition("Jobs:")[2]
    assert [line.split()[0] for line in listed.splitlines() if re.match("  [a-z]", line)][: len(names)] == names


def test_events_are_followed_until_ctrl_c(control: Path, backend: FakeBackend) -> None:
    # A shell that started the tests in the background had them ignore the signal.
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {BURSTCTL}"
    process = burstctl(control, "event", "follow", "--json", "-n", "3", code=code)
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline())["seq"] for _ in range(3)]
    assert seen == sorted(seen)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_reader_that_goes_away_sees_no_traceback(control: Path, backend: FakeBackend) -> None:
    process = burstctl(control, "event", "follow", "--json", "-n", "10000")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(30) != 0
    assert "Traceback" not in err


def test_a_bug_becomes_a_sentence(control: Path, backend: FakeBackend) -> None:
    code = BURSTCTL.replace("main()", "import burstd.cli.commands.status as s; s.ago = None; main()")
    process = burstctl(control, "status", code=code)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.startswith(f"burstctl: the answer from {control} cannot be shown (TypeError: ")
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("burstctl sc", ["scale"]),
        ("burstctl scale ", ["gpu", "cpu"]),
        ("burstctl node show gpu", [f"gpu{n}" for n in range(1, 9)]),
        ("burstctl explain 10", [str(n) for n in range(101, 107)]),
        ("burstctl node dr", ["drain"]),
    ],
)
def test_the_shell_completes(control: Path, backend: FakeBackend, line: str, words: list[str]) -> None:
    parts = line.split(" ")
    env = {"_BURSTCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(parts) - 1)}
    process = burstctl(control, **env)
    out, err = process.communicate(timeout=30)
    assert (sorted(out.split()), err) == (sorted(words), "")


def test_nothing_is_completed_without_a_daemon(tmp_path: Path) -> None:
    env = {"_BURSTCTL_COMPLETE": "complete_bash", "COMP_WORDS": "burstctl scale ", "COMP_CWORD": "2"}
    process = burstctl(tmp_path / "none", **env)
    out, err = process.communicate(timeout=30)
    assert (out.strip(), err) == ("", "")
