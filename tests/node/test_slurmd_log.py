"""Why a slurmd does not register, by its log: lines of Slurm 22.05 and 26.05."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.plugins.shell import CompletedCommand, Shell
from burstd.node.slurmd_log import LOG_LINES, read_slurmd_log, registration_fault
from tests.security.fuzz import fuzzed

STARTED = "slurmd version 22.05.8 started"
NOISE = "error: MPI: Cannot create context for mpi/pmix"
MUNGED = 'Failed to access "/run/munge/munge.socket.2": No such file or directory (Did you start munged?)'
NO_CONTACT = "error: Unable to register: Unable to contact slurm controller (connect failure)"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([STARTED, NOISE], ""),
        (
            [STARTED, NOISE, NO_CONTACT],
            ("slurmd runs, and slurmctld does not answer it ('Unable to contact slurm controller (connect failure)'): "
            "open SlurmctldPort from the cloud's network to slurmctld: firewall, routes, security groups"),
        ),
        (
            [STARTED, "error: Unable to register: Zero Bytes were transmitted or received"],
            ("slurmd runs, and slurmctld ends its connections ('Zero Bytes were transmitted or received'): the munge "
            "keys or the versions of Slurm differ, or a firewall cuts them: slurmctld's log has the reason"),
        ),
        (
            [STARTED, f"error: Munge encode failed: {MUNGED}", "error: Unable to register: Protocol authentication"],
            f"slurmd runs, and munge does not work there ('{MUNGED}'): see munge.service in the image",
        ),
        (
            [STARTED, "error: Munge decode failed: Rewound credential", NO_CONTACT],
            ("slurmd runs, and munge finds the clocks apart ('Rewound credential'): "
            "let the image set its clock (chrony)"),
        ),
        (
            [STARTED, "error: Munge decode failed: Invalid credential"],
            ("slurmd runs, and its munged has another key than slurmctld's ('Invalid credential'): "
            "see munge_key in [node]"),
        ),
        (
            ['error: slurm_set_addr: Unable to resolve "head"', "error: Unable to establish control machine address"],
            ("slurmd does not know the address of head: write SlurmctldHost=head(ADDRESS) into slurm.conf, or let the "
            "image know the name (DNS, /etc/hosts)"),
        ),
        (
            [STARTED, "error: Unable to register: Incompatible versions of client and server code"],
            ("slurmd runs, and slurmctld speaks another protocol ('Incompatible versions of client and server code'): "
            "build the image with slurmctld's version of Slurm"),
        ),
        (
            [STARTED, "error: Unable to register: Invalid node name specified"],
            "slurmd runs, and slurmctld refuses it ('Invalid node name specified'): slurmctld's log has the reason",
        ),
        ([STARTED, NO_CONTACT, STARTED], ""),  # of the slurmd before
    ],
)  # fmt: skip
def test_why_it_does_not_register(lines: list[str], said: str) -> None:
    assert registration_fault(lines) == said


class _Said:
    def __init__(self, out: str) -> None:
        self.out = out

    def script(self, *_: str, timeout_s: float) -> CompletedCommand:
        assert timeout_s
        return CompletedCommand(0, self.out, "")


def test_times_are_taken_off() -> None:
    text = "[2026-11-28T10:29:32.474] slurmd version 22.05.8 started\nslurmd: error: Unable to register: x\n"
    assert read_slurmd_log(cast("Shell", _Said(text))) == [STARTED, "error: Unable to register: x"]
    assert read_slurmd_log(cast("Shell", _Said(text)), times=True) == text.splitlines()


@fuzzed
@given(st.text(max_size=400))
def test_fuzz_a_log(text: str) -> None:
    lines = read_slurmd_log(cast("Shell", _Said(text)))
    assert len(lines) <= LOG_LINES
    assert registration_fault(lines).isprintable()
