"""The order of the steps, and where secrets may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, cast

import pytest

from burstd.domain.cloud.offer import GpuTest
from burstd.domain.errors import NodeNotReady, NodeRefused
from burstd.domain.plugins.shell import CommandTimedOut, CompletedCommand, ConnectionLost, Shell
from burstd.domain.slurm.shape import Gres, Shape
from burstd.node.errors import CommandFailed
from burstd.node.expected import ExpectedMachine
from burstd.node.validation import Unattended, ValidationRequest, start_slurmd, validate_machine

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

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002, ARG002 - Session's
        return self.script(" ".join(argv), timeout_s=timeout_s)

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


LACKS = "dcgmi dcgmi is missing: install it"


def gpu_request(**changes: object) -> ValidationRequest:
    expected = ExpectedMachine(Shape(2, 1000, (Gres("gpu", "", 2),)), (22, 5, 8), gpu_test=GpuTest.LONG)
    return replace(request(), expected=replace(expected, **changes), gpu_test_limit_s=300.0)  # type: ignore[arg-type]


GPU_FACTS = FACTS + "".join(f"gpu_device=/dev/nvidia{n}\ngpu_state=0000:0{n}:00.0 errors=0\n" for n in (1, 2))
WELL = "ok GPU-1\nok GPU-2\nok dcgmi\nend\n"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (CompletedCommand(0, "ok GPU-1\nfailed GPU-2 cuInit: lost\nend\n", ""), "GPU-2 cuInit: lost"),
        (CompletedCommand(0, "ok GPU-1\nok GPU-2\nfailed dcgmi Memory Fail\nend\n", ""), "dcgmi Memory Fail"),
        (CompletedCommand(0, "ok GPU-1\nok dcgmi\nend\n", ""), "1 that nvidia-smi lists"),
        (CompletedCommand(0, "end\n", ""), "0 that nvidia-smi lists"),
        (CompletedCommand(0, "ok GPU-1\nok GPU-2\n", ""), "'ok GPU-2'"),
        (CompletedCommand(127, "", "sh: python3: not found"), "'sh: python3: not found'"),
        (CompletedCommand(0, f"ok GPU-1\nok GPU-2\nfailed {LACKS}\nend\n", ""), LACKS),
        (CompletedCommand(0, "failed GPU-1 lost\nok GPU-2\nfailed dcgmi x\nend\n", ""), "GPU-1 lost, dcgmi x"),
    ],
)
def test_gpus_that_do_not_compute_get_no_secret(answer: CompletedCommand, found: str) -> None:
    recorder = Recorder([CompletedCommand(0, GPU_FACTS, ""), answer])
    proof = validate_machine(gpu_request(), lambda: cast("Shell", recorder))
    assert [(f.name, f.found) for f in proof.failures] == [("gpu_test", found)]
    lacks_program = answer.rc == 127 or "dcgmi is missing" in answer.out
    assert [f.cause for f in proof.failures] == ["gpu_tools" if lacks_program else ""]
    assert recorder.asked[1][0] == "python3 -I - 300 long"


@pytest.mark.parametrize("changes", [{}, {"skip": frozenset({"gpu_test"})}, {"may_differ": frozenset({"gpu_test"})}])
def test_gpus_that_compute(changes: dict[str, object]) -> None:
    said = WELL.replace("ok GPU-1", "failed GPU-1 lost") if "may_differ" in changes else WELL
    tests = [] if "skip" in changes else [CompletedCommand(0, said, "")]
    recorder = Recorder([CompletedCommand(0, GPU_FACTS, ""), *tests, CompletedCommand(0, "", "")])
    proof = validate_machine(gpu_request(**changes), lambda: cast("Shell", recorder))
    assert proof.failures == ()
    assert [warning.found for warning in proof.warnings] == ["GPU-1 lost"] * ("may_differ" in changes)
    assert recorder.asked[-1][1].endswith(KEY)


@pytest.mark.parametrize(("last", "failures"), [("ok nvbandwidth", 0), ("failed nvbandwidth GPU 1 takes 9 GB/s", 1)])
def test_how_fast_the_host_reaches_each_gpu(last: str, failures: int) -> None:
    answer = CompletedCommand(0, WELL.replace("end", f"{last}\nend"), "")
    recorder = Recorder([CompletedCommand(0, GPU_FACTS, ""), answer, *[CompletedCommand(0, "", "")] * (not failures)])
    proof = validate_machine(replace(gpu_request(), gpu_min_gb_s=40.0), lambda: cast("Shell", recorder))
    assert len(proof.failures) == failures
    assert recorder.asked[1][0] == "python3 -I - 300 long 40"


def test_gpus_whose_test_does_not_end_are_refused() -> None:
    recorder = Recorder([CompletedCommand(0, GPU_FACTS, ""), CommandTimedOut("slow")])
    with pytest.raises(CommandFailed, match="the GPUs do not end their test of 300 s") as caught:
        validate_machine(gpu_request(), lambda: cast("Shell", recorder))
    assert caught.value.cause == "gpu_test"


def test_a_check_program_that_warns_and_one_that_fails() -> None:
    asked = replace(request(), check_programs={"nfs": b"#!/bin/sh", "disk": b"#!/bin/sh"})
    warns = CompletedCommand(1, "NFS WARNING: slow | ms=90\nmore\n", "")
    well = CompletedCommand(0, "", "")
    recorder = Recorder([CompletedCommand(0, FACTS, ""), warns, well, well])
    proof = validate_machine(asked, lambda: cast("Shell", recorder))
    assert [(w.name, w.found) for w in proof.warnings] == [("nfs", "'NFS WARNING: slow' (exit status 1)")]
    assert proof.failures == ()
    recorder = Recorder([CompletedCommand(0, FACTS, ""), well, CompletedCommand(3, "", "")])
    proof = validate_machine(asked, lambda: cast("Shell", recorder))
    assert [(f.name, f.found) for f in proof.failures] == [("disk", "'exit status 3' (exit status 3)")]


@pytest.mark.parametrize(
    ("said", "kind"),
    [(CompletedCommand(75, "", "a job step still runs"), NodeNotReady), (CompletedCommand(1, "", "no"), NodeRefused)],
)
def test_a_machine_that_was_another_node_is_cleared_first_or_given_nothing(
    said: CompletedCommand, kind: type[Exception]
) -> None:
    reused = replace(request(), reused_as="b1", node_json="{}")
    recorder = Recorder([said])
    with pytest.raises(kind):
        validate_machine(reused, lambda: cast("Shell", recorder))
    assert [given for _, given in recorder.asked] == [b"{}"]
    recorder = Recorder([CompletedCommand(0, "", ""), CompletedCommand(0, FACTS, ""), CompletedCommand(0, "", "")])
    assert validate_machine(reused, lambda: cast("Shell", recorder)).failures == ()


def test_a_machine_that_cannot_say_what_it_is() -> None:
    recorder = Recorder([CompletedCommand(127, "", "sh: awk: not found")])
    with pytest.raises(CommandFailed, match="could not say what it is: sh: awk: not found") as caught:
        validate_machine(request(), lambda: cast("Shell", recorder))
    assert caught.value.rc == 127


@pytest.mark.parametrize(
    "answer", [CommandTimedOut("slow"), ConnectionLost("gone"), CompletedCommand(1, "", "no /run")]
)
def test_a_machine_that_cannot_watch_is_a_node_all_the_same(answer: CompletedCommand | Exception) -> None:
    recorder = Recorder([answer, CompletedCommand(0, "", "")])
    start_slurmd("cl1", lambda: cast("Shell", recorder), watch="true")
    assert recorder.answers == []
    assert recorder.asked[0][1].endswith(b"true")


@pytest.mark.parametrize(
    ("watch", "verdicts", "unattended", "calls"),
    [
        ("", "", None, 1), ("", "79=requeue", None, 2), ("true", "", None, 2),
        ("", "", Unattended(60, "/var/spool/burst", 30), 2),
    ],
)  # fmt: skip
def test_a_machine_watches_itself_before_it_is_a_node(
    watch: str, verdicts: str, unattended: Unattended | None, calls: int
) -> None:
    """For its cloud, for its own faults, or for burstd's end."""
    recorder = Recorder([CompletedCommand(0, "", "")] * calls)
    start_slurmd("cl1", lambda: cast("Shell", recorder), watch=watch, verdicts=verdicts, unattended=unattended)
    assert recorder.answers == []
    assert len(recorder.asked) == calls
    if calls > 1:
        script, given = recorder.asked[0]
        assert given.endswith(f"{verdicts}{watch}".encode())
        assert script.endswith(" 60 /var/spool/burst 30" if unattended else " 0  0")


def test_a_machine_that_cannot_start_slurmd_in_time_is_none() -> None:
    with pytest.raises(CommandTimedOut):
        start_slurmd("cl1", lambda: cast("Shell", Recorder([CommandTimedOut("slow")])))
