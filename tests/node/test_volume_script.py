"""The script that mounts volumes on nodes, on loop devices of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

pytestmark = pytest.mark.boxes
UUID = "3f4d8f8e-6f0e-4ad1-9d5c-5a1d0a2b7c11"
_SCRIPT = files("burstd.node").joinpath("scripts", "volume.sh").read_text(encoding="utf-8")


def run_script(*words: str) -> tuple[int, str]:
    """Exit status and last line."""
    done = subprocess.run(
        ["sh", "-s", "--", *words], input=_SCRIPT, text=True, capture_output=True, timeout=60, check=False
    )
    return done.returncode, done.stderr.strip().rpartition("\n")[2]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    """With a volume's file system."""
    disk = tmp_path / "disk"
    disk.touch()
    with disk.open("r+b") as file:
        file.truncate(32 << 20)
    made = subprocess.check_output(["losetup", "-f", "--show", disk], text=True).strip()
    try:
        assert run_script("format", UUID, "1000:1000", made)[0] == 0
        yield made
    finally:
        subprocess.run(["umount", "-A", made], capture_output=True, check=False)
        subprocess.run(["losetup", "-d", made], check=True)


def test_it_is_unmounted_when_no_namespace_has_it_mounted(device: str, tmp_path: Path) -> None:
    """A job's process that left the node's mounts can still write to the volume."""
    place = str(tmp_path / "7" / "corpus")
    assert run_script("mount", UUID, place, device)[0] == 0
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo there; read line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as apart:
        assert apart.stdout is not None
        assert apart.stdout.readline() == "there\n"
        assert run_script("unmount", place, device) == (
            75, f"again: {device} is in use: a process has it mounted, perhaps in a namespace of its own"
        )  # fmt: skip
        assert run_script("check", device)[0] == 75
        apart.communicate("\n", timeout=30)
    assert run_script("unmount", place, device) == (0, "")
    assert not Path(place).exists()
    # The device has left the machine, or no list has told of it.
    assert run_script("unmount", place, f"{device}-gone") == (0, "")
    assert run_script("unmount", place)[0] == 75


def test_a_device_that_another_try_checks_is_not_damaged(device: str, tmp_path: Path) -> None:
    held = os.open(device, os.O_RDWR | os.O_EXCL)  # As e2fsck does.
    code, said = run_script("mount", UUID, str(tmp_path / "7" / "corpus"), device)
    os.close(held)
    assert (code, "is in use" in said) == (75, True), said
