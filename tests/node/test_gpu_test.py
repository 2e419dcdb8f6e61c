"""gpu_test.py, with a CUDA driver that computes on the processor and has faults to order."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

SCRIPT = files("burstd.node").joinpath("scripts", "gpu_test.py").read_text(encoding="utf-8")
LISTED = "GPU 0: NVIDIA H100 (UUID: GPU-0)\nGPU 1: NVIDIA H100 (UUID: GPU-1)\n"
CUT = "GPU 0: NVIDIA H100 (UUID: GPU-0)\n  MIG 1g.10gb Device 0: (UUID: MIG-a)\n  MIG 1g.10gb Device 1: (UUID: MIG-b)\n"
TABLE = "\n".join(f"| {name:<25} | {how:<44} |" for name, how in (("Software", "Pass"), ("Memory", "Fail - GPU: 1")))


class Machine:
    """With a driver, and programs that print a text."""

    def __init__(self, folder: Path, driver: Path) -> None:
        self.folder, self.driver = folder, driver
        self.faults = folder / "faults"

    def add_program(self, name: str, says: str, status: int = 0) -> None:
        program = self.folder / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
        program.chmod(0o755)

    def test(self, *words: str) -> list[str]:
        env = {
            "PATH": f"{self.folder}:{os.defpath}",
            "LD_LIBRARY_PATH": str(self.driver),
            "FAKE_CUDA": str(self.faults),
        }
        done = subprocess.run(
            [sys.executable, "-I", "-", *words], input=SCRIPT, env=env, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.splitlines()


@pytest.fixture
def machine(tmp_path: Path, cuda_driver: Path) -> Machine:
    found = Machine(tmp_path, cuda_driver.parent)
    found.add_program("nvidia-smi", LISTED)
    return found


def test_gpus_that_compute(machine: Machine) -> None:
    assert machine.test("60") == ["ok GPU-0", "ok GPU-1", "end"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("wrong", "matrix product: 1 of 16384 numbers are wrong, the first is 26713 in the place of 26712"),
        ("lost", "cuInit: CUDA_ERROR_UNKNOWN (999)"),
        ("uncorrectable", "cuCtxSynchronize: an error without a name (214)"),
        ("dies", "the driver ended the test"),
    ],
)
def test_a_gpu_that_does_not(machine: Machine, fault: str, why: str) -> None:
    machine.faults.write_text(f"GPU-1 {fault}\n")
    assert sorted(machine.test("60")) == ["end", f"failed GPU-1 {why}", "ok GPU-0"]


def test_a_gpu_that_hangs_does_not_keep_the_others(machine: Machine) -> None:
    machine.faults.write_text("GPU-0 hangs\n")
    assert machine.test("5") == ["failed GPU-0 does not answer in time", "ok GPU-1", "end"]


def test_each_part_of_a_gpu_computes(machine: Machine) -> None:
    machine.add_program("nvidia-smi", CUT)
    machine.faults.write_text("MIG-b lost\n")
    assert sorted(machine.test("60")) == ["end", "failed MIG-b cuInit: CUDA_ERROR_UNKNOWN (999)", "ok MIG-a"]


def test_without_a_driver_or_nvidia_smi(machine: Machine, tmp_path: Path) -> None:
    machine.driver = tmp_path
    assert [line.partition(": lib")[0] for line in machine.test("60")] == [
        "failed GPU-0 the CUDA driver is missing", "failed GPU-1 the CUDA driver is missing", "end",
    ]  # fmt: skip
    (tmp_path / "nvidia-smi").unlink()
    assert machine.test("60")[0].startswith("failed nvidia-smi ")


@pytest.mark.parametrize(
    ("says", "status", "told"),
    [
        ("| Software | Pass |", 0, "ok dcgmi"),
        (TABLE, 226, "failed dcgmi Memory Fail GPU: 1"),
        (TABLE, 0, "failed dcgmi Memory Fail GPU: 1"),
        ("Error: unable to establish a connection to the specified host: localhost", 255,
         "failed dcgmi Error: unable to establish a connection to the specified host: localhost"),
        ("", 3, "failed dcgmi exit status 3"),
    ],
)  # fmt: skip
def test_the_diagnosis_of_dcgm(machine: Machine, says: str, status: int, told: str) -> None:
    machine.add_program("dcgmi", says, status)
    assert machine.test("60", "long")[2:] == [told, "end"]


def test_a_diagnosis_that_is_not_there_fails(machine: Machine) -> None:
    assert machine.test("60", "long")[2].startswith("failed dcgmi dcgmi is missing: install")


BANDWIDTH = """\
nvbandwidth Version: v0.8
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.63     FIGURE

SUM host_to_device_memcpy_ce    111.27
"""


@pytest.mark.parametrize(
    ("says", "status", "answer"),
    [
        (BANDWIDTH.replace("FIGURE", "40.00"), 0, "ok nvbandwidth"),
        (BANDWIDTH.replace("FIGURE", "12.50"), 0,
         "failed nvbandwidth GPU 1 takes 12.5 GB/s, and the pool wants 40"),
        (BANDWIDTH.replace("FIGURE", "N/A"), 0, "failed nvbandwidth SUM host_to_device_memcpy_ce 111.27"),
        (BANDWIDTH.replace("FIGURE", "nan"), 0, "failed nvbandwidth GPU 1 takes nan GB/s, and the pool wants 40"),
        ("ERROR: no device", 1, "failed nvbandwidth ERROR: no device"),
    ],
)  # fmt: skip
def test_how_fast_the_host_reaches_each_gpu(machine: Machine, says: str, status: int, answer: str) -> None:
    machine.add_program("dcgmi", "all is well", 0)
    assert machine.test("60", "long", "40")[3].startswith("failed nvbandwidth nvbandwidth is missing: install")
    machine.add_program("nvbandwidth", says, status)
    assert machine.test("60", "long", "40")[3] == answer
    assert "nvbandwidth" not in " ".join(machine.test("60", "long"))
