"""Cutting GPUs into parts with mig.sh: an nvidia-smi that keeps in files what a real one keeps in GPUs."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Gres, Shape
from burstd.node.checks import failed_checks
from burstd.node.expected import ExpectedMachine
from burstd.node.facts import MachineFacts, parse_facts

NVIDIA_SMI = r"""#!/bin/sh
cd "$(dirname "$0")/gpus" || exit 9
echo "$*" >> ../calls
if [ "$1" = -L ]; then
    for gpu in *; do
        echo "GPU $gpu: NVIDIA A100-SXM4-80GB (UUID: GPU-$gpu)"
        number=0
        for part in $(cat "$gpu/parts"); do
            echo "  MIG $part     Device  $number: (UUID: MIG-$gpu-$number)"; number=$((number + 1))
        done
    done
    exit
fi
case "$*" in
--query-gpu=index*) ls ;;
*mig.mode.current*) cat "$2/mode" ;;
*"-mig 1") cp "$2/after" "$2/mode" ;;
*--gpu-reset) echo "not supported"; exit 3 ;;
*-dci) [ ! -e "$3/busy" ] || { echo "Unable to destroy compute instances: In use by another client"; exit 19; } ;;
*-dgi) : > "$3/parts" ;;
*-cgi*) case $5 in *9g*) echo "Unable to create a GPU instance: Not Supported"; exit 4 ;; esac
    echo "$5" | tr , "\n" > "$3/parts" ;;
esac
"""
PARTS = "1g.10gb,1g.10gb,3g.40gb"


class Machine:
    """With two GPUs that are in MIG mode and not cut."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for gpu in ("0", "1"):
            self.set(gpu, mode="Enabled", after="Enabled", parts="")
        (folder / "nvidia-smi").write_text(NVIDIA_SMI)
        (folder / "nvidia-smi").chmod(0o755)

    def set(self, gpu: str, **files_: str) -> None:
        (self.folder / "gpus" / gpu).mkdir(parents=True, exist_ok=True)
        for name, text in files_.items():
            (self.folder / "gpus" / gpu / name).write_text(f"{text}\n" if text else "")

    def cut(self, profiles: str = PARTS) -> subprocess.CompletedProcess[str]:
        (self.folder / "calls").write_text("")
        script = files("burstd.node").joinpath("scripts", "mig.sh").read_text(encoding="utf-8")
        script = script.replace("PATH=/usr/sbin", f"PATH={self.folder}:/usr/sbin")
        return subprocess.run(["sh", "-c", script, "sh", profiles], capture_output=True, text=True, check=False)

    def facts(self) -> MachineFacts:
        said = subprocess.run([self.folder / "nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
        lines = "".join(f"gpu_name={line.strip()}\n" for line in said.splitlines())
        found = parse_facts(f"{lines}gpu_device=/dev/nvidia0\ngpu_device=/dev/nvidia1\nend=1\n", asked=0, answered=0)
        assert found is not None
        return found

    def changes(self) -> list[str]:
        calls = (self.folder / "calls").read_text().splitlines()
        return [call for call in calls if call.startswith("mig ") or " -mig " in call]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


CUT = (Gres("gpu", "1g.10gb", 2), Gres("gpu", "3g.40gb", 1))
POOL = Pool("cut", ("m1",), ("burst",), Shape(1, 1, (Gres("gpu", "1g.10gb", 4), Gres("gpu", "3g.40gb", 2))), mig=CUT)


def differences(machine: Machine) -> list[str]:
    expected = ExpectedMachine(POOL.machine_shape(), (), mig=POOL.mig)
    return [str(one) for one in failed_checks(machine.facts(), expected) if one.name in ("mig", "gpus", "gpu_type")]


def test_each_gpu_is_cut_once(machine: Machine) -> None:
    machine.set("1", mode="Disabled")
    (before,) = differences(machine)
    assert before.startswith("mig: a GPU that is not cut where 2 x 1g.10gb, 1 x 3g.40gb on each GPU is expected.")
    assert machine.cut().returncode == 0
    assert differences(machine) == []
    assert machine.changes() == [f"mig -i 0 -cgi {PARTS} -C", "-i 1 -mig 1", f"mig -i 1 -cgi {PARTS} -C"]
    assert machine.cut().returncode == 0
    assert machine.changes() == []


def test_other_parts_make_room(machine: Machine) -> None:
    machine.set("0", parts="7g.80gb")
    assert machine.cut().returncode == 0
    assert machine.changes()[:3] == ["mig -i 0 -dci", "mig -i 0 -dgi", f"mig -i 0 -cgi {PARTS} -C"]
    assert differences(machine) == []


@pytest.mark.parametrize(
    ("gpu", "profiles", "says"),
    [
        ({"mode": "[N/A]"}, PARTS, "GPU 1 has no MIG"),
        ({"mode": "Disabled", "after": "Disabled"}, PARTS, "GPU 1: MIG is enabled after a reboot only"),
        ({"parts": "7g.80gb", "busy": "1"}, PARTS, "In use by another client"),
        ({}, "9g.90gb", "GPU 0: Unable to create a GPU instance: Not Supported"),
    ],
)
def test_what_keeps_a_gpu_from_being_cut_is_said(
    machine: Machine, gpu: dict[str, str], profiles: str, says: str
) -> None:
    machine.set("1", **gpu)
    done = machine.cut(profiles)
    assert done.returncode == 1
    assert says in done.stderr.splitlines()[-1]


def test_a_cloud_sells_the_gpus_whole() -> None:
    assert POOL.machine_shape().gres == (Gres("gpu", "", 2),)
    shared = Pool("half", (), (), Shape(1, 1, (Gres("gpu", "a100", 2), Gres("shard", "", 8))))
    assert shared.machine_shape().gres == (Gres("gpu", "a100", 2),)
