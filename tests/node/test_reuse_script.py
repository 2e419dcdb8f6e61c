"""What is left of users on a machine that becomes another node: nothing in memory, nothing in temporary directories."""

# ruff: noqa: S108 - directories in namespaces of their own

from __future__ import annotations

import os
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from tests.reach import let_others_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and other users need root")

SCRIPT = files("burstd.node").joinpath("scripts", "reuse.sh").read_text(encoding="utf-8")
PREPARE = """
for place in /tmp /var/tmp /dev/shm /etc/burstd; do mkdir -p $place; mount -t tmpfs none $place; done
chmod 1777 /tmp /var/tmp /dev/shm
mkdir -p /tmp/hers/deep; echo secret >/tmp/hers/deep/file; ln -s /etc /tmp/hers/link; chown -hR 1234 /tmp/hers
echo x >/tmp/roots; echo x >/dev/shm/hers; chown 1234 /dev/shm/hers; echo old >/etc/burstd/node.json
setpriv --reuid 1234 --clear-groups sleep 300 & left=$!
sleep 300 & roots=$!
"""
LOOK = """
echo $?; ls -A /tmp /var/tmp /dev/shm | xargs
kill -0 $roots && echo root lives
case $(awk '/State/ { print $2 }' /proc/$left/status 2>/dev/null) in "" | Z) ;; *) echo left ;; esac
cat /etc/burstd/node.json; [ -d /etc/apt ] && echo etc is there
"""


def run_in_namespaces(before: str, tmp_path: Path) -> str:
    let_others_in(tmp_path)
    script = tmp_path / "reuse.sh"
    script.write_text(SCRIPT)
    text = f"exec 9<{script}\n{PREPARE}{before}\necho new | sh /dev/fd/9 b1 2>&1{LOOK}kill $roots"
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--ipc",
        "--fork",
        "--mount-proc",
        "--propagation",
        "private",
        "sh",
        "-c",
        text,
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stdout


def test_processes_and_temporary_files_of_users_go_and_those_of_root_stay(tmp_path: Path) -> None:
    assert run_in_namespaces("", tmp_path).splitlines() == [
        "0", "/dev/shm: /tmp: roots /var/tmp:", "root lives", "new", "etc is there",
    ]  # fmt: skip


def test_while_a_step_runs_nothing_is_touched(tmp_path: Path) -> None:
    step = "cp /bin/sleep /var/tmp/slurmstepd; /var/tmp/slurmstepd 300 & step=$!; sleep 0.2"
    said = run_in_namespaces(step, tmp_path)
    assert "a job step still runs" in said
    assert {"75", "left", "old"} <= set(said.splitlines())
