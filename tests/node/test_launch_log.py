"""Why a job did not start, by slurmd's log: lines as Slurm 22.05 and 26.05 write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.launch_failure import Blame, LaunchFault
from burstd.node.launch_log import launch_fault
from tests.security.fuzz import fuzzed

FULL = LaunchFault("its disk is full", "give the machine a larger disk, or see what fills it", Blame.UNUSABLE)
LAUNCH, LAUNCH_NEW = "Launching batch job 7 for UID 3001", "Launching batch JobId=7 SLUID=sCDX for UID 3001"
NO_STEPD = "error: _forkexec_slurmstepd: slurmstepd failed to send return code got 0: Resource temporarily unavailable"
NO_STEPD_NEW = "error: _handle_return_code: Can not read return code from slurmstepd: Input/output error"
IO = "[7.batch] error: _fork_all_tasks: IO setup failed: Slurmd could not connect IO"
OTHER = ["Launching batch job 8 for UID 3002", "error: it says something else", "[8.batch] done with job"]


def output(path: str, error: str, folder: str) -> LaunchFault:
    return LaunchFault(
        f"the job's output {path} cannot be opened there ({error})",
        f"let --output and --error name a directory that the node has: {folder} is none that its user may write to",
        Blame.JOB,
    )


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            [LAUNCH, "[7.batch] error: Could not open stdout file /no/x/7.out: No such file or directory", IO],
            output("/no/x/7.out", "No such file or directory", "/no/x"),
        ),
        (
            [LAUNCH_NEW, ("[7.batch] error: _init_task_stdio_fds: Could not open stdout file '/no/x/7.out': 'No such "
             "file or directory'. Recursive path creation failed: 'Permission denied'."), IO],
            output("/no/x/7.out", "No such file or directory", "/no/x"),
        ),
        (
            [LAUNCH, "[7.batch] error: Could not open stdout file /o: Permission denied", IO],
            output("/o", "Permission denied", "/"),
        ),
        # It may be in a tree of the site: no other machine has more room there.
        (
            [LAUNCH, "[7.batch] error: Could not open stderr file /home/o: No space left on device", IO],
            LaunchFault(
                "the job's error output /home/o cannot be opened there (No space left on device)",
                "make room there, or let --output and --error name another directory", Blame.UNCLEAR,
            ),
        ),
        (
            [LAUNCH, "[7.batch] error: Could not open stderr file /home/o: Transport endpoint is not connected", IO],
            LaunchFault(
                "the job's error output /home/o cannot be opened there (Transport endpoint is not connected)",
                "its file system is broken there: see the mounts of the node", Blame.UNCLEAR,
            ),
        ),
        # A user chooses the path, and closes no machine by it.
        (
            [LAUNCH, "[7.batch] error: Could not open stdout file /x: No space left on device: Not a directory", IO],
            output("/x: No space left on device", "Not a directory", "/"),
        ),
        (
            [LAUNCH, "[7.batch] error: Could not open stdout file /x", NO_STEPD, "error: prolog failed: rc:1 output:x"],
            output("", "/x", "/"),
        ),
        (
            [LAUNCH, IO],
            LaunchFault(
                "slurmstepd says '_fork_all_tasks: IO setup failed: Slurmd could not connect IO'",
                "see slurmd's log on the node", Blame.JOB,
            ),
        ),
        (OTHER, None),
    ],
)  # fmt: skip
def test_a_job_whose_output_cannot_be_opened(lines: list[str], found: LaunchFault | None) -> None:
    assert launch_fault([*OTHER, *lines, *OTHER], "7", held=False) == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([LAUNCH, NO_STEPD], ("slurmstepd does not start there", Blame.UNHEALTHY)),
        ([LAUNCH_NEW, NO_STEPD_NEW], ("slurmstepd does not start there", Blame.UNHEALTHY)),
        (
            [LAUNCH_NEW, "[7.batch] fatal: Couldn't load all plugins", NO_STEPD_NEW],
            ("slurmd says 'Couldn't load all plugins'", Blame.UNCLEAR),
        ),
        (
            [LAUNCH_NEW, NO_STEPD_NEW, "error: write /var/spool/slurmd/cred_state.new error No space left on device"],
            ("its disk is full", Blame.UNUSABLE),
        ),
        (
            ["error: prolog failed: rc:3 output:no scratch", "", "error: [job 7] prolog failed status=3:0"],
            ("the Prolog fails there (exit status 3: no scratch)", Blame.UNHEALTHY),
        ),
        (
            ["error: prolog failed: rc:3 output:", "error: JobId=7 SLUID=sCDX prolog failed status=3:0"],
            ("the Prolog fails there (exit status 3)", Blame.UNHEALTHY),
        ),
        (
            ["error: prolog: Unable to create list of paths [/etc/prolog]", "error: [job 7] prolog failed status=0:0"],
            ("the Prolog /etc/prolog is not there", Blame.UNHEALTHY),
        ),
        ([LAUNCH, "error: uid 3001 not found on system"], ("uid 3001 is not known there", Blame.UNHEALTHY)),
        (
            [LAUNCH, "error: Invalid job credential from 64030@10.0.0.1"],
            ("munge or the clock is wrong there ('Invalid job credential')", Blame.UNHEALTHY),
        ),
        ([LAUNCH], ("slurmd's log does not say why", Blame.UNCLEAR)),
        ([*OTHER, "launch task StepId=77.0 request from UID:3001", NO_STEPD], None),
    ],
)
def test_a_job_that_slurm_holds(lines: list[str], found: tuple[str, Blame] | None) -> None:
    fault = launch_fault([*OTHER, *lines, *OTHER], "7", held=True)
    assert (None if fault is None else (fault.cause, fault.blame)) == found


@fuzzed
@given(st.lists(st.one_of(st.sampled_from([LAUNCH, NO_STEPD, IO]), st.text(max_size=80)), max_size=8), st.booleans())
def test_fuzz_a_launch(lines: list[str], held: bool) -> None:
    fault = launch_fault(lines, "7", held=held)
    assert fault is None or len(fault.cause) < 500
