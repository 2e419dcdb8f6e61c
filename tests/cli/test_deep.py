"""burstctl check --deep: what is said of a trial job that does not end well. One that does runs in tests/docs."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, ExitCode, Params
from burstd.cli.setup import deep
from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Gres, Shape

ADA = pwd.struct_passwd(("ada", "x", 3001, 3001, "", "/home/ada", "/bin/sh"))
GPU = Pool("gpu", ("g1",), ("burst",), Shape(2, 1800, (Gres("gpu", "v100", 2),)))
CPU = Pool("cpu", ("c1",), ("burst",), Shape(2, 1800))
BOOTING = {"seq": 41, "node": "c1", "subject": "claim:1", "new": "booting", "reason": "an instance is there"}
OLD = {"seq": 40, "node": "c9", "subject": "claim:0", "new": "failed", "reason": "of an older job 5"}
FAILED = [
    {"seq": 42, "node": "c1", "subject": "claim:1", "new": "failed", "reason": "capacity: none left"},
    {"seq": 43, "node": "", "subject": "job:5", "new": "failed", "reason": "no machine"},
    {"seq": 44, "node": "c2", "subject": "claim:2", "new": "lost", "reason": "gone from two lists"},
]
ENDED = {"state": "COMPLETED", "exit_code": "0:0", "nodes": ["c1"]}


class Daemon(ApiClient):
    """Answers with what it is given; an explanation is not known. ``events`` come after its start."""

    def __init__(self, *details: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]] = (BOOTING,)) -> None:
        super().__init__(Path("/none"), as_json=False)
        self._details: Iterator[Mapping[str, Any] | None] = iter(details)
        self._events = [OLD, *events]

    def get_json(self, path: str, params: Params | None = None) -> Any:
        assert (path, params) == ("/events", {"limit": 1})
        return {"events": [OLD], "last": 40}

    def request_status(self, method: str, path: str, *_: object, **more: Any) -> tuple[int, Any]:
        del method
        if path == "/events":
            found = [event for event in self._events if event["seq"] > more["params"]["after"]]
            return 200, {"events": found, "last": self._events[-1]["seq"]}
        detail = None if path.endswith("/explanation") else next(self._details)
        return (404, {"error": "none"}) if detail is None else (200, detail)


def trial(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, answers: Callable[[tuple[str, ...]], tuple[int, str, str]]
) -> deep.Trial:
    monkeypatch.setattr(deep, "POLL_S", 0.0)
    monkeypatch.setattr(deep, "OUTPUT_TIMEOUT_S", 0.0)

    def as_user(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, *answers(words))

    return deep.Trial(daemon, ConsoleOutput(), ADA, 60.0, as_user)


@pytest.mark.parametrize(
    ("details", "output", "says"),
    [
        ([{"end": {**ENDED, "state": "FAILED", "exit_code": "0:53"}}], "", "the job ended as FAILED, exit code 0:53"),
        ([None, {"job": {"verdict": "impossible"}}], "", "the job can never start"),
        (
            [{"job": {"verdict": "boot"}}, {"end": ENDED}], "",
            (
                "the job completed, and its output is not in /home/ada/slurm-5.out: its node did not have /home/ada of "
                "this host; name the tree in [mounts] of burstd.toml, or mount it in the node's image"
            ),
        ),
        (
            [{"end": ENDED}], "burstd check: 1001 /home/ada\n",
            (
                "the job ran as uid 1001 in /home/ada, and ada is uid 3001 in /home/ada here: users must have the same "
                "numbers and homes on nodes"
            ),
        ),
    ],
)  # fmt: skip
def test_a_trial_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    details: list[dict[str, Any] | None],
    output: str,
    says: str,
) -> None:
    one = trial(monkeypatch, Daemon(*details), lambda words: (0, output if words[0] == "head" else "", ""))

    def run() -> None:
        one.follow("5")
        one.read_output("5")

    with pytest.raises(typer.Exit) as ended:
        run()
    said = capsys.readouterr()
    assert ended.value.exit_code == ExitCode.NEGATIVE
    assert said.err == f"burstctl: The trial failed: {says}.\n"
    assert "c1  booting  an instance is there\n" in said.out
    assert "older job" not in said.out


def test_the_trial_ends_when_its_job_is_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "home directory /home/ada of ada is not on nodes of pool cpu (seen on c1)"
    held = {"seq": 43, "node": "", "subject": "job:5", "new": "held", "reason": why}
    one = trial(monkeypatch, Daemon(events=[BOOTING, held]), lambda _: (0, "", ""))
    with pytest.raises(typer.Exit):
        one.follow("5")
    said = capsys.readouterr()
    assert said.err == "burstctl: The trial failed: burstd holds the job, which cannot run on its node.\n"
    assert f"job 5 held {why}" in " ".join(said.out.split())


def test_the_trial_ends_with_the_second_machine_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = {"job": {"verdict": "boot"}}
    one = trial(monkeypatch, Daemon(waits, events=[FAILED[0]]), lambda _: (0, "", ""))
    with pytest.raises(StopIteration):  # it goes on asking after one
        one.follow("5")
    two = trial(monkeypatch, Daemon(events=FAILED), lambda _: (0, "", ""))
    with pytest.raises(typer.Exit):
        two.follow("5")
    assert capsys.readouterr().err == (
        "burstctl: The trial failed: 2 machines failed:\n  c1: capacity: none left\n  c2: gone from two lists.\n"
    )


def test_the_job_is_submitted_to_one_pool_from_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []

    def answers(words: tuple[str, ...]) -> tuple[int, str, str]:
        seen.append(words)
        return 0, "5;site\n", ""

    assert trial(monkeypatch, Daemon(), answers).submit(GPU, ["c1", "op1"]) == "5"
    assert seen[0][:2] == ("sbatch", "--parsable")
    assert {"--partition=burst", "--gres=gpu:v100:1", "--exclude=c1,op1"} <= set(seen[0])


def test_root_s_environment_stays_out_of_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runuser = tmp_path / "runuser"
    runuser.write_text('#!/bin/sh\nshift 3\nexec "$@"\n', encoding="utf-8")
    runuser.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(runuser))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/other.conf")
    user = pwd.struct_passwd(("ada", "x", 3001, 3001, "", str(tmp_path), "/bin/sh"))
    done = deep.run_at_home(user, "sh", "-c", "env; pwd")
    said = done.stdout.splitlines()
    assert {f"HOME={tmp_path}", "USER=ada", "SLURM_CONF=/etc/slurm/other.conf", str(tmp_path)} <= set(said)
    assert "s3cret" not in done.stdout


def test_what_sbatch_refuses_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    one = trial(monkeypatch, Daemon(), lambda _: (1, "", "sbatch: error: invalid account\n"))
    with pytest.raises(typer.Exit):
        one.submit(CPU, [])
    assert capsys.readouterr().err == "burstctl: sbatch refused ada's job: sbatch: error: invalid account\n"


def test_pool_and_user_are_chosen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    daemon = Daemon()
    assert deep.choose_pool(daemon, [GPU, CPU], "") is CPU
    assert deep.choose_pool(daemon, [GPU], "") is GPU
    with pytest.raises(typer.Exit):
        deep.choose_pool(daemon, [GPU, CPU], "tpu")
    with pytest.raises(typer.Exit):
        deep.choose_user(daemon, "nobody-of-this-name")
    assert capsys.readouterr().err == (
        "burstctl: There is no pool tpu; there are gpu, cpu.\n"
        "burstctl: There is no user nobody-of-this-name here; say another with --user.\n"
    )
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert deep.choose_user(daemon, me).pw_name == me or me == "root"
