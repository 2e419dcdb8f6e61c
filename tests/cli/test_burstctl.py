"""burstctl against a control interface on a real socket."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from burstd.cli.main import app
from burstd.cli.session import ApiClient
from burstd.db import NodeFaults
from burstd.domain.command import (
    ClearPin,
    Command,
    CommandResult,
    DrainSlots,
    Pause,
    PlanNow,
    ReleaseSlots,
    Resume,
    SetPin,
)
from burstd.domain.idle_gpus import IdleJob
from burstd.domain.snapshot import SlurmView
from tests.api.client import ME, ApiTestClient
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.world import NOW, SNAPSHOT, USER

from .conftest import NOBODY, Run, as_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

STATUS = """\
burstd 0.1.0 on ada, up 1 h 1 min, last loop 1 s ago, now 15.50 EUR/h
  ! provider sky cannot be read: no answer

POOL  WANTED  BOOT  READY  BUSY  IDLE  LEAVE  FAIL  FREE  SLOTS  EUR/H
gpu        6     1      1     1     1      0     1     2      8  15.30
cpu        0     0      0     0     0      1     0     1      2   0.20
  gpu: at least 4 nodes until 16:13:20 (2 h more), by root
  gpu: gpu8 held for 1 s, by root: fan is loud

Slurm 22.05.8  ok    10 nodes, 7 jobs
sandbox        ok    6 running, 3 offers, 2 calls under way
sky            down  no answer; last known 5 min ago
  sandbox/local/b/g8/on-demand: circuit breaker open for 4 min after 3 failures
  (capacity: zone b has no g8)

4 jobs wait (6 with every array task): 1 boot, 1 covered, 1 impossible, 1 wait
"""


def test_status_fits_a_terminal(run: Run) -> None:
    outcome = run("status", columns=80)
    assert outcome.code == 0
    assert outcome.out.startswith(STATUS)
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.parametrize("columns", [30, 50, 79, 132])
@pytest.mark.parametrize(
    "words",
    [
        "status",
        "node list --all",
        "node show gpu3",
        "job list",
        "job show 103",
        "explain 106",
        "event list",
        "plan",
        "provider list",
        "provider offers sandbox --all",
    ],
)
def test_no_line_is_wider_than_the_window(run: Run, words: str, columns: int) -> None:
    outcome = run(*words.split(), columns=columns)
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= columns


def test_a_pipe_gets_whole_lines_without_colours(run: Run) -> None:
    outcome = run("explain", "106")
    assert "\x1b" not in outcome.out
    assert "no node in pool gpu has gpu:h100:1; no node in pool cpu has gpu:h100:1." in outcome.out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("status", "/v1/status"),
        ("node list", "/v1/nodes"),
        ("node show c-gpu7", "/v1/nodes/c-gpu7"),
        ("job list", "/v1/jobs"),
        ("job show 90", "/v1/jobs/90"),
        ("explain 104_2", "/v1/jobs/104_2/explanation"),
        ("event list --node gpu3 -n 2", "/v1/events?node=gpu3&limit=2"),
        ("bill --by job --since 2026-01-01", "/v1/bill?group=job&since=1767225600"),
        ("bill --month 2025-12", "/v1/bill?since=1764547200&until=1767225600"),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_json_is_the_answer_itself(run: Run, control: Path, words: str, path: str, before: bool) -> None:
    outcome = run("--json", *words.split()) if before else run(*words.split(), "--json")
    with ApiTestClient(control) as client:
        assert json.loads(outcome.out) == client.get(path)
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("node list", "gpu5  terminating (boot_timeout)"),
        ("node list --state held", "fan is loud (root)"),
        ("node list --pool nosuch", "No such node."),
        ("node show gpu8", "by root, 1 s ago: fan is loud"),
        ("node show c-gpu7", "terminating > gone"),
        ("job list --waiting", "104 (x3)"),
        ("job show 90", "Job 90 has left the queue.\n  How it ended: sacct -j 90\n"),
        ("job show 90", "On nodes of the site it cost 1.00 EUR by [site.cost], no part of the bill."),
        ("job show 101", "MACHINE COST"),
        ("job show 101", "Used: gpu1 sent no figures so far"),
        ("explain 104", "3.06 EUR/h  chosen"),
        ("explain 106", "What would help: request what a pool has."),
        ("event list --claim c-cpu1", "cpu1   in_service > draining  idle for 300 s"),
        ("plan", "start 2 machines for gpu[6-7] (pool gpu)"),
        ("bill --since 2026-01-01", "nobody      0.050 EUR          58 s         2  boot 0.050 EUR"),
        ("bill --since 2026-01-01 --by pool --format site-csv", "2026-01-01,2026-09-21,old,2.000000,EUR,3600.000"),
        ("bill --since 2026-01-01", "2.00 EUR on nodes of the site, by [site.cost], no part of the sum above"),
    ],
)
def test_what_people_read(run: Run, words: str, says: str) -> None:
    outcome = run(*words.split())
    assert says in outcome.out
    assert outcome.code == 0


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("scale", "gpu", "4"), SetPin("gpu", 4, "exact", None, f"user:{ME}")),
        (
            ("scale", "gpu", "2", "--floor", "--for", "1h30m"),
            SetPin("gpu", 2, "floor", NOW + 5400, f"user:{ME}"),
        ),
        (("scale", "cpu", "0", "--ceiling"), SetPin("cpu", 0, "ceiling", None, f"user:{ME}")),
        (("scale", "gpu", "--clear"), ClearPin("gpu", f"user:{ME}")),
        (("node", "drain", "gpu[1-2]", "cpu1", "-r", "hot"), DrainSlots(("gpu1", "gpu2", "cpu1"), "hot", f"user:{ME}")),
        (("node", "release", "gpu8"), ReleaseSlots(("gpu8",), f"user:{ME}")),
        (("hold", "audit of the cloud account"), Pause("audit of the cloud account", f"user:{ME}")),
        (("unhold",), Resume(f"user:{ME}")),
        (("plan",), PlanNow(f"user:{ME}")),
    ],
)
def test_what_is_asked_for_reaches_the_daemon(
    run: Run, backend: FakeBackend, words: tuple[str, ...], command: Command
) -> None:
    outcome = run(*words)
    assert (outcome.code, outcome.err, backend.commands) == (0, "", [command])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("scale tpu 3", 5, "There is no pool 'tpu'; there are: gpu, cpu."),
        ("scale gpu 9", 2, "Pool gpu has only 8 slots, not 9."),
        ("scale gpu", 2, "Say how many nodes: burstctl scale gpu 4 (or --clear)."),
        ("scale gpu 1 --floor --exact", 2, "Choose one of"),
        ("scale gpu 1 --for 2", 2, "--for: '2' is no length of time; write 90s, 15m, 2h, 1h30m, 3d or 1w."),
        ("scale gpu 1 --clear", 2, "--clear takes no number"),
        ("scale gpu -1", 2, "No such option"),
        ("node show gpu99", 5, "There is no node and no claim 'gpu99'."),
        ("explain 999", 5, "Job 999 is neither in the queue nor on burstd's record."),
        ("event list --since yesterday", 2, "--since: 'yesterday' is no time; write 2h (ago), 2026-09-21"),
        ("event list --job 101 --node gpu1", 2, "Choose one of job, node and claim."),
        ("bill --by colour", 2, "'--by': 'colour' is not one of 'user', 'account',"),
        ("bill --month 2026-13", 2, "--month: '2026-13' is no month; write 2026-10."),
        ("bill --month 2026-10 --since 7d", 2, "Say --month, or --since and --until."),
        ("nosuch", 2, "nosuch"),
    ],
)
def test_what_cannot_be_ends_with_its_code(run: Run, backend: FakeBackend, words: str, code: int, says: str) -> None:
    outcome = run(*words.split())
    assert (outcome.code, outcome.out, backend.commands) == (code, "", [])
    assert says in outcome.err


def test_errors_in_json(run: Run) -> None:
    outcome = run("scale", "tpu", "3", "--json")
    assert json.loads(outcome.err) == {"error": "There is no pool 'tpu'; there are: gpu, cpu.", "code": 5}


def test_the_daemon_refuses(run: Run, backend: FakeBackend) -> None:
    backend.answer = lambda _: CommandResult("pools.gpu.cpus: must be set", done=False)
    outcome = run("config", "reload")
    assert (outcome.code, outcome.err) == (1, "burstctl: pools.gpu.cpus: must be set\n")


def test_idle_gpus_have_a_line_of_their_own(run: Run, backend: FakeBackend) -> None:
    backend.loop = (SNAPSHOT, replace(PLAN, idle_gpus=(IdleJob("101", 0, 2, 4, NOW, 900.0),)))
    assert "\n2 GPUs of 1 job idle\n" in run("status").out


def test_plots_are_no_json(run: Run) -> None:
    outcome = run("job", "show", "101", "--svg", "-", "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "leave --json out" in outcome.err


def test_hold_and_failed_policies_are_seen(run: Run, backend: FakeBackend) -> None:
    backend.loop = (replace(SNAPSHOT, paused="audit"), PLAN)
    backend.alarms = ("the record cannot be written: no space is left",)
    out = run("status").out
    assert "on hold: no node is booted or terminated (burstctl unhold): audit" in out
    assert "! the record cannot be written: no space is left" in out


def test_a_name_cannot_steer_the_terminal(run: Run, backend: FakeBackend) -> None:
    assert isinstance(SNAPSHOT.slurm, SlurmView)
    evil = replace(SNAPSHOT.slurm.jobs[0], name="x\x1b]0;owned\x07\x9b31m[bold]y", reason="\x1b[2J")
    backend.loop = (replace(SNAPSHOT, slurm=replace(SNAPSHOT.slurm, jobs=(evil,))), PLAN)
    for words in ("job show 101", "job list", "explain 101", "status"):
        out = run(*words.split()).out
        assert not {"\x1b", "\x07", "\x9b"} & set(out)
    assert "[bold]y" in run("job", "show", "101").out


def test_before_the_first_loop(run: Run, backend: FakeBackend) -> None:
    backend.loop = None
    assert "no loop yet" in run("status").out
    outcome = run("node", "list")
    assert outcome.code == 3
    assert "has just started" in outcome.err


@pytest.mark.slow
@needs_root
def test_other_users(run: Run) -> None:
    assert run("status").code == run("explain", "104").code == 0
    with as_user(NOBODY):
        assert f"Only jobs of {USER} are shown." in run("status").out
        assert run("explain", "104").code == 0
        for words in ("explain 103", "scale gpu 1", "event list", "plan"):
            denied = run(*words.split())
            assert (words, denied.code, denied.out) == (words, 4, "")
            assert USER in denied.err


def dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _: None, "burstd does not run here, or listens elsewhere"),
        (dead, "Nobody listens on"),
        (lambda path: path.write_text("x"), "is no socket"),
        (Path.mkdir, "is no socket"),
    ],
)
def test_nobody_is_there(run: Run, tmp_path: Path, make: Any, says: str) -> None:
    path = tmp_path / "control.sock"
    make(path)
    for words in (("status",), ("event", "follow"), ("status", "--json")):
        outcome = run(*words, socket=path)
        assert (outcome.code, outcome.out) == (3, "")
        assert says in outcome.err
        assert str(path) in outcome.err
        assert "journalctl -u burstd" in outcome.err


@needs_root
def test_a_socket_that_may_not_be_reached(run: Run, control: Path) -> None:
    assert run("status").code == 0
    control.parent.chmod(0o700)
    try:
        with as_user(NOBODY):
            outcome = run("status")
    finally:
        control.parent.chmod(0o755)
    assert outcome.code == 3
    assert f"may not connect to {control}: look at the modes of its folder" in outcome.err


@pytest.mark.parametrize("speech", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b""])
def test_somebody_else_is_there(run: Run, tmp_path: Path, speech: bytes) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(speech)

        server = threading.Thread(target=serve)
        server.start()
        outcome = run("status", socket=path)
        server.join()
    assert outcome.code == 3
    assert str(path) in outcome.err


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"a_field_of_tomorrow": 1}, 0, ""),
        (
            {"pools": None},
            1,
            "cannot be shown (pools: Input should be a valid list): is it burstd there, of this version",
        ),
    ],
)
def test_a_daemon_of_another_version(
    run: Run, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], code: int, says: str
) -> None:
    asked = ApiClient.request_status

    def changed(self: ApiClient, *words: Any) -> tuple[int, Any]:
        status, answer = asked(self, *words)
        return status, answer | change

    monkeypatch.setattr(ApiClient, "request_status", changed)
    outcome = run("status")
    assert (outcome.code, outcome.out != "") == (code, code == 0)
    assert says in outcome.err
    assert json.loads(run("status", "--json").out)["daemon"], "JSON is printed as it came"


def test_faults_of_nodes_on_premises(run: Run, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("node", "faults").out == "No node on premises had a fault.\n"
    found = (NodeFaults("op1", 2, NOW - 7200, "unhealthy, Xid 79 on GPU 0000:2b:00.0"),)
    monkeypatch.setattr(type(backend.reader), "node_faults", lambda _, since: found if since < NOW else ())
    [head, row] = run("node", "faults", "--since", "2026-09-01").out.splitlines()
    assert (head.split(), row.split(maxsplit=5)) == (
        ["NODE", "FAULTS", "LAST", "FAULT"], ["op1", "2", "2", "h", "ago", found[0].reason],
    )  # fmt: skip


def test_every_command_and_option_is_in_the_documentation() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "burstctl.md").read_text(encoding="utf-8")
    # Its options have a page of their own.
    replay = (docs / "simulate.md").read_text(encoding="utf-8")
    root = typer.main.get_command(app)
    for words, command in leaves(root, ()):
        assert f"burstctl {' '.join(words)}" in text, words
        for option in (o for p in command.params for o in p.opts if o.startswith("--")):
            assert option in (replay if words == ("simulate",) else text), (words, option)


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inside = getattr(command, "commands", None)
    if inside is None:
        yield words, command
        return
    for name, child in inside.items():
        yield from leaves(child, (*words, name))
