"""When a machine powers itself off: the loop of watch.sh in virtual time, with programs that play Slurm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from burstd.domain.slurm.node import LIFE_SIGN

ALONE_S, LONGER_S = 120, 60
# A drain shows in the next look.
_SINFO = """
test ! -e "${0%sinfo}scontrol.broken" || exit 1
state=$(cat "$0.state"); case $state in idle) ! grep -q DRAIN "${0%sinfo}scontrol.calls" || state=drained ;; esac
case "$*" in *%E*) echo "$state|none" ;; *) echo "$state" ;; esac
"""
_SCONTROL = """
case "$*" in
*show*) test ! -e "$0.broken" || exit 1; cat "$0.says" ;;
*) echo "$@" >>"$0.calls"; test ! -e "$0.broken" ;;
esac
"""
# Each pause passes at once: the clock is put on, and what happens meanwhile is done.
_SLEEP = """
case $1 in *.*) exit ;; esac
cd "${0%/*}"
read -r up _ <uptime
echo "$((up + $1)) 0" >uptime
eval "$(head -n 1 events)"
sed -i 1d events
[ -s events ] || kill "$PPID"
"""


class LonelyMachine:
    """A machine on which these things happen, each in one round of five seconds; says when it powered itself off."""

    def __init__(self, folder: Path, alone_s: int = ALONE_S) -> None:
        self.folder, self._alone_s = folder, alone_s
        (folder / "watch").mkdir()
        (folder / "proc").mkdir()
        (folder / "jobs/cache").mkdir(parents=True)
        for name, text in (("sinfo", _SINFO), ("scontrol", _SCONTROL), ("sleep", _SLEEP)):
            (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (folder / name).chmod(0o755)
        (folder / "scontrol.calls").touch()
        (folder / "sinfo.state").write_text("idle\n", encoding="utf-8")
        (folder / "uptime").write_text("1000 0\n", encoding="utf-8")
        self.sign(f"{LIFE_SIGN}1}}")

    def sign(self, extra: str) -> None:
        """What the node's Extra is at first."""
        (self.folder / "scontrol.says").write_text(self.said(extra) + "\n", encoding="utf-8")

    @staticmethod
    def said(extra: str) -> str:
        """As scontrol shows the node."""
        shown = f" Extra={extra}" if extra else ""
        return f"NodeName=cl1 Arch=x86_64 State=IDLE+CLOUD Comment=x{shown} Reason=none [root@2026]"

    def run(self, *events: str, rounds: int = 100) -> int:
        """The seconds after which it powered itself off; 0: it did not."""
        folder = self.folder
        lines = [*events, *[":"] * (rounds - len(events))]
        (folder / "events").write_text("\n".join([*lines, ""]), encoding="utf-8")
        loop = files("burstd.node").joinpath("scripts", "watch.sh").read_text(encoding="utf-8")
        for old, new in (
            ("PATH=/usr/sbin", f"PATH={folder}:/usr/sbin"),
            ("</proc/uptime", f"<{folder}/uptime"),
            ("in /proc/[0-9]*", f"in {folder}/proc/[0-9]*"),
            # No test may end the machine that it runs on.
            (
                'echo "no sign of burstd\'s life for $silent s: powers off"',
                f"cp {folder}/uptime {folder}/powered-off; kill $$; exit",
            ),
        ):
            assert loop.count(old) == 1, old
            loop = loop.replace(old, new)
        words = ["sh", "-c", loop, "sh", "cl1", str(folder / "watch"), "", str(self._alone_s)]
        process = subprocess.Popen(
            [*words, str(folder / "jobs"), str(LONGER_S)], env=dict(os.environ), start_new_session=True
        )
        try:
            assert process.wait(60) == -signal.SIGTERM
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        off = folder / "powered-off"
        return int(off.read_text(encoding="utf-8").split()[0]) - 1000 if off.exists() else 0

    @property
    def drained(self) -> bool:
        """Slurm was told."""
        said = (self.folder / "scontrol.calls").read_text(encoding="utf-8")
        return "State=DRAIN Reason=burstd: silent for 0 h, powers itself off" in said


@pytest.fixture
def machine(tmp_path: Path) -> LonelyMachine:
    return LonelyMachine(tmp_path)


def change(extra: str) -> str:
    return f"echo '{LonelyMachine.said(extra)}' >scontrol.says"


EVERY_S = ALONE_S // 12
"""So often it looks."""


def about(seconds: int) -> range:
    """The machine is drained at one look, and off at the next."""
    return range(seconds, seconds + 3 * EVERY_S)


def test_an_idle_machine_without_a_sign_powers_itself_off(machine: LonelyMachine) -> None:
    assert machine.run() in about(ALONE_S)
    assert machine.drained


def test_each_new_sign_keeps_it(machine: LonelyMachine) -> None:
    signs = [":" if number % 10 else change(f"{LIFE_SIGN}{number}}}") for number in range(41)]
    assert machine.run(*signs) in about(5 * 40 + ALONE_S)
    assert machine.drained


@pytest.mark.parametrize(("command", "counts"), [("slurmstepd: [12.0]", True), ("slurmstepd infinity", False)])
def test_no_job_is_cut_off(machine: LonelyMachine, command: str, counts: bool) -> None:
    """What Slurm leaves running to hold a cgroup is no job."""
    begins = f"mkdir proc/7; echo slurmstepd >proc/7/comm; printf '{command}' >proc/7/cmdline"
    off = machine.run(begins, *[":"] * 49, "rm -r proc/7")
    assert off in about(5 * 50 if counts else ALONE_S)
    assert machine.drained


@pytest.mark.parametrize("state", ["allocated", "mixed", "draining", "completing"])
def test_a_job_that_has_no_step_here_is_none_the_less_one(machine: LonelyMachine, state: str) -> None:
    assert machine.run(f"echo {state} >sinfo.state", *[":"] * 59, "echo idle >sinfo.state") in about(5 * 60)


def test_a_job_that_was_quicker_than_the_drain_stays(machine: LonelyMachine) -> None:
    """It starts at the moment of the drain, and ends at last."""
    quick = [":"] * (ALONE_S // 5) + ["echo draining >sinfo.state"] + [":"] * 30 + ["echo idle >sinfo.state"]
    assert machine.run(*quick) > ALONE_S + 5 * 30


def test_data_of_jobs_keeps_it_for_a_while(machine: LonelyMachine) -> None:
    (machine.folder / "jobs/17-abc/out").mkdir(parents=True)
    assert machine.run() in about(ALONE_S + LONGER_S)


def test_data_of_a_job_that_ends_late_is_kept_as_long(machine: LonelyMachine) -> None:
    (machine.folder / "jobs/17-abc/out").mkdir(parents=True)
    begins = "mkdir proc/7; echo slurmstepd >proc/7/comm; : >proc/7/cmdline"
    assert machine.run(begins, *[":"] * 59, "rm -r proc/7", rounds=150) in about(5 * 60 + LONGER_S - EVERY_S)


def test_a_node_whose_extra_is_somebody_elses_is_left_alone(machine: LonelyMachine) -> None:
    machine.sign("rack=7")
    assert machine.run() == 0


def test_a_node_that_never_got_a_sign_has_heard_nothing(machine: LonelyMachine) -> None:
    machine.sign("")
    assert machine.run() in about(ALONE_S)


def test_a_slurmctld_that_does_not_answer_is_silence_and_given_as_long_again(machine: LonelyMachine) -> None:
    assert machine.run("touch scontrol.broken") in about(2 * ALONE_S)


def test_without_a_time_it_never_does(tmp_path: Path) -> None:
    assert LonelyMachine(tmp_path, 0).run() == 0
