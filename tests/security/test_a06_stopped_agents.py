"""A user who stops the agent's process that has his rights, or lets it read what never answers, ends his transfer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.transfer.agent import user_process
from burstd.transfer.agent.user_process import (
    AgentFault,
    JsonObject,
    Operation,
    PacketChannel,
    SharedBuffers,
    UserProcess,
)
from burstd.transfer.protocol.bundle import agent_zipapp
from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, AgentAnsweredError, AgentRig, directory, small

pytestmark = pytest.mark.slow


QUIET_S = 0.5
LOOK_S = 0.02
LONG_S = 4 * QUIET_S
_WATCHED_S = 30.0
"""A test in which nothing is given up ends after this."""


def _hangs(line: PacketChannel, slots: SharedBuffers, request: JsonObject, descriptors: list[int]) -> JsonObject:
    """As a file of a user's own file system does that is never answered."""
    reading, _writing = os.pipe()
    os.read(reading, 1)
    return {}


def _slow(line: PacketChannel, slots: SharedBuffers, request: JsonObject, descriptors: list[int]) -> JsonObject:
    """As a disk does that answers, but not soon."""
    for _ in range(20):
        time.sleep(LONG_S / 20)
    return {}


def _hashes(line: PacketChannel, slots: SharedBuffers, request: JsonObject, descriptors: list[int]) -> JsonObject:
    until, digest, body = time.monotonic() + LONG_S, hashlib.sha256(), bytes(1 << 24)
    while time.monotonic() < until:
        digest.update(body)
    return {}


def _waits(line: PacketChannel, slots: SharedBuffers, request: JsonObject, descriptors: list[int]) -> JsonObject:
    """As a child does whose objects go into a slow store."""
    return line.receive()[0]


WORKS: dict[str, Operation] = {"hangs": _hangs, "slow": _slow, "hashes": _hashes, "waits": _waits}


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[UserProcess]:
    monkeypatch.setattr(user_process, "CHILD_STALL_S", QUIET_S, raising=False)
    monkeypatch.setattr(user_process, "CHILD_POLL_S", LOOK_S, raising=False)
    made = UserProcess(WORKS)
    watchdog = threading.Timer(_WATCHED_S, os.kill, (made._pid, signal.SIGKILL))
    watchdog.start()
    made.drop_privileges(ADA, ADA, [])
    yield made
    watchdog.cancel()
    made.close()


def test_one_that_hangs_is_killed(user: UserProcess) -> None:
    with pytest.raises(AgentFault, match="stood still for 1 s and was killed") as caught:
        user.call_operation({"do": "hangs"})
    assert caught.value.kind == "agent", "it is tried again"


@pytest.mark.parametrize("work", ["slow", "hashes"])
def test_one_that_moves_is_left(user: UserProcess, work: str) -> None:
    assert user.call_operation({"do": work}) == {}


def test_one_that_waits_for_the_store_is_left(user: UserProcess) -> None:
    later = threading.Timer(LONG_S, user.channel.send, ({"key": "k"},))
    later.start()
    assert user.call_operation({"do": "waits"}) == {"key": "k"}


def test_one_that_was_stopped_once_goes_on(user: UserProcess) -> None:
    os.kill(user._pid, signal.SIGSTOP)
    assert user.call_operation({"do": "slow"}) == {}


def test_a_stopped_one_that_has_done_its_work_is_ended(user: UserProcess) -> None:
    os.kill(user._pid, signal.SIGSTOP)
    user.close()


# The whole agent, on the disk of a node.


@pytest.fixture
def rig(tmp_path: Path) -> AgentRig:
    """Its agent is quick to lose patience."""
    let_others_in(tmp_path)
    made = AgentRig(tmp_path / "node")
    made.deliver("12", made.tree([directory()]))
    with (made.job("12") / "out/result").open("wb") as file:
        file.truncate(1 << 30)
        file.write(b"result")
        os.fchown(file.fileno(), ADA, ADA)
    (bundle := tmp_path / "bundle.pyz").write_bytes(agent_zipapp())
    made.program.write_text(
        f"import sys\nsys.path.insert(0, {str(bundle)!r})\n"
        "from burstd.transfer.agent import user_process\n"
        f"user_process.CHILD_STALL_S, user_process.CHILD_POLL_S = {QUIET_S}, {LOOK_S}\n"
        "from burstd.transfer.agent.main import main\nsys.exit(main())\n"
    )
    return made


def _request(rig: AgentRig, what: str) -> JsonObject:
    if what == "place":
        # More than is made between a SIGCONT and the next SIGSTOP.
        many = [directory(b"d%d" % number) for number in range(10_000)]
        return rig.delivery_request("13", rig.tree([directory(), small(b"f", rig.put(b"input"), 0, 5), *many]))
    return {
        "do": "collect", "job": "12", "user": "ada", "uid": ADA, "gid": ADA, "groups": [ADA], "patterns": ["*"],
        "dir": str(rig.job("12")), "files": [], "prefix": "out/12/gpu1", "reach": rig.reach,
    }  # fmt: skip


@contextmanager
def _stopping(rig: AgentRig, request: JsonObject, *, again: bool) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The agent, and its child, which another process of the user stops as soon as it may."""
    process = subprocess.Popen(
        [*rig.python, "-I", "-S", str(rig.program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + _WATCHED_S
    while not (found := children.read_text().split()):
        assert time.monotonic() < until
    child = int(found[0])
    stopper = os.fork()
    if stopper == 0:
        try:
            os.setresuid(ADA, ADA, ADA)
            while True:
                try:
                    os.kill(child, signal.SIGSTOP)
                except PermissionError:
                    continue
                if not again:
                    break
                time.sleep(0.001)
        finally:
            os._exit(0)
    watchdog = threading.Timer(_WATCHED_S, process.kill)
    watchdog.start()
    assert process.stdin is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    try:
        yield process, child
    finally:
        watchdog.cancel()
        os.kill(stopper, signal.SIGKILL)
        os.waitpid(stopper, 0)
        if Path(f"/proc/{child}").exists():
            os.kill(child, signal.SIGKILL)


@pytest.mark.boxes
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestTheAgent:
    @pytest.mark.parametrize("what", ["place", "collect"])
    def test_ends_with_an_error_where_its_child_is_stopped_for_ever(self, rig: AgentRig, what: str) -> None:
        with _stopping(rig, _request(rig, what), again=True) as (process, child):
            with pytest.raises(AgentAnsweredError, match="a process of the user's on the node stops it") as caught:
                rig.read_answers(process)
            assert caught.value.kind == "agent", "it is tried again, and held in the end"
            assert not Path(f"/proc/{child}").exists()

    @pytest.mark.parametrize("what", ["place", "collect"])
    def test_goes_on_where_its_child_was_stopped_once(self, rig: AgentRig, what: str) -> None:
        with _stopping(rig, _request(rig, what), again=False) as (process, _):
            rig.read_answers(process)
        made = rig.job("13") / "in/data/f" if what == "place" else rig.store_path / "out/12/gpu1"
        assert made.exists()

    def test_leaves_no_stopped_child_when_nobody_asks_any_more(self, rig: AgentRig) -> None:
        with _stopping(rig, _request(rig, "collect"), again=True) as (process, child), process:
            until = time.monotonic() + _WATCHED_S
            while "(stopped)" not in Path(f"/proc/{child}/status").read_text():
                assert time.monotonic() < until
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_WATCHED_S)
            # Whoever reaps it is not the agent any more.
            while (status := Path(f"/proc/{child}/status")).exists() and "(zombie)" not in status.read_text():
                assert time.monotonic() < until
