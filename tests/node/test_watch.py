"""The loop by which a machine learns that its cloud takes it back, with programs that play Slurm and the cloud."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from burstd.core.notices import read

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
# Each sleep moves the cloud's word on by a line; at the last the loop is ended.
_SLEEP = """
sed -i 1d "$0.notices"
[ -s "$0.notices" ] || kill "$PPID"
"""


class Played:
    """One machine whose cloud says these words, one each round."""

    def __init__(self, folder: Path, said: Sequence[str], node: str, refusals: int = 0) -> None:
        self._folder = folder
        for name, text in (("sinfo", _SINFO), ("scontrol", _SCONTROL), ("sleep", _SLEEP)):
            (folder / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
            (folder / name).chmod(0o755)
        (folder / "sinfo.says").write_text(node + "\n", encoding="utf-8")
        (folder / "scontrol.refusals").write_text(str(refusals), encoding="utf-8")
        (folder / "scontrol.calls").touch()
        (folder / "sleep.notices").write_text("\n".join([*said, ""]), encoding="utf-8")
        (folder / "notice.sh").write_text(f"head -n 1 {folder}/sleep.notices\n", encoding="utf-8")
        loop = files("burstd.node").joinpath("watch.sh").read_text(encoding="utf-8")
        self._loop = loop.replace("PATH=/usr/sbin", f"PATH={folder}:/usr/sbin")
        assert self._loop != loop

    def run(self) -> int:
        """Until it has nothing more to do, or the cloud nothing more to say; its exit status."""
        words = ["sh", "-c", self._loop, "sh", "cl1", str(self._folder / "notice.sh")]
        return subprocess.run(words, env=dict(os.environ), timeout=60, check=False).returncode

    @property
    def reasons(self) -> list[str]:
        """What Slurm was told."""
        lines = (self._folder / "scontrol.calls").read_text(encoding="utf-8").splitlines()
        assert all(line.startswith("update NodeName=cl1 State=DRAIN Reason=") for line in lines)
        return [line.partition("Reason=")[2] for line in lines]


@pytest.mark.parametrize(
    ("said", "node", "told", "ended"),
    [
        (["", "", AT], "allocated|none", [f"burstd: {ENDS}"], True),
        (["interruption 1795262520.7"], "idle|none", [f"burstd: {ENDS}"], True),
        (["interruption soon"], "idle|none", ["burstd: interruption"], True),
        (["rebalance", "rebalance"], "mixed|none", ["burstd: rebalance hint"], False),
        (["rebalance", AT], "mixed|none", ["burstd: rebalance hint", f"burstd: {ENDS}"], True),
        ([AT], "draining|bad disk", [f"bad disk; burstd: {ENDS}"], True),
        ([AT], "drained*|bad disk; burstd: rebalance hint", [f"bad disk; burstd: {ENDS}"], True),
        ([AT], "idle|burstd: interruption, ends 2026-01-01T00:00:00Z", [f"burstd: {ENDS}"], True),
        ([AT], f"draining|burstd: {ENDS}", [], True),
        (["rebalance"], f"draining|burstd: {ENDS}", [], False),
        (["", "what?"], "idle|none", [], False),
    ],
)
def test_what_a_machine_tells_slurm(
    tmp_path: Path, said: list[str], node: str, told: list[str], *, ended: bool
) -> None:
    played = Played(tmp_path, said, node)
    assert (played.run() == 0) is ended
    assert played.reasons == told
    assert all(read(reason) for reason in told)


def test_slurm_is_told_until_it_has_heard(tmp_path: Path) -> None:
    played = Played(tmp_path, [AT] * 5, "allocated|none", refusals=3)
    assert played.run() == 0
    assert played.reasons == [f"burstd: {ENDS}"] * 4


def test_a_slurm_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    played = Played(tmp_path, [AT] * 3, "")
    (tmp_path / "sinfo.broken").touch()
    assert played.run() != 0
    assert played.reasons == []
