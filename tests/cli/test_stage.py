"""burstctl stage against a control interface on a real socket."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from burstd.api.answers.staging import StagingListView
from burstd.api.answers.volumes import VolumeListView
from burstd.cli.commands.stage import print_staging_list
from burstd.cli.commands.volume import print_volumes
from burstd.cli.output import ConsoleOutput
from burstd.domain.command import Command, CommandResult, DiscardOutput, Evict, RetryStage
from tests.api.client import ME, ApiTestClient
from tests.api.fake_backend import FakeBackend
from tests.api.stages import FakeStaging
from tests.api.world import USER

from .conftest import NOBODY, Run, as_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(autouse=True)
def _staging(backend: FakeBackend) -> None:
    backend.stage = FakeStaging()


STATUS = """\
JOB  USER    STATE      SINCE     IN   SENT    OUT  WHY
101  nobody  held       100 s  3 GiB  1 GiB  3 GiB  the store is full
103  daemon  waiting     60 s                       asked for
104  nobody  uploading   60 s                       its turn

"""


def test_all_jobs_and_their_transfers(run: Run) -> None:
    out = run("stage", "status").out
    assert out.startswith(STATUS)
    (line,) = [line for line in out.splitlines() if "to the store" in line]
    assert line.split("━")[0].split() == ["104", "to", "the", "store"]
    assert [part.strip() for part in line.split("━")[-1].split("  ") if part] == [
        "2 GiB of 8 GiB",
        "100 MiB/s",
        "61 s",
        "1 GiB",
    ]
    assert line.count("━") == 5, "a quarter of 20"
    assert "  gpu1 is kept 2 h more for the output of job 101, then both are gone: the store is full\n" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("stage status 101", "held for 100 s: gave up"),
        ("stage status 101", "from collecting, when told to (burstctl stage retry 101)"),
        ("stage status 101", "3 GiB, 1 GiB sent, 2 GiB were there already"),
        ("stage status 101", "images  read only  imagenet@2021  3 GiB   1000"),
        ("stage status 101", "gpu1: 3 GiB in 1000 files is in the store"),
        ("stage status 101", "collecting > held"),
        ("stage status 101", "expected  14:08:20, was there at 14:08:10"),
        ("stage status 104", "expected  14:14:21 (in 61 s)"),
        ("stage status 104", "run.py  read only  ~/run.py"),
        ("stage status --all", "90   nobody  cleared"),
        ("stage status --all -n 2", "There is more (-n)."),
        ("stage status --user nosuch", "No job has data here."),
        ("stage usage", "store site (s3): 5 GiB in 700 objects, 2 leftovers to be removed, looked 5 s ago"),
        ("stage usage", "nobody  3 GiB  4 GiB  ━━━━━━━━━━━━━━━"),
        ("status", "\ndata of 3 jobs: 1 waiting, 1 uploading, 1 held, 100 MiB/s (store site)\n"),
        ("event list --job 101", "stage 101"),
    ],
)
def test_what_people_read(run: Run, words: str, says: str) -> None:
    outcome = run(*words.split())
    assert says in outcome.out
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("stage status", "/v1/stage"),
        ("stage status 104", "/v1/stage/104"),
        ("stage status --all -n 2", "/v1/stage?all=true&limit=2"),
        ("stage usage", "/v1/stage/usage"),
    ],
)
def test_json_is_the_answer_itself(run: Run, control: Path, words: str, path: str) -> None:
    outcome = run(*words.split(), "--json")
    with ApiTestClient(control) as client:
        assert json.loads(outcome.out) == client.get(path)


@pytest.mark.parametrize("columns", [30, 50, 79, 132])
@pytest.mark.parametrize("words", ["stage status", "stage status 101", "stage usage", "status"])
def test_no_line_is_wider_than_the_window(run: Run, words: str, columns: int) -> None:
    outcome = run(*words.split(), columns=columns)
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= columns


def test_watching_ends_when_the_data_has_come_to_an_end(run: Run) -> None:
    outcome = run("stage", "status", "101", "--watch")
    assert outcome.code == 0
    assert outcome.out.count("held for") == 1
    assert len(run("stage", "status", "101", "--watch", "--json").out.splitlines()) == 1


def test_on_a_terminal_a_page_takes_the_place_of_the_one_before(control: Path, backend: FakeBackend) -> None:
    with ApiTestClient(control) as client:
        answer = StagingListView.model_validate(client.get("/v1/stage"))
    written = io.StringIO()
    paper = ConsoleOutput()
    paper._console = Console(file=written, force_terminal=True, width=100)
    paper.live_pages((lambda p: print_staging_list(p, answer)) for _ in range(3))
    pages = written.getvalue().split("\x1b[1A\x1b[2K" * (len(answer.jobs) + 4))
    # Rich draws the last one once more when it lets the terminal go.
    assert [page.count("the store is full") for page in pages] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("on", "says"),
    [
        (True, "There is no volume.\n"),
        (False, "No provider has volumes: burstd was started without prices in [volumes].\n"),
    ],
)
def test_that_nobody_has_volumes_is_said_once(on: bool, says: str) -> None:
    written = io.StringIO()
    paper = ConsoleOutput()
    paper._console = Console(file=written, width=100)
    print_volumes(paper, VolumeListView(now=100.0, on=on, volumes=[], unknown=[]))
    assert written.getvalue() == says


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("stage retry 101", RetryStage("101", f"user:{ME}")),
        ("stage discard 101 --yes", DiscardOutput("101", f"user:{ME}")),
        ("stage evict --dataset imagenet@2021", Evict("dataset", "imagenet@2021", f"user:{ME}")),
        ("stage evict --tree abab", Evict("tree", "abab", f"user:{ME}")),
        ("stage evict --user ada", Evict("user", "ada", f"user:{ME}")),
        ("stage evict --unneeded", Evict("unneeded", "", f"user:{ME}")),
    ],
)
def test_what_is_asked_for_reaches_the_daemon(run: Run, backend: FakeBackend, words: str, command: Command) -> None:
    outcome = run(*words.split())
    assert (outcome.code, outcome.err, backend.commands) == (0, "", [command])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("stage retry 104", 1, "is uploading, not held; there is nothing to retry."),
        ("stage status 999", 5, "Job 999 has no data on burstd's record."),
        ("stage status 101 --all", 2, "Name a job, or choose several"),
        ("stage evict", 2, "Choose one of --dataset, --tree, --user and --unneeded."),
        ("stage evict --user ada --unneeded", 2, "Choose one of"),
        ("stage discard 101", 2, "say --yes to do it without being asked"),
        ("stage discard 101 --json", 2, "say --yes"),
    ],
)
def test_what_cannot_be_ends_with_its_code(run: Run, backend: FakeBackend, words: str, code: int, says: str) -> None:
    outcome = run(*words.split())
    assert (outcome.code, outcome.out, backend.commands) == (code, "", [])
    assert says in outcome.err


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_output_is_given_up_only_after_a_yes(run: Run, backend: FakeBackend, answer: str, code: int) -> None:
    outcome = run("stage", "discard", "101", typed=answer)
    assert "Output of job 101 on gpu1 that is not home yet will be lost. Give it up?" in outcome.err
    assert (outcome.code, len(backend.commands)) == (code, 1 - code)


@pytest.mark.slow
def test_where_nothing_is_staged_it_is_said(run: Run, backend: FakeBackend) -> None:
    backend.stage = None
    assert "burstd stages nothing: its settings have no table [staging]." in run("stage", "status").out
    assert run("stage", "usage").out == "burstd stages nothing: its settings have no table [staging].\n"
    backend.answer = lambda _: CommandResult("jobs' data is not staged", done=False)
    outcome = run("stage", "retry", "101")
    assert (outcome.code, outcome.err) == (1, "burstctl: jobs' data is not staged\n")


def test_a_store_that_cannot_be_used_is_seen(run: Run, backend: FakeBackend) -> None:
    backend.stage = FakeStaging("the bucket is gone")
    assert "! the store site cannot be used: the bucket is gone" in run("status").out
    assert "! the bucket is gone" in run("stage", "usage").out


@pytest.mark.slow
@needs_root
def test_other_users(run: Run) -> None:
    assert run("stage", "status").code == run("stage", "usage").code == 0
    with as_user(NOBODY):
        assert "daemon" not in run("stage", "status").out
        assert "daemon" not in run("stage", "usage").out
        assert run("stage", "retry", "101").code == 0
        for words in ("stage status 103", "stage discard 103 --yes", "stage evict --user daemon"):
            denied = run(*words.split())
            assert (words, denied.code, denied.out) == (words, 4, "")
            assert USER in denied.err
