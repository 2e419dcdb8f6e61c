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
        for name, text in (("sinfo", "echo 'idle|none'"), ("scontrol", _SCONTROL), ("sleep", _SLEEP)):
            (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (folder / name).chmod(0o755)
        (folder / "scontrol.calls").touch()
        (folder / "uptime").write_text("1000 0\n", encoding="utf-8")
        self.sign(f"{LIFE_SIGN}1")

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
                "if [ -d /run/systemd/system ]; then systemctl poweroff; else kill -TERM 1; fi",
                f"cp {folder}/uptime {folder}/powered-off; kill $$",
            ),
        ):
            assert loop.count(old) == 1, old
            loop = loop.replace(old, new)
        assert "poweroff" not in loop
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


def test_an_idle_machine_without_a_sign_powers_itself_off(machine: LonelyMachine) -> None:
    assert machine.run() == ALONE_S
    assert machine.drained


def test_each_new_sign_keeps_it(machine: LonelyMachine) -> None:
    signs = [":" if number % 10 else change(f"{LIFE_SIGN}{number}") for number in range(41)]
    off = machine.run(*signs)
    last = 5 * 40
    assert last + ALONE_S <= off <= last + ALONE_S + 3 * ALONE_S // 12
    assert machine.drained


def test_no_job_is_cut_off(machine: LonelyMachine) -> None:
    begins = "mkdir proc/7; echo slurmstepd >proc/7/comm"
    off = machine.run(begins, *[":"] * 49, "rm -r proc/7")
    assert off >= 5 * 50
    assert machine.drained


def test_data_of_jobs_keeps_it_for_a_while(machine: LonelyMachine) -> None:
    (machine.folder / "jobs/17-abc/out").mkdir(parents=True)
    assert machine.run() == ALONE_S + LONGER_S


def test_a_node_whose_extra_is_somebody_elses_is_left_alone(machine: LonelyMachine) -> None:
    machine.sign("rack=7")
    assert machine.run() == 0


def test_a_node_that_never_got_a_sign_has_heard_nothing(machine: LonelyMachine) -> None:
    machine.sign("")
    assert machine.run() == ALONE_S


def test_a_slurmctld_that_does_not_answer_is_silence(machine: LonelyMachine) -> None:
    off = machine.run("touch scontrol.broken")
    assert ALONE_S <= off <= ALONE_S + ALONE_S // 12
    assert machine.drained, "it has tried to"


def test_without_a_time_it_never_does(tmp_path: Path) -> None:
    assert LonelyMachine(tmp_path, 0).run() == 0
