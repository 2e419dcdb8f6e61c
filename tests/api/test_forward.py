"""Ports of jobs' nodes: who is let through, and that the connections end with the job."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from burstd.api.auth import Authorizer, Caller
from burstd.api.dependencies import ApiError
from burstd.api.job_connections.job_nodes import find_job_machine, owned_jobs
from burstd.api.job_connections.ports import PortService
from burstd.api.job_connections.server import JobConnectionServer
from burstd.domain.claim import Claim
from burstd.domain.errors import NodeNotReady
from burstd.domain.plugins.shell import ConnectionLost, NotListening, PortConnection, Shell
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Unavailable
from burstd.slurm.hooks.hook_socket import listen_for_hooks
from burstd.transfer.protocol.relay import SocketWire

from .client import connect_as
from .fake_backend import PLAN, FakeBackend
from .world import CLAIMS, JOBS, NOW, OTHER_USER, SLURM, SNAPSHOT, USER, job

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
PORT = 8888


class FakeNodes:
    """The inside of every node: one server, which answers what it heard backwards once it has heard the end."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.opened: list[str] = []
        self.closed = 0
        self.dead_dials = 0
        """So many times a shell turns out to be dead when it is dialled from."""
        self.unreachable = ""
        self.may_connect = threading.Event()
        """Cleared: nobody gets further than the door."""
        self.may_connect.set()

    def open_shell(self, claim: Claim) -> Shell:
        self.may_connect.wait(20)
        if self.unreachable:
            raise NodeNotReady(self.unreachable)
        self.opened.append(claim.slot)
        return FakeShell(self)  # type: ignore[return-value]

    def serve(self) -> None:
        while True:
            try:
                wire, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(wire,), daemon=True).start()

    def _answer(self, wire: socket.socket) -> None:
        with wire:
            heard = b"".join(iter(lambda: wire.recv(1 << 16), b""))
            wire.sendall(heard[::-1])


class FakeShell:
    """Its wires end with it."""

    def __init__(self, nodes: FakeNodes) -> None:
        self._nodes = nodes
        self._wires: list[PortConnection] = []

    def dial(self, port: int, timeout_s: float) -> PortConnection:
        assert timeout_s < 60
        if self._nodes.dead_dials:
            self._nodes.dead_dials -= 1
            raise ConnectionLost("it hung up")
        if port != PORT:
            raise NotListening(f"nothing listens at 10.0.0.9 port {port} so far")
        self._wires.append(SocketWire(socket.create_connection(self._nodes.server.getsockname())))
        return self._wires[-1]

    def close(self) -> None:
        self._nodes.closed += 1
        for wire in self._wires:
            wire.close()


@contextlib.contextmanager
def serving_nodes() -> Iterator[FakeNodes]:
    made = FakeNodes()
    thread = threading.Thread(target=made.serve)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown(socket.SHUT_RDWR)
        made.server.close()
        thread.join()


@pytest.fixture
def nodes() -> Iterator[FakeNodes]:
    with serving_nodes() as made:
        yield made


@pytest.fixture
def forward_socket(socket_path: Path, backend: FakeBackend, nodes: FakeNodes) -> Iterator[Path]:
    server = JobConnectionServer(
        socket_path,
        backend,
        Authorizer(""),
        {"port": PortService(backend, nodes.open_shell)},
        max_connections=6,
        check_interval_s=0.05,
    )
    server.start()
    yield socket_path
    server.close()
    assert not socket_path.exists()


ForwardCall = Callable[..., tuple[socket.socket, dict[str, Any]]]


@pytest.fixture
def call_forward(forward_socket: Path) -> Iterator[ForwardCall]:
    """Sends a line and reads the answer."""
    made: list[socket.socket] = []

    def asked(request: object, uid: int = 0) -> tuple[socket.socket, dict[str, Any]]:
        wire = connect_as(forward_socket, uid, uid)
        made.append(wire)
        wire.settimeout(20)
        # A no may come before the question.
        with contextlib.suppress(BrokenPipeError):
            wire.sendall((request if isinstance(request, bytes) else json.dumps(request).encode()) + b"\n")
        return wire, line(wire)

    yield asked
    for wire in made:
        wire.close()


def line(wire: socket.socket) -> dict[str, Any]:
    heard = b""
    while not heard.endswith(b"\n") and (byte := wire.recv(1)):
        heard += byte
    said: dict[str, Any] = json.loads(heard) if heard else {}
    return said


def forward_request(job_id: str = "101", **more: object) -> dict[str, object]:
    return {"kind": "port", "job": job_id, "port": PORT} | more


@needs_root
def test_the_owner_reaches_the_port_and_each_end_is_carried(call_forward: ForwardCall, nodes: FakeNodes) -> None:
    said = os.urandom(2 << 20)
    for _ in range(3):
        wire, answer = call_forward(forward_request(), NOBODY)
        assert answer == {"ok": True, "job": "101", "node": "gpu1"}
        wire.sendall(said)
        wire.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda w=wire: w.recv(1 << 16), b"")) == said[::-1]  # type: ignore[misc]
    assert nodes.opened == ["gpu1"]  # One way in served all.


def test_a_broken_shell_is_replaced_while_others_use_it(call_forward: ForwardCall, nodes: FakeNodes) -> None:
    first, _ = call_forward(forward_request())
    nodes.dead_dials = 1
    second, answer = call_forward(forward_request())
    assert answer["ok"]
    assert nodes.opened == ["gpu1", "gpu1"]
    assert nodes.closed == 0
    for wire in (first, second):
        wire.sendall(b"abc")
        wire.shutdown(socket.SHUT_WR)
        assert wire.recv(10) == b"cba"
        assert wire.recv(10) == b""
        wire.close()
    # The old one ends with the last that it carried; the new one is kept for the next.
    until(lambda: nodes.closed == 1)
    assert call_forward(forward_request())[1]["ok"]
    assert nodes.opened == ["gpu1", "gpu1"]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline


@needs_root
def test_each_user_has_a_shell_of_his_own(call_forward: ForwardCall, nodes: FakeNodes) -> None:
    assert call_forward(forward_request(), NOBODY)[1]["ok"]
    assert call_forward(forward_request())[1]["ok"]
    assert nodes.opened == ["gpu1", "gpu1"]


class Flaky:
    """A listener that accepts nothing at first."""

    def __init__(self, listener: socket.socket, errors: list[OSError]) -> None:
        self._listener = listener
        self._errors = errors

    def accept(self) -> tuple[socket.socket, Any]:
        if self._errors:
            raise self._errors.pop()
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> list[OSError]:
    errors = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]
    monkeypatch.setattr(
        "burstd.api.job_connections.server.listen_for_hooks", lambda *words: Flaky(listen_for_hooks(*words), errors)
    )
    monkeypatch.setattr("burstd.slurm.hooks.hook_socket._PAUSE_S", 0.01)
    return errors


def test_it_goes_on_after_errors_of_accept(flaky: list[OSError], call_forward: ForwardCall) -> None:
    assert call_forward(forward_request())[1]["ok"]
    assert flaky == []


def test_it_goes_on_where_no_thread_can_be_started(call_forward: ForwardCall, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        # More than the six that may be open.
        for _ in range(7):
            assert call_forward(forward_request())[1]["error"] == "burstd can start no more threads; try again later."
    assert call_forward(forward_request())[1]["ok"]


def test_a_connection_that_comes_as_it_ends_is_none(
    socket_path: Path, backend: FakeBackend, nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    server = JobConnectionServer(socket_path, backend, Authorizer(""), {"port": PortService(backend, nodes.open_shell)})
    server.start()
    nodes.may_connect.clear()
    with connect_as(socket_path, 0, 0) as wire:
        wire.sendall(json.dumps(forward_request()).encode() + b"\n")
        until(lambda: any(thread.name == "job" for thread in threading.enumerate()))
        server.close()
        nodes.may_connect.set()
        wire.settimeout(20)
        assert line(wire)["ok"]
        assert wire.recv(1) == b""
    until(lambda: all(thread.name != "job" for thread in threading.enumerate()))
    assert broken == []


@needs_root
@pytest.mark.parametrize(
    ("asked", "uid", "status", "says"),
    [
        (forward_request("102"), NOBODY, 403, f"You are {USER}, and job 102 is not yours."),
        (forward_request("999"), NOBODY, 404, "Job 999 is not in the queue."),
        (forward_request("105"), NOBODY, 409, "Job 105 does not run: burstd saw it pending 1 s ago"),
        (forward_request("104"), NOBODY, 409, "Job 104 does not run: burstd saw it pending 1 s ago"),
        (forward_request(node="gpu2"), NOBODY, 404, "Job 101 has no node 'gpu2'; it runs on gpu1."),
        (forward_request(""), NOBODY, 422, "No job was named."),
        (forward_request(port=0), NOBODY, 422, "0 is no port"),
        (forward_request(port=70000), NOBODY, 422, "70000 is no port"),
        (forward_request(port=99), NOBODY, 409, "nothing listens at 10.0.0.9 port 99 so far"),
        (b"GET / HTTP/1.1", NOBODY, 422, "of one version"),
        (b"[]", NOBODY, 422, "of one version"),
        (forward_request(kind="spell"), NOBODY, 422, "of one version"),
        (b"x" * 10_000, NOBODY, 422, "of one version"),
    ],
)
def test_the_rest_is_refused_with_a_sentence(
    call_forward: ForwardCall, asked: object, uid: int, status: int, says: str
) -> None:
    _, answer = call_forward(asked, uid)
    assert (answer["ok"], answer["status"]) == (False, status)
    assert says in answer["error"]


def test_an_administrator_reaches_every_job(call_forward: ForwardCall, nodes: FakeNodes) -> None:
    assert call_forward(forward_request("102"))[1] == {"ok": True, "job": "102", "node": "gpu2"}
    nodes.unreachable = "10.0.0.9 does not answer"
    _, answer = call_forward(forward_request("101"))
    assert (answer["status"], answer["error"]) == (503, "10.0.0.9 does not answer")


def test_nodes_that_are_the_sites_own_and_parts_of_arrays(call_forward: ForwardCall, backend: FakeBackend) -> None:
    rows = (
        job("7_1", OTHER_USER, JobState.RUNNING, array_job_id="7", node_list=("gpu2",)),
        job("7_2", OTHER_USER, JobState.RUNNING, array_job_id="7", node_list=("rack1", "gpu1")),
        job("8", OTHER_USER, JobState.RUNNING, node_list=("rack1",)),
    )
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=rows)), PLAN)
    assert "Several parts of job 7 run: name one of 7_1, 7_2." in call_forward(forward_request("7"))[1]["error"]
    assert call_forward(forward_request("7_2"))[1]["node"] == "gpu1"
    assert "runs on rack1, which burstd did not start" in call_forward(forward_request("8"))[1]["error"]


def test_what_waits_of_an_array_is_not_what_runs(backend: FakeBackend) -> None:
    rows = (
        job("7", USER, array_job_id="7", array_tasks="2-9", tasks=8),
        job("7_1", USER, JobState.RUNNING, array_job_id="7", node_list=("gpu1",)),
    )
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=rows)), PLAN)
    assert find_job_machine("7", "", Caller(USER, admin=False), backend).job.id == "7_1"
    assert owned_jobs("7", Caller(USER, admin=False), backend) == rows


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("", 404),  # what is in no array and no het job is of none
        ("7", 403),  # one's own comes first, and is not all
    ],
)
def test_nobody_reaches_others_by_an_id_of_many(backend: FakeBackend, asked: str, status: int) -> None:
    rows = (
        job("6", USER),
        job("7_1", USER, array_job_id="7"),
        job("7_2", OTHER_USER, JobState.RUNNING, array_job_id="7", node_list=("gpu2",)),
    )
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=rows)), PLAN)
    with pytest.raises(ApiError) as denied:
        find_job_machine(asked, "", Caller(USER, admin=False), backend)
    assert denied.value.status == status


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"slurm": replace(SLURM, jobs=JOBS[1:])}, "job 101 does not run any more"),
        ({"slurm": replace(SLURM, jobs=(replace(JOBS[0], restarts=1), *JOBS[1:]))}, "job 101 does not run any more"),
        ({"claims": CLAIMS[1:]}, "the machine of gpu1 has ended"),
    ],
)
def test_connections_end_with_the_job(
    call_forward: ForwardCall, backend: FakeBackend, changes: dict[str, Any], why: str
) -> None:
    carried, held = call_forward(forward_request())[0], call_forward(forward_request(hold=True))[0]
    others = call_forward(forward_request("102", hold=True))[0]
    backend.loop = (replace(SNAPSHOT, **changes), PLAN)
    assert carried.recv(1) == b""
    assert line(held) == {"error": why}
    assert held.recv(1) == b""
    others.settimeout(0.2)
    with pytest.raises(TimeoutError):
        others.recv(1)


def test_what_cannot_be_read_cuts_nothing(call_forward: ForwardCall, backend: FakeBackend) -> None:
    carried = call_forward(forward_request())[0]
    backend.loop = (replace(SNAPSHOT, slurm=Unavailable("no answer", NOW)), PLAN)
    assert call_forward(forward_request())[1]["error"] == "Slurm cannot be read: no answer"
    carried.sendall(b"abc")
    carried.shutdown(socket.SHUT_WR)
    assert carried.recv(10) == b"cba"


@pytest.mark.slow
@needs_root
def test_one_user_cannot_take_all_connections(call_forward: ForwardCall) -> None:
    mine = [call_forward(forward_request(), NOBODY) for _ in range(3)]
    assert [answer["ok"] for _, answer in mine] == [True, True, False]
    assert "Too many connections" in mine[-1][1]["error"]
    assert all(call_forward(forward_request())[1]["ok"] for _ in range(7)), "root has as many as he wants"
    mine[0][0].close()
    # The place is free once the daemon has seen it go.
    while not call_forward(forward_request(), NOBODY)[1]["ok"]:
        pass
