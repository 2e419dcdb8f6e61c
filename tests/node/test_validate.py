"""The order of the steps, and where secrets may be."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, cast

import pytest

from burstd.domain.plugins.shell import CommandTimedOut, CompletedCommand, ConnectionLost, Shell
from burstd.domain.slurm.shape import Shape
from burstd.node.checks import ExpectedMachine
from burstd.node.errors import CommandFailed
from burstd.node.validation import ValidationRequest, start_slurmd, validate_machine

KEY = b"the cluster's munge key: 32 bytes"
CREDENTIAL = "MUNGE:AwQFAACredential:"
FACTS = "clock=1000.0\nuid=1000\ncpus=2\nmemory_mib=1000\nfree_mib=1000\nslurmd=slurm 22.05.8\nmunge=munge-0.5\nend=1\n"


class Recorder:
    """Answers scripts from a list and remembers what it was asked."""

    def __init__(self, answers: Sequence[CompletedCommand | Exception]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, bytes]] = []

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002, ARG002 - Session's
        self.asked.append((" ".join([text, *args]), input))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def request(cpus: int = 2, commands: dict[str, str] | None = None) -> ValidationRequest:
    expected = ExpectedMachine(Shape(cpus, 1000), (22, 5, 8))
    return ValidationRequest(
        expected, KEY, lambda uid: f"{CREDENTIAL}{uid}\n", lambda: 1000.0, check_commands=commands or {}
    )


def test_secrets_travel_on_standard_input_alone() -> None:
    recorder = Recorder([CompletedCommand(0, FACTS, ""), CompletedCommand(0, "", "")])
    proof = validate_machine(request(), lambda: cast("Shell", recorder))
    assert proof.failures == ()
    (_, asking), (said, given) = recorder.asked
    assert asking == b""
    assert given == CREDENTIAL.encode() + b"1000\n" + KEY
    assert KEY.decode() not in said
    assert CREDENTIAL not in said
    assert KEY.decode() not in repr(request())


@pytest.mark.parametrize(
    ("asked", "answers", "name"),
    [
        (request(cpus=3), [CompletedCommand(0, FACTS, "")], "cpus"),
        (
            request(commands={"scratch": "ls /scratch"}),
            [CompletedCommand(0, FACTS, ""), CompletedCommand(2, "", "ls: no")],
            "scratch",
        ),
    ],
)
def test_a_machine_that_differs_is_asked_nothing_more(
    asked: ValidationRequest, answers: list[CompletedCommand], name: str
) -> None:
    recorder = Recorder(answers)
    proof = validate_machine(asked, lambda: cast("Shell", recorder))
    assert [f.name for f in proof.failures] == [name]
    assert recorder.answers == []
    assert all(given == b"" for _, given in recorder.asked)


def test_a_machine_that_cannot_say_what_it_is() -> None:
    recorder = Recorder([CompletedCommand(127, "", "sh: awk: not found")])
    with pytest.raises(CommandFailed, match="could not say what it is: sh: awk: not found") as caught:
        validate_machine(request(), lambda: cast("Shell", recorder))
    assert caught.value.rc == 127


@pytest.mark.parametrize(
    "answer", [CommandTimedOut("slow"), ConnectionLost("gone"), CompletedCommand(1, "", "no /run")]
)
def test_a_machine_that_cannot_watch_is_a_node_all_the_same(answer: CompletedCommand | Exception) -> None:
    recorder = Recorder([CompletedCommand(0, "", ""), answer])
    start_slurmd("cl1", lambda: cast("Shell", recorder), watch="true")
    assert recorder.answers == []
    assert recorder.asked[1][1].endswith(b"true")


def test_a_machine_that_cannot_start_slurmd_in_time_is_none() -> None:
    with pytest.raises(CommandTimedOut):
        start_slurmd("cl1", lambda: cast("Shell", Recorder([CommandTimedOut("slow")])), watch="true")
