"""The test of the network between two machines: its script with played programs, and what is read from their output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from burstd.domain.cloud.offer import FabricTest
from burstd.domain.plugins.shell import CommandTimedOut, CompletedCommand, Shell
from burstd.node.errors import ValidationFailed
from burstd.node.fabric import measure
from tests.lab.programs import PROJECT

PERFTEST = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1842300          0.00               193.20             0.368500
---------------------------------------------------------------------------------------
"""
NCCL = "#       size  count\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 92.1341\n#\n"


class LocalShell:
    """A machine that is this one; without ``script`` it gives ``answers``."""

    def __init__(self, *answers: CompletedCommand | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def script(self, text: str, *args: str, timeout_s: float) -> CompletedCommand:
        self.asked.append(args)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        done = subprocess.run(
            ["sh", "-c", text, "sh", *args], capture_output=True, text=True, timeout=timeout_s, check=False
        )
        return CompletedCommand(done.returncode, done.stdout, done.stderr)


WELL = CompletedCommand(0, "", "")


def gb_s(first: LocalShell, second: LocalShell, command: str, limit_s: float = 60) -> float:
    test = FabricTest(command, limit_s)
    return measure(cast("Shell", first), cast("Shell", second), "127.0.0.1", test)


@pytest.mark.parametrize(
    ("command", "out", "figure"),
    [
        ("ib_write_bw -x 3", PERFTEST, 24.15),
        ("/opt/perftest/bin/ib_send_bw", PERFTEST, 24.15),
        ("all_reduce_mpi", NCCL, 92.1341),
        ("own", "size 8 MiB: 3 GB/s\n11.5 GB/s\n", 11.5),
    ],
)
def test_the_figure(command: str, out: str, figure: float) -> None:
    first, second = LocalShell(WELL), LocalShell(CompletedCommand(0, out, ""))
    assert gb_s(first, second, command) == pytest.approx(figure)
    more = second.asked[0][5:]
    if "ib_" in command:
        assert (first.asked[0][0], more[-1]) == ("listen", "127.0.0.1")
        assert first.asked[0][4:] == second.asked[0][4:-1], "both ends are told the same"
    else:
        assert (first.asked[0][0], more) == ("start", ())


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (CompletedCommand(127, "", ""), WELL, "there is no ib_write_bw: install it in the image"),
        (WELL, CompletedCommand(127, "", ""), "there is no ib_write_bw"),
        (CompletedCommand(1, "no HCA\n", ""), WELL, "failed: 'no HCA'"),
        (WELL, CompletedCommand(124, "no end within 60 s\n", ""), "'no end within 60 s' (exit status 124)"),
        (WELL, CompletedCommand(0, "all is well\n", ""), "gives no figure: 'all is well'"),
        (WELL, CommandTimedOut("slow"), "does not end: slow"),
    ],
)
def test_what_is_asked_for_and_cannot_be_had_fails(
    first: CompletedCommand, second: CompletedCommand | Exception, says: str
) -> None:
    with pytest.raises(ValidationFailed) as caught:
        gb_s(LocalShell(first), LocalShell(second), "ib_write_bw")
    assert (says in str(caught.value), caught.value.cause) == (True, "fabric_test")


PLAYED = """\
#!/usr/bin/env python3
import socket, sys, time
port = int(sys.argv[sys.argv.index("-p") + 1])
if sys.argv[-1] == str(port):
    server = socket.create_server(("127.0.0.1", port))
    MODE
    server.accept()[0].recv(9)
else:
    socket.create_connection((sys.argv[-1], port)).send(b"hello")
    print(" 65536 10 0.00 80.00 0.1")
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    """An ``ib_write_bw``; whatever it leaves behind is ended."""
    file = tmp_path / "ib_write_bw"
    yield file
    for left in Path("/tmp").glob("burstd-fabric-test.*"):  # noqa: S108  of the script
        if left.suffix == ".pid":
            subprocess.run(["kill", "-KILL", "--", f"-{left.read_text().split()[0]}"], check=False, capture_output=True)
        left.unlink()


def play(file: Path, mode: str = "pass") -> str:
    file.write_text(PLAYED.replace("MODE", mode))
    file.chmod(0o755)
    return str(file)


def test_two_ends_of_a_program(program: Path) -> None:
    assert gb_s(LocalShell(), LocalShell(), play(program)) == 10.0


def test_an_end_that_does_not_listen(program: Path) -> None:
    with pytest.raises(ValidationFailed, match="does not listen on port"):
        gb_s(LocalShell(), LocalShell(), play(program, "sys.exit('no device')"))


def test_an_end_that_hangs_is_ended(program: Path) -> None:
    play(program)
    program.write_text(program.read_text().replace("else:", "else:\n    time.sleep(60)"))
    with pytest.raises(ValidationFailed, match="no end within 1 s"):
        gb_s(LocalShell(), LocalShell(), str(program), 1)


def test_what_a_burstd_that_was_killed_began_is_ended(program: Path) -> None:
    """The first end of its test waits on for its partner, and another test would share the network with it."""
    first = LocalShell()
    with pytest.raises(ValidationFailed, match="killed here"):
        gb_s(first, LocalShell(CompletedCommand(1, "killed here", "")), play(program))
    old = int(Path("/tmp/burstd-fabric-test.0.pid").read_text().split()[0])  # noqa: S108
    os.killpg(old, 0)
    assert gb_s(first, LocalShell(), str(program)) == 10.0
    assert "Z" in Path(f"/proc/{old}/stat").read_text().split() if Path(f"/proc/{old}").exists() else True


TORCH = """\
import types
class Tensor:
    def __init__(self, value): self.value = value
    def __eq__(self, other): return Tensor(self.value == other)
    def all(self): return self.value
def full(size, value, device):
    assert (size, device) == ((64 << 20,), "cuda")
    return Tensor(value)
cuda = types.SimpleNamespace(set_device=lambda number: None, synchronize=lambda: None)
"""
DISTRIBUTED = """\
import os, socket, struct, time
def init_process_group(backend):
    global line
    assert (backend, os.environ["WORLD_SIZE"]) == ("nccl", "2")
    at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] == "0":
        line = socket.create_server(at).accept()[0]
        return
    while True:
        try:
            line = socket.create_connection(at)
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
def all_reduce(tensor):
    line.sendall(struct.pack("d", tensor.value))
    tensor.value += struct.unpack("d", line.recv(8, socket.MSG_WAITALL))[0] + ERROR
def destroy_process_group():
    line.close()
"""


@pytest.mark.parametrize(("error", "says"), [("0", ""), ("1", "the sum over both nodes is wrong")])
def test_the_all_reduce_that_comes_with_burstd(
    program: Path, monkeypatch: pytest.MonkeyPatch, error: str, says: str
) -> None:
    """Its two ends, with a PyTorch that sums over a socket."""
    folder = program.parent / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text(TORCH)
    (folder / "distributed.py").write_text(DISTRIBUTED.replace("ERROR", error))
    monkeypatch.setenv("PYTHONPATH", str(program.parent))
    command = str(PROJECT / "config/fabric/all-reduce.py")
    if says:
        with pytest.raises(ValidationFailed, match=says):
            gb_s(LocalShell(), LocalShell(), command)
    else:
        assert gb_s(LocalShell(), LocalShell(), command) > 0
