"""What reuse.sh takes for Slurm's own on a machine that is to be another node."""

from __future__ import annotations

import os
import subprocess
from importlib.resources import files

import pytest

CALLED = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0); print(flush=True); time.sleep(60)"
"""Sets the name of its process: PR_SET_NAME."""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a PID namespace and another user")
@pytest.mark.parametrize(
    ("name", "uid", "found"),
    [
        ("slurmd", 65533, "it is cleared"),
        ("slurmstepd", 65533, "it is cleared"),
        ("slurmd", 0, ""),
        ("slurmstepd", 0, "a job step still runs"),
    ],
)
def test_what_a_user_calls_a_process_keeps_no_machine_from_being_cleared(name: str, uid: int, found: str) -> None:
    text = files("burstd.node").joinpath("scripts", "reuse.sh").read_text(encoding="utf-8")
    looks = text[: text.index("# The watch would drain")]
    other = f'setpriv --reuid={uid} --regid={uid} --clear-groups /usr/bin/python3 -c "$2" -N gpu6 -N gpu7 x'
    script = f'{other} | {{ read -r _; sh -c "$1" sh gpu7 2>&1; kill -9 -1; }}'
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh", f"{looks}\necho it is cleared",
         CALLED.format(name=name)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.partition(" (")[0].strip() == found
