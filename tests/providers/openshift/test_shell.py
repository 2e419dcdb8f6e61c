"""Shells of pods, whose commands run here: what the API server would carry goes through pipes."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from burstd.domain.errors import CloudUnavailable, NodeRefused, NotAllowed
from burstd.domain.plugins.shell import OUTPUT_BYTES, CommandTimedOut, ConnectionLost, NotListening, TerminalSize
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.shell import PodShell
from providers.openshift.client.websocket import STATUS, STDERR, STDIN, STDOUT
from tests.providers.openshift.things import settings

NEVER = threading.Event()
LISTENERS = """  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000
   2: 3264640A:1F91 00000000:0000 0A 00000000:00000000
   0: 00000000000000000000000000000000:1F92 00000000000000000000000000000000:0000 0A 00000000:00000000
"""


class Local:
    """Channels to a command of this machine. ``unread``: whether it left some of what it was sent."""

    def __init__(self, argv: Sequence[str], *, lost: bool = False) -> None:
        self.came: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        pipe = subprocess.PIPE
        self.program = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
        self.unread = False
        self._lost = lost
        readers = [
            threading.Thread(target=self._read, args=(channel, stream), daemon=True)
            for channel, stream in ((STDOUT, self.program.stdout), (STDERR, self.program.stderr))
        ]
        for one in readers:
            one.start()
        threading.Thread(target=self._end, args=(readers,), daemon=True).start()

    def send(self, channel: int, data: bytes | memoryview) -> None:
        assert channel == STDIN
        assert self.program.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self.program.stdin.write(view) :]
        except BrokenPipeError:
            self.unread = True

    def receive(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        try:
            return self.came.get(timeout=timeout_s) if timeout_s else self.came.get_nowait()
        except queue.Empty:
            raise TimeoutError from None

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.program.send_signal(signal.SIGKILL)

    def _read(self, channel: int, stream: Any) -> None:
        while piece := stream.read(1 << 16):
            self.came.put((channel, piece))

    def _end(self, readers: Sequence[threading.Thread]) -> None:
        code = self.program.wait()
        for one in readers:
            one.join()
        causes = [{"reason": "ExitCode", "message": str(code)}]
        failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        if not self._lost:
            self.came.put((STATUS, json.dumps(failed if code else {"status": "Success"}).encode()))
        self.came.put(None)


class Said:
    """A connection on which certain things come."""

    def __init__(self, *came: tuple[int, bytes] | None) -> None:
        self.came = list(came)
        self.sent = b""
        self.closed = False

    def send(self, _: int, data: bytes | memoryview) -> None:
        self.sent += bytes(data)

    def receive(self, _: float | None = None) -> tuple[int, bytes] | None:
        return self.came.pop(0)

    def close(self) -> None:
        self.closed = True


class Pods(OpenShiftCalls):
    def __init__(self) -> None:
        super().__init__(settings())
        self.opened: list[Local] = []
        self.forwards: list[Said] = []
        self.asked: list[Sequence[str]] = []
        self.make: Callable[[Sequence[str]], Any] = Local

    def exec_socket(self, pod: str, argv: Sequence[str], **_: Any) -> Any:
        assert pod == "n1"
        self.asked.append(argv)
        self.opened.append(self.make(argv))
        return self.opened[-1]

    def forward_socket(self, pod: str, port: int) -> Any:
        assert (pod, port > 0) == ("n1", True)
        return self.forwards.pop(0)


@pytest.fixture
def pods() -> Pods:
    return Pods()


@pytest.fixture
def shell(pods: Pods) -> Iterator[PodShell]:
    with PodShell(pods, "n1") as made:
        yield made


@pytest.mark.parametrize(
    ("argv", "given", "rc", "out", "err"),
    [
        (["echo", "a b", "$HOME", "'"], b"", 0, "a b $HOME '\n", ""),
        (["cat"], b"", 0, "", ""),
        (["wc", "-c"], b"x" * 300_000, 0, "300000\n", ""),
        (["head", "-c", "3"], b"abcdef" * 100_000, 0, "abc", ""),
        (["sh", "-c", "cat; echo bad >&2; exit 3"], b"in", 3, "in", "bad\n"),
        (["true"], b"x" * 300_000, 0, "", ""),
        (["sh", "-c", "kill -9 $$"], b"", -9, "", ""),
    ],
)
def test_a_command_sees_all_of_its_input_and_its_end(
    pods: Pods, shell: PodShell, argv: list[str], given: bytes, rc: int, out: str, err: str
) -> None:
    done = shell.run(argv, input=given)
    assert (done.rc, done.out, done.err) == (rc, out, err)
    assert not pods.opened[-1].unread


def test_a_script_goes_through_standard_input(pods: Pods, shell: PodShell) -> None:
    text = 'read -r first\necho "$first|$1|$2"\nwc -c\nexit 4\n'
    done = shell.script(text, "a 'b'", "", input=b"one\n" + b"x" * 100_000)
    assert (done.rc, done.out.split()) == (4, ["one|a", "'b'|", "100000"])
    assert not pods.opened[-1].unread
    assert not any("first" in word for word in pods.asked[-1])
    assert shell.script("cat; echo $#").out == "0\n"


def test_what_is_forbidden_is_not_waited_for(pods: Pods, shell: PodShell) -> None:
    def forbidden(_: Any) -> Any:
        raise NotAllowed("cannot create pods/exec")

    pods.make = forbidden
    for call in (lambda: shell.run(["true"]), lambda: shell.script("true"), lambda: shell.start_process(["true"])):
        with pytest.raises(NodeRefused, match="pod n1: cannot create pods/exec") as refused:
            call()
        assert refused.value.cause == "denied"


def test_what_goes_wrong_is_told(pods: Pods, shell: PodShell) -> None:
    with pytest.raises(CommandTimedOut, match=r"pod n1 took more than 0 s for sleep"):
        shell.run(["sleep", "60"], timeout_s=0.2)
    with pytest.raises(ConnectionLost, match=rf"more than {OUTPUT_BYTES} bytes"):
        shell.run(["yes"])
    pods.make = lambda argv: Local(argv, lost=True)
    with pytest.raises(ConnectionLost, match="exit status did not come"):
        shell.run(["true"])
    broken = json.dumps({"status": "Failure", "reason": "InternalError", "message": "no such container"}).encode()
    pods.make = lambda _: Said((STATUS, broken), None)
    with pytest.raises(ConnectionLost, match="no such container"):
        shell.run(["true"])

    def refused(_: Sequence[str]) -> Any:
        raise CloudUnavailable("the API server is down")

    pods.make = refused
    with pytest.raises(ConnectionLost, match="true could not be started in pod n1: the API server is down"):
        shell.run(["true"])
    with pytest.raises(ConnectionLost, match="the API server is down"):
        shell.start_process(["true"])


def test_the_status_may_come_before_the_output(pods: Pods, shell: PodShell) -> None:
    pods.make = lambda _: Said((STATUS, b'{"status": "Success"}'), (STDOUT, b"late"), None)
    assert shell.run(["true"]).out == "late"
    pods.make = lambda _: Said((STATUS, b'{"status": "Success"}'), (STDOUT, b"late\n"), None)
    with shell.start_process(["true"]) as talk:
        assert [talk.read_line(5.0, NEVER), talk.read_line(5.0, NEVER)] == [b"late\n", b""]


def test_a_talk_goes_line_by_line(shell: PodShell) -> None:
    with shell.start_process(["sh", "-c", 'while read -r a; do echo "$a!"; done']) as talk:
        talk.write_line(b"one\ntwo\n")
        assert [talk.read_line(10.0, NEVER), talk.read_line(10.0, NEVER)] == [b"one!\n", b"two!\n"]
        with pytest.raises(CommandTimedOut, match="was not heard"):
            talk.read_line(0.0, NEVER)
        stop = threading.Event()
        stop.set()
        assert talk.read_line(10.0, stop) is None
        assert talk.stderr_tail() == "nothing was said"


def test_the_end_of_a_talk(pods: Pods, shell: PodShell) -> None:
    with shell.start_process(["sh", "-c", "echo a; printf half; echo first >&2; echo last >&2; exit 3"]) as talk:
        assert [talk.read_line(10.0, NEVER), talk.read_line(10.0, NEVER)] == [b"a\n", b""]
        assert talk.stderr_tail() == "last"
    pods.make = lambda argv: Local(argv, lost=True)
    with shell.start_process(["echo", "a"]) as talk:
        assert talk.read_line(10.0, NEVER) == b"a\n"
        with pytest.raises(ConnectionLost, match="hung up in the middle"):
            talk.read_line(10.0, NEVER)


@pytest.mark.parametrize(("port", "listens"), [(8888, True), (8080, False), (8081, False), (8082, True), (1, False)])
def test_a_port_is_dialled_where_something_listens(pods: Pods, shell: PodShell, port: int, listens: bool) -> None:
    lines = "".join(f"{line.split()[1]}\n" for line in LISTENERS.splitlines() if line.split()[3] == "0A")
    pods.make = lambda _: Said((STDOUT, lines.encode()), (STATUS, b'{"status": "Success"}'), None)
    pods.forwards = [Said((0, b"hello"), None), Said((0, b"x"), None)]
    if not listens:
        with pytest.raises(NotListening, match=str(port)):
            shell.dial(port)
        return
    first = pods.forwards[0]
    wire = shell.dial(port)
    wire.sendall(b"hi")
    assert [wire.recv(3), wire.recv(9), wire.recv(9)] == [b"hel", b"lo", b""]
    assert first.sent == b"hi"
    shell.dial(port)
    assert len(pods.asked) == 1, "a port that listened is not looked at again"
    shell.close()
    assert first.closed


def test_a_port_that_was_shut_is_looked_at_again(pods: Pods, shell: PodShell) -> None:
    line = (STDOUT, b"00000000:0050\n")
    pods.make = lambda _: Said(line, (STATUS, b'{"status": "Success"}'), None)
    pods.forwards = [Said((1, b"connection refused")), Said(None)]
    wire = shell.dial(80)
    with pytest.raises(ConnectionError, match="connection refused"):
        wire.recv(10)
    shell.dial(80)
    assert len(pods.asked) == 2


def test_a_terminal_has_a_size_and_tells_the_commands_end(pods: Pods, shell: PodShell) -> None:
    done = json.dumps({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}).encode()
    said = Said((STDOUT, b"a prompt"), (STATUS, done), (STDOUT, b"late"), None)
    pods.make = lambda _: said
    terminal = shell.open_terminal(["sh"], TerminalSize(33, 99))
    terminal.sendall(b"typed")
    assert said.sent == b'{"Width": 99, "Height": 33}typed'
    assert [terminal.recv(5), terminal.recv(5), terminal.recv(5), terminal.recv(5)] == [b"a pro", b"mpt", b"late", b""]
    assert terminal.exit_status() == 7
    terminal.close()
    assert said.closed


def test_a_terminal_that_was_cut_off_has_no_status(pods: Pods, shell: PodShell) -> None:
    pods.make = lambda _: Said((STDOUT, b"a"), None)
    terminal = shell.open_terminal(["sh"], TerminalSize(33, 99))
    assert [terminal.recv(5), terminal.recv(5)] == [b"a", b""]
    with pytest.raises(ConnectionLost, match="pod n1 hung up"):
        terminal.exit_status()
