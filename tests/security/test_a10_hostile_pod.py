"""What a pod's container, or the API server before it, may do to the head: waste a bounded time and memory."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.plugins.shell import CommandTimedOut, ConnectionLost, NotListening
from providers.openshift.client import shell as pod_shell
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.shell import PodShell
from providers.openshift.client.websocket import STATUS, STDERR, STDOUT
from tests.lab.patience import patience_s
from tests.providers.openshift.peer import frame
from tests.providers.openshift.test_sockets import Rig
from tests.providers.openshift.things import settings

pytestmark = pytest.mark.slow

_NEVER = threading.Event()
_DONE = json.dumps({"status": "Success"}).encode()
_SLACK_S = 5.0


class _Endless:
    """A connection on which these messages come again and again, each after a moment."""

    def __init__(self, *came: tuple[int, bytes], pause_s: float = 0.001) -> None:
        self._came = itertools.cycle(came)
        self._pause_s = pause_s

    def send(self, channel: int, data: bytes | memoryview) -> None: ...

    def receive(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:  # noqa: ARG002 - the interface has it
        time.sleep(self._pause_s)
        return next(self._came)

    def close(self) -> None: ...


class _Pods(OpenShiftCalls):
    def __init__(self, made: Any) -> None:
        super().__init__(settings())
        self._made = made

    def exec_socket(self, pod: str, argv: Sequence[str], **_: Any) -> Any:  # noqa: ARG002 - the interface has it
        return self._made


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_shell, "_CLOSING_S", 1.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, secure=False)
    yield made
    made.close()


@pytest.mark.parametrize("message", [(STDERR, b"x"), (9, b"x" * 65536)], ids=["drops", "unknown_channel"])
def test_a_command_that_says_more_and_more_is_ended_in_its_time(message: tuple[int, bytes]) -> None:
    began = time.monotonic()
    with pytest.raises((CommandTimedOut, ConnectionLost)):
        PodShell(_Pods(_Endless(message)), "n1").run(["true"], timeout_s=1.0)
    assert time.monotonic() - began < patience_s(_SLACK_S)


def test_a_command_that_ends_again_and_again_has_ended() -> None:
    began = time.monotonic()
    assert PodShell(_Pods(_Endless((STATUS, _DONE))), "n1").run(["true"], timeout_s=1.0).rc == 0
    assert time.monotonic() - began < patience_s(_SLACK_S)


@pytest.mark.parametrize(
    "status",
    [b"[" * 100_000, b"{}" * 100_000, b"null", b"\xff", b'{"details": 1}', b'{"status": "Failure", "details": []}',
     b'{"details": {"causes": [{"reason": "ExitCode", "message": "' + b"9" * 5000 + b'"}]}, "status": ""}'],
    ids=["deep", "long", "null", "bytes", "number", "list", "enormous"],
)  # fmt: skip
def test_a_status_that_is_none(status: bytes) -> None:
    with pytest.raises(ConnectionLost) as lost:
        PodShell(_Pods(_Endless((STATUS, status))), "n1").run(["true"], timeout_s=1.0)
    assert len(str(lost.value)) < 1100


def test_complaints_without_an_end() -> None:
    with PodShell(_Pods(_Endless((STDOUT, b"\n"), (STDERR, b"no\n"))), "n1").start_process(["true"]) as talk:
        assert talk.read_line(1.0, _NEVER) == b"\n"
        began = time.monotonic()
        assert talk.stderr_tail() == "no"
        assert time.monotonic() - began < patience_s(_SLACK_S)


@pytest.mark.parametrize("said", [b"0100007F:zz 1:2:3 :: \xff", b"0100007F:" + b"9" * 5000, b"\0" * 1000])
def test_listeners_of_any_form(said: bytes) -> None:
    with pytest.raises(NotListening):
        PodShell(_Pods(_Endless((STDOUT, said), (STATUS, _DONE), pause_s=0.2)), "n1").dial(8888)


def _keeps(rig: Rig, message: bytes) -> Callable[[], None]:
    stop = threading.Event()

    def say() -> None:
        with suppress(OSError):
            while not stop.is_set():
                rig.peer.link.sendall(message)

    threading.Thread(target=say, daemon=True).start()
    return stop.set


@pytest.mark.slow
@pytest.mark.parametrize("message", [frame(b"", 10), frame(b"", 2)], ids=["pong", "empty"])
def test_frames_that_say_nothing_give_no_more_time(rig: Rig, message: bytes) -> None:
    stop = _keeps(rig, message * 100)
    ended = threading.Event()

    def receive() -> None:
        with suppress(OSError):
            rig.channels.receive(1.0)
        ended.set()

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    in_time = ended.wait(_SLACK_S * 2)
    stop()
    rig.channels.close()
    thread.join(10)
    assert in_time


def test_a_ping_has_no_room_for_much(rig: Rig) -> None:
    rig.peer.link.sendall(frame(b"x" * 126, 9))
    with pytest.raises(ConnectionError):
        rig.channels.receive(5.0)
