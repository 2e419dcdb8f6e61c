"""burstd-stage and its server, without Slurm: who is heard, who waits, and what is said when something is wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burstd.slurm.hooks import stage_client
from burstd.slurm.hooks.stage_server import StageCall, StageReply, StageServer, StageSocketFailed
from tests.lab.patience import patience_s

CLIENT = Path(stage_client.__file__)
Handle = Callable[[StageCall], StageReply]
Start = Callable[..., StageServer]


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """The environment that tells the client where burstd listens and where it spools."""
    return {"BURSTD_STAGE_SOCKET": str(tmp_path / "s"), "BURSTD_STAGE_SPOOL": str(tmp_path / "spool")}


@pytest.fixture
def start(places: dict[str, str]) -> Iterator[Start]:
    servers: list[StageServer] = []

    def make(handle: Handle, allowed: Callable[[int], bool | None] = lambda _uid: True, **limits: int) -> StageServer:
        server = StageServer(Path(places["BURSTD_STAGE_SOCKET"]), allowed, handle, **limits)
        server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.close()


def begin(places: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    """The client as burst_buffer.lua starts it, with next to no environment."""
    argv = [sys.executable, "-S", "-E", str(CLIENT), *words]
    return subprocess.Popen(argv, env=places, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def call(places: dict[str, str], *words: str, told: bytes = b"") -> tuple[int, str]:
    """Exit status and output."""
    process = begin(places, *words)
    output, _ = process.communicate(told, timeout=30)
    return process.returncode, os.fsdecode(output)


def test_a_call_arrives_whole(start: Start, places: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"#!/bin/sh\n#BURST stage_in /data/\xff\xfe\n")
    heard: list[StageCall] = []

    def handle(got: StageCall) -> StageReply:
        heard.append(got)
        return StageReply("refused", "line 2: caf\u00e9\nallowed: \udcff")

    start(handle)
    words = ("-", "job=7", "uid=1001", "gid=100", f"script={script}", "hurry=false")
    told = b"info.account=\xff\0info.work_dir=/home/a b=c\nd\0"
    assert call(places, "check", *words, told=told) == (1, "refused\nline 2: caf\u00e9\nallowed: \udcff")
    text = "#!/bin/sh\n#BURST stage_in /data/\udcff\udcfe\n"
    info = {"account": "\udcff", "work_dir": "/home/a b=c\nd"}
    assert heard == [StageCall("check", "7", 1001, 100, str(script), False, info, text)]
    call(places, "teardown", "job=7", "hurry=true")
    assert heard[1] == StageCall("teardown", "7", hurry=True)


def test_variables_wait_in_the_spool_for_a_burstd_that_is_away(
    start: Start, places: dict[str, str], tmp_path: Path
) -> None:
    server = start(lambda _got: StageReply("ok", env={"BURST_IN": "/b/in put", "BURST_OUT": "/b=\udcff"}))
    assert call(places, "data_in", "job=7") == (0, "ok\n")
    server.close()
    assert call(places, "test_data_in", "job=7") == (0, "ok\n")
    assert call(places, "paths", "job=7", f"file={tmp_path}/job.7/path") == (0, "ok\n")
    assert (tmp_path / "job.7/path").read_bytes() == b"BURST_IN=/b/in put\nBURST_OUT=/b=\xff\n"
    code, said = call(places, "paths", "job=8", f"file={tmp_path}/job.8/path")
    assert (code, said.startswith("absent\nburstd does not answer at")) == (3, True)
    assert not (tmp_path / "job.8").exists()
    start(lambda _got: StageReply("ok"))
    assert call(places, "teardown", "job=7") == (0, "ok\n")
    assert list((tmp_path / "spool").iterdir()) == []


def test_it_asks_again_as_long_as_it_is_told_to(start: Start, places: dict[str, str]) -> None:
    answers = iter([StageReply("again"), StageReply("busy"), StageReply("again"), StageReply("ok")])
    waiting = begin(places, "pre_run", "job=7")
    start(lambda _got: next(answers))  # it waits for burstd, too
    assert waiting.wait(20) == 0
    assert waiting.stdout is not None
    with waiting.stdout:
        assert waiting.stdout.read() == b"ok\n"


def test_who_comes_on_top_is_put_off_unless_there_is_an_answer(start: Start, places: dict[str, str]) -> None:
    full, go = threading.Event(), threading.Event()

    def handle(got: StageCall) -> StageReply:
        if got.hook == "data_in" and got.job_id not in there:
            full.set()
            if not got.may_wait:
                return StageReply("again")
            assert go.wait(20)
        return StageReply("ok")

    there: set[str] = set()
    start(handle, waiting=1)
    first = begin(places, "data_in", "job=1", "polls=yes")
    assert full.wait(20)
    assert call(places, "data_in", "job=2", "polls=yes") == (2, "busy\n")
    there.add("2")
    assert call(places, "data_in", "job=2", "polls=yes") == (0, "ok\n")
    assert call(places, "check", "job=3") == (0, "ok\n")
    third = begin(places, "data_in", "job=4", "polls=no")
    go.set()
    assert (first.wait(20), third.wait(20)) == (0, 0)
    for process in (first, third):
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(("hook", "word"), [("check", "refused"), ("data_in", "refused"), ("data_out", "busy")])
def test_a_fault_of_burstd_is_no_ones_data(start: Start, places: dict[str, str], hook: str, word: str) -> None:
    def handle(_got: StageCall) -> StageReply:
        raise ZeroDivisionError("the fault")

    start(handle)
    _, said = call(places, hook, "job=7", "polls=yes")
    assert said.startswith(f"{word}\nburstd failed at {hook}: its log says why")
    assert "the fault" not in said


def test_a_stranger_is_not_heard(start: Start, places: dict[str, str]) -> None:
    heard: list[StageCall] = []

    def handle(got: StageCall) -> StageReply:
        heard.append(got)
        return StageReply("ok")

    start(handle, lambda uid: uid != os.geteuid())
    code, said = call(places, "check", "job=7")
    assert (code, said) == (1, f"refused\nuser {os.geteuid()} may not speak for Slurm")
    assert heard == []


def test_who_cannot_be_known_yet_is_not_refused(start: Start, places: dict[str, str]) -> None:
    known: list[bool] = []
    asked = 0

    def allowed(_uid: int) -> bool | None:
        nonlocal asked
        asked += 1
        if asked == 3:
            known.append(True)
        return True if known else None

    start(lambda _call: StageReply("ok"), allowed)
    assert call(places, "check", "job=7") == (0, "ok\n")
    assert asked == 3


@pytest.mark.slow
def test_nobody_waits_for_a_deaf_burstd_at_sbatch(places: dict[str, str]) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(places["BURSTD_STAGE_SOCKET"])
        deaf.listen(1)
        (found := Path(places["BURSTD_STAGE_SPOOL"])).mkdir()
        (found / "away.env").touch()
        os.utime(found / "away.env", (time.time() - 60, time.time() - 60))
        before = time.monotonic()
        code, said = call(places, "check", "job=7")
    assert time.monotonic() - before < patience_s(6)
    assert (code, said.partition("\n")[0]) == (3, "absent")
    assert "try again in a minute" in said


@pytest.mark.parametrize("env", [{"lower": "x"}, {"A B": "x"}, {"BURST_IN": "a\nb"}, {"BURST_IN": "a\0b"}])
def test_variables_that_slurm_cannot_pass_on_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="Slurm cannot pass"):
        StageReply("ok", env=env)


def test_a_place_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageSocketFailed, match="none/s"):
        StageServer(tmp_path / "none" / "s", lambda _uid: True, lambda _got: StageReply("ok")).start()
