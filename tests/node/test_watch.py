"""The loop by which a machine learns that its cloud takes it back, with programs that play Slurm and the cloud."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from burstd.planner.lifecycle.spot_notices import parse_reason

ENDS = "interruption, ends 2026-11-21T12:02:00Z"
AT = "interruption 1795262520"
_SINFO = 'test ! -e "$0.broken" || exit 1; cat "$0.says"'
# The update is what sinfo shows from then on; the first ones may be refused.
_SCONTROL = """
echo "$@" >>"$0.calls"
left=$(cat "$0.refusals"); echo $((left - 1)) >"$0.refusals"
[ "$left" -le 0 ] || exit 1
for word; do case $word in Reason=*) echo "draining|${word#Reason=}" >"${0%scontrol}sinfo.says" ;; esac; done
"""
# Each round's sleep moves the cloud's word on by a line, and Slurm may forget; at the last the loop is ended.
_SLEEP = """
echo "$1" >>"$0.calls"
case $1 in *.*) exit ;; esac
[ ! -e "$0.forgets" ] || cp "$0.forgets" "${0%sleep}sinfo.says"
sed -i 1d "$0.notices"
[ -s "$0.notices" ] || kill "$PPID"
"""


class WatchedMachine:
    """One machine whose cloud says these words, one each round."""

    def __init__(self, folder: Path, said: Sequence[str], node: str, refusals: int = 0) -> None:
        self._folder = folder
        for name, text in (("sinfo", _SINFO), ("scontrol", _SCONTROL), ("sleep", _SLEEP)):
            (folder / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
            (folder / name).chmod(0o755)
        (folder / "sinfo.says").write_text(node + "\n", encoding="utf-8")
        (folder / "scontrol.refusals").write_text(str(refusals), encoding="utf-8")
        (folder / "scontrol.calls").touch()
        (folder / "sleep.calls").touch()
        (folder / "sleep.notices").write_text("\n".join([*said, ""]), encoding="utf-8")
        (folder / "notice.sh").write_text(f"head -n 1 {folder}/sleep.notices\n", encoding="utf-8")
        loop = files("burstd.node").joinpath("scripts", "watch.sh").read_text(encoding="utf-8")
        self._loop = loop.replace("PATH=/usr/sbin", f"PATH={folder}:/usr/sbin")
        assert self._loop != loop

    def run(self) -> None:
        """Until the cloud has nothing more to say."""
        words = ["sh", "-c", self._loop, "sh", "cl1", str(self._folder / "notice.sh")]
        assert subprocess.run(words, env=dict(os.environ), timeout=60, check=False).returncode == -signal.SIGTERM

    def _pauses(self) -> list[str]:
        return (self._folder / "sleep.calls").read_text(encoding="utf-8").split()

    @property
    def rounds(self) -> list[int]:
        """How long it waited after each round, in seconds."""
        return [int(pause) for pause in self._pauses() if "." not in pause]

    @property
    def by_chance(self) -> list[float]:
        """How long it waited so as not to come with all others."""
        return [float(pause) for pause in self._pauses() if "." in pause]

    @property
    def reasons(self) -> list[str]:
        """What Slurm was told."""
        lines = (self._folder / "scontrol.calls").read_text(encoding="utf-8").splitlines()
        assert all(line.startswith("update NodeName=cl1 State=DRAIN Reason=") for line in lines)
        return [line.partition("Reason=")[2] for line in lines]


@pytest.mark.parametrize(
    ("said", "node", "told"),
    [
        (["", "", AT], "allocated|none", [f"burstd: {ENDS}"]),
        (["interruption 1795262520.7"], "idle|none", [f"burstd: {ENDS}"]),
        (["interruption soon"], "idle|none", ["burstd: interruption"]),
        (["rebalance", "rebalance"], "mixed|none", ["burstd: rebalance hint"]),
        (["rebalance", AT, AT], "mixed|none", ["burstd: rebalance hint", f"burstd: {ENDS}"]),
        ([AT], "draining|bad disk", [f"bad disk; burstd: {ENDS}"]),
        ([AT], "drained*|bad disk; burstd: rebalance hint", [f"bad disk; burstd: {ENDS}"]),
        ([AT], "idle|burstd: interruption, ends 2026-01-01T00:00:00Z", [f"burstd: {ENDS}"]),
        ([AT], f"draining|burstd: {ENDS}", []),
        (["rebalance"], f"draining|burstd: {ENDS}", []),
        (["", "what?"], "idle|none", []),
        ([AT, AT], "idle~|none", []),
        ([AT], "idle%|none", []),
        ([AT], "mixed#|none", [f"burstd: {ENDS}"]),
        ([AT], "mixed!|none", [f"burstd: {ENDS}"]),
    ],
)
def test_what_a_machine_tells_slurm(tmp_path: Path, said: list[str], node: str, told: list[str]) -> None:
    played = WatchedMachine(tmp_path, said, node)
    played.run()
    assert played.reasons == told
    assert all(parse_reason(reason) for reason in told)


@pytest.mark.parametrize(
    ("said", "forgotten", "times"),
    [(AT, "allocated|none", 4), ("rebalance", "allocated|none", 1), (AT, "idle#|none", 1), (AT, "idle~|none", 1)],
)
def test_a_slurm_that_forgot_an_interruption_is_told_again(
    tmp_path: Path, said: str, forgotten: str, times: int
) -> None:
    played = WatchedMachine(tmp_path, [said] * 4, "allocated|none")
    (tmp_path / "sleep.forgets").write_text(forgotten + "\n", encoding="utf-8")
    played.run()
    assert len(played.reasons) == times
    assert played.rounds == [30 if said == AT else 5] * 4


def test_slurm_is_told_until_it_has_heard(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [AT] * 7, "allocated|none", refusals=5)
    played.run()
    assert played.reasons == [f"burstd: {ENDS}"] * 6
    assert played.rounds == [5, 10, 20, 30, 30, 30, 30]


def test_a_slurm_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    played = WatchedMachine(tmp_path, [AT] * 3, "")
    (tmp_path / "sinfo.broken").touch()
    played.run()
    assert played.reasons == []
    assert played.rounds == [5, 10, 20]


@pytest.mark.slow
def test_machines_that_hear_of_their_end_at_once_do_not_come_at_once(tmp_path: Path) -> None:
    """A pause at the start, and one each time before slurmctld is told something new."""
    played = WatchedMachine(tmp_path, ["", *[AT] * 40], "allocated|none", refusals=38)
    played.run()
    assert len(played.by_chance) == 1 + 39
    assert len(set(played.by_chance)) > 10
    assert max(played.by_chance) < 4
