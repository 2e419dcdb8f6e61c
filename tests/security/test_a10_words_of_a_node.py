"""What a node says of itself, and what its console shows: nothing of it costs much, breaks anything or is obeyed."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from burstd.domain.cloud.quoting import MOST, one_line
from burstd.domain.errors import NodeNotReady, NodeRefused, ProviderError
from burstd.domain.slurm.shape import Gres, Shape
from burstd.node.checks import failed_checks
from burstd.node.errors import CommandFailed
from burstd.node.expected import ExpectedMachine
from burstd.node.facts import NO_LIMIT, MachineFacts, parse_facts
from burstd.node.ssh.host_keys import parse_console_host_keys
from tests.lab.patience import processor_s

_BEGIN, _END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
_HONEST = (
    "hostname",
    "cpus",
    "memory_mib",
    "tmp_mib",
    "free_mib",
    "gpu_device",
    "gpu_name",
    "gpu_state",
    "slurmd",
    "munge",
    "clock",
    "nvidia_smi",
    "limit",
    "module",
    "sentinel",
    "locale",
    "glibc",
    "driver",
)
REFERENCE = MachineFacts(
    glibc="2.36", driver="535.104.05", cuda="12.2", limits={"memlock": NO_LIMIT, "nofile": 1}, lang="C.UTF-8",
    modules={"b": "b/1"}, sentinels={"/a": "0" * 64},
)  # fmt: skip
_VALUES = st.one_of(
    st.sampled_from(
        [
            "9" * 5000,
            "0 errors=" + "9" * 5000 + " width=²x max_width=x slowed= =",
            "²",
            "٣",
            "-1",
            "1e9",
            "inf",
            "nan",
            "\x1b[2J",
            "a b c d",
            "",
            "x" * 100_000,
        ]
    ),
    st.text(max_size=40),
)
_LINES = st.builds(lambda key, value: f"{key}={value}", st.sampled_from([*_HONEST, "user", "uid", "systemd"]), _VALUES)


@given(st.lists(_LINES, max_size=12))
@example(["limit=memlock ²", "sentinel=x" * 90, "module=b " + "b/1 " * 500, "locale=\x1b[2J", "driver=" + "9" * 5000])
@example(["nvidia_smi=asked", "limit=nofile " + "9" * 400, "glibc=" + "1." * 5000])
def test_facts_of_any_form_are_judged(lines: list[str]) -> None:
    facts = parse_facts("\n".join([*lines, "end=1"]), asked=10.0, answered=11.0)
    assert facts is not None
    expected = ExpectedMachine(
        Shape(1, 1, (Gres("gpu", "a100", 1),)), (22, 5), users={"ada": None}, sentinels=("/a",), modules=("b",),
        reference=REFERENCE,
    )  # fmt: skip
    said = [str(one) for one in failed_checks(facts, expected)]
    words = str(NodeRefused(" ".join(said)))
    assert words.isprintable()
    assert len(words) <= MOST + 4


def test_facts_without_an_end_are_not_kept() -> None:
    facts = parse_facts(
        "\n".join(["gpu_name=GPU 0: A100"] * 100_000 + ["user=a 1 1"] * 100_000 + ["end=1"]), asked=0, answered=0
    )
    assert facts is not None
    assert len(facts.gpu_names or ()) <= 256


@pytest.mark.parametrize(
    "piece", ["ssh-", "ssh-a AAAA", "ecdsa-sk-ssh-", "ssh-ed25519 " + "A" * 300, "sk-", _BEGIN + "\n", _END]
)
def test_a_console_of_nothing_but_beginnings_is_read_in_one_pass(piece: str) -> None:
    console = _BEGIN + "\n" + piece * ((1 << 20) // len(piece)) + "\n" + _END
    began = time.process_time()
    parse_console_host_keys(console)
    assert time.process_time() - began < processor_s(2.0)


def test_a_console_has_a_few_keys_of_bounded_length() -> None:
    def key(number: int, size: int = 32) -> str:
        kind = b"ssh-ed25519"
        fields = (kind, number.to_bytes(4, "big") * (size // 4))
        blob = b"".join(len(one).to_bytes(4, "big") + one for one in fields)
        return f"ssh-ed25519 {base64.b64encode(blob).decode()}"

    lines = "\n".join(key(number) for number in range(1000))
    assert 0 < len(parse_console_host_keys(f"{_BEGIN}\n{lines}\n{_END}")) <= 16
    assert parse_console_host_keys(f"{_BEGIN}\n{key(1, 32)}\n{key(2, 100_000)}\n{_END}") == {key(1, 32)}


def test_empty_fields_of_a_key_are_read_in_one_pass() -> None:
    blob = base64.b64encode(b"\0\0\0\x0bssh-ed25519" + b"\0\0\0\0" * 200_000).decode()
    began = time.process_time()
    parse_console_host_keys(f"{_BEGIN}\nssh-ed25519 {blob}\n{_END}")
    assert time.process_time() - began < processor_s(1.0)


@given(st.text(max_size=200), st.integers(1, 50))
def test_one_line_is_one(text: str, most: int) -> None:
    told = one_line(text, most)
    assert told.isprintable()
    assert len(told) <= most + 4


@pytest.mark.parametrize("words", ["\x1b]0;mine\x07", "a\nReason=b", "x" * 1_000_000, "\x9b2J", "\u202egnp.exe"])
def test_errors_that_repeat_others_words(words: str) -> None:
    for error in (
        NodeNotReady(words), NodeRefused(words), ProviderError(words), CommandFailed(words, rc=1, err=words),
    ):  # fmt: skip
        assert str(error).isprintable()
        assert len(str(error)) <= MOST + 4
