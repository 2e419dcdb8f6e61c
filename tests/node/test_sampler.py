"""The sampler on a node: made-up processes and cgroups, and a made-up nvidia-smi."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.job_use import GpuShare
from burstd.domain.plugins.shell import CompletedCommand
from burstd.node.errors import CommandFailed
from burstd.node.job_use import SamplerConfig, fetch_figures, read_figures

sampler: Any = importlib.import_module("burstd.node.scripts.sampler")
SCRIPT = files("burstd.node").joinpath("scripts", "sampling.sh").read_text(encoding="utf-8")
MIB = 1 << 20
ROWS = {"GPU-a": (0, 70.0, 1000.0), "GPU-b": (1, 0.0, 5.0)}


class Machine:
    """Its /proc and its cgroups, in a folder. Times in ticks of 10 ms."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sampler = self.new_sampler()
        self.gpus: dict[str, tuple[int, float | None, float]] = dict(ROWS)
        self.parents: dict[str, str] = {}

    def new_sampler(self) -> Any:
        (self.root / "jobs").mkdir(exist_ok=True)
        return sampler.Sampler(self.root / "jobs", 10.0, 2.0, sampler.Node(str(self.root)), PlayedSmi(self))

    def process(self, pid: int, parent: int, name: str = "python3", ticks: tuple[int, ...] = (0, 0, 0, 0),
                start: int = 100, **texts: str) -> None:  # fmt: skip
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        zeros = "0 " * 7
        cpu = " ".join(map(str, ticks))
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {zeros}0 0 {cpu} 20 0 1 0 {start} 1 1\n")
        for file, text in texts.items():
            (folder / file).write_text(text)

    def job(self, number: int = 7, pid: int = 50, **environment: str) -> None:
        """A batch step whose script is ``pid`` + 1."""
        self.process(pid, 1, "slurmstepd", cmdline=f"slurmstepd: [{number}.batch]", cgroup="0::/\n")
        values = {"SLURM_JOB_ID": str(number), "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "100",
                  "SLURM_JOB_GPUS": "0", **environment}  # fmt: skip
        self.process(pid + 1, pid, "sh) R 1 (", environ="\0".join(f"{k}={v}" for k, v in values.items()))

    def end(self, pid: int = 50) -> None:
        for one in (pid, pid + 1):
            shutil.rmtree(self.root / "proc" / str(one))

    def cgroup(self, path: str, **texts: str) -> None:
        folder = self.root / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file.replace("__", ".")).write_text(text)

    def figures(self, number: int = 7) -> dict[str, Any]:
        """Of its last run."""
        return self.runs(number)[-1]

    def runs(self, number: int = 7) -> list[dict[str, Any]]:
        files = sorted((self.root / "jobs").glob(f"{number}-*.use"))
        return [json.loads(zlib.decompress(file.read_bytes())) for file in files]

    def sample(self, *times: float) -> dict[str, Any]:
        for at in times:
            self.sampler.sample(at)
        return self.figures()


class PlayedSmi:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def rows(self) -> dict[str, dict[str, Any]]:
        return {
            uuid: {"index": index, "model": "A100", "percent": percent, "memory_used_mib": used, "memory_mib": 81920}
            for uuid, (index, percent, used) in self._machine.gpus.items()
        }

    def parent(self, device: str) -> str:
        return self._machine.parents.get(device, "")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if os.geteuid() != 0:
        pytest.skip("slurmstepd is root's, so only root can play it")
    (tmp_path / "proc").mkdir()
    return Machine(tmp_path)


@pytest.mark.parametrize("count", ["abc", "1e3", "-", "", "9" * 40])
def test_a_user_may_write_anything_into_his_environment(machine: Machine, count: str) -> None:
    machine.job(8, 80, SLURM_RESTART_COUNT=count, SLURM_CPUS_ON_NODE=count)
    machine.job()
    assert machine.sample(13.0, 23.0)["restarts"] == 0
    assert machine.figures(8)["restarts"] == 0


V2 = "0::/system.slice/slurmstepd.scope/job_s71/step_batch/slurm\n"
V1 = "4:memory:/slurm/uid_1000/job_7/step_batch\n3:cpu,cpuacct:/slurm/uid_1000/job_7/step_batch\n2:blkio:/\n"


def processes(machine: Machine) -> None:
    """Two below the script; one of them has ended others, and one of the script's children is gone."""
    machine.process(50, 1, "slurmstepd", (9, 9, 100, 50), cmdline="slurmstepd: [7.batch]", cgroup="0::/\n")
    machine.process(51, 50, "sh", (100, 0, 200, 0), statm="900 300 44 0", io="read_bytes: 5\nwrite_bytes: 7\n")
    machine.process(52, 51, "a (b) c", (50, 100, 0, 0), statm="900 1000 232 0", io="read_bytes: 1000\nwrite_bytes: 1\n")
    machine.process(60, 1, "other", (900, 0, 0, 0))


def cgroup_v2(machine: Machine) -> None:
    machine.process(50, 1, "slurmstepd", cmdline="slurmstepd: [7.batch]", cgroup=V2)
    machine.process(51, 50)
    machine.cgroup(
        "system.slice/slurmstepd.scope/job_s71", cpu__stat="usage_usec 6000000\nuser_usec 1\n",
        memory__stat=f"anon {3 * MIB}\nfile {9 * MIB}\nshmem {MIB}\n",
        io__stat="8:0 rbytes=1000 wbytes=5 rios=1\n8:16 rbytes=5 wbytes=3\n",
    )  # fmt: skip


def cgroup_v1(machine: Machine) -> None:
    """Without blkio: that is counted by the processes."""
    machine.process(50, 1, "slurmstepd", cmdline="slurmstepd: [7.batch]", cgroup=V1)
    machine.process(51, 50, io="read_bytes: 1005\nwrite_bytes: 8\n")
    job = "slurm/uid_1000/job_7"
    machine.cgroup(f"cpuacct/{job}", cpuacct__usage="6000000000\n")
    machine.cgroup(f"memory/{job}", memory__stat=f"cache {9 * MIB}\ntotal_rss {3 * MIB}\ntotal_shmem {MIB}\n")


@pytest.mark.parametrize("kernel", [processes, cgroup_v2, cgroup_v1])
def test_cpu_memory_and_io_by_what_the_kernel_has(machine: Machine, kernel: Callable[[Machine], None]) -> None:
    """Six CPU seconds since the step began, 1 s after boot; 4 MiB without what the kernel can drop."""
    kernel(machine)
    found = machine.sample(13.0)
    assert (found["start"], found["at"]) == (1.0, 13.0)
    assert (found["cpu"][0], found["cpus_peak"], found["cpus_now"]) == (6.0, 0.5, 0.5)
    assert (found["memory_mean_mib"], found["memory_peak_mib"]) == (4.0, 4.0)
    assert (found["read"][0], found["written"][0]) == (1005.0, 8.0)


def test_what_the_kernel_counts_of_a_job_never_goes_back(machine: Machine) -> None:
    """A process whose parent did not wait for it takes its time with it; a step that is new has a cgroup that is."""
    processes(machine)
    machine.sample(11.0)
    shutil.rmtree(machine.root / "proc/52")
    assert machine.sample(21.0)["cpu"][0] == 6.0
    machine.process(51, 50, "sh", (200, 0, 200, 0))
    assert machine.sample(31.0)["cpu"][0] == 7.0
    cgroup_v2(machine)
    assert machine.sample(41.0)["cpu"][0] == 7.0, "from here on by the cgroup"
    machine.cgroup("system.slice/slurmstepd.scope/job_s71", cpu__stat="usage_usec 500000\n")
    assert machine.sample(51.0)["cpu"][0] == 7.5


def test_what_the_job_was_given(machine: Machine) -> None:
    machine.job(SLURM_JOB_GPUS="1,0", SLURM_RESTART_COUNT="2")
    found = machine.sample(11.0)
    assert (found["cpus"], found["memory_mib"], found["restarts"], found["shared"]) == (8, 800, 2, False)
    assert [(g["uuid"], g["index"], g["mean"], g["memory_peak_mib"]) for g in found["gpus"]] == [
        ("GPU-b", 1, 0.0, 5), ("GPU-a", 0, 70.0, 1000),
    ]  # fmt: skip


def test_the_driver_s_numbers_count_before_nvidia_smi_s(machine: Machine) -> None:
    for bus, minor, uuid in (("1", 0, "GPU-b"), ("2", 1, "GPU-a")):
        folder = machine.root / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t x\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    machine.job()
    assert [gpu["uuid"] for gpu in machine.sample(11.0)["gpus"]] == ["GPU-b"]


def test_parts_of_gpus_are_named_so(machine: Machine) -> None:
    """Of MIG nvidia-smi knows no utilisation: it is never idle."""
    machine.gpus["GPU-a"] = (0, None, 1000.0)
    machine.parents["MIG-x"] = "GPU-a"
    machine.job(CUDA_VISIBLE_DEVICES="MIG-x")
    machine.job(8, 60, SLURM_SHARDS_ON_NODE="1", SLURM_JOB_GPUS="1")
    machine.sample(*range(11, 100, 10))
    text = "".join(f"use {n}-1 {_encoded(machine, n)}\n" for n in (7, 8))
    found = read_figures(f"uptime 91.00\nsampler running\n{text}", "cl1", 1000.0).runs
    (mig,), (shard,) = found["7-1"].gpus, found["8-1"].gpus
    assert (mig.uuid, mig.share, mig.utilisation_mean, mig.idle_s) == ("MIG-x", GpuShare.MIG, None, 0.0)
    assert (shard.share, shard.idle_now_s) == (GpuShare.SHARD, shard.seen_s)
    assert mig.seen_s > 80


def _encoded(machine: Machine, number: int) -> str:
    done = subprocess.run(["base64", "-w", "0", machine.root / f"jobs/{number}-1.use"], capture_output=True, check=True)
    return done.stdout.decode("ascii")


@pytest.mark.parametrize(
    ("percents", "memory", "idle", "now"),
    [
        ([0, 0, 0, 0], [5] * 4, 40, 40),
        ([0, 0, 1.9, 2], [5] * 4, 30, 0),
        ([50, 0, 0, 0], [5] * 4, 30, 30),
        ([0, 99, 0, 0], [5] * 4, 30, 20),
        ([0, 0, 0, 0], [5, 500, 900, 910], 20, 10),
        ([0, 0, 0, 0], [900, 900, 5, 5], 30, 10),
        ([None] * 4, [5] * 4, 0, 0),
    ],
)
def test_how_long_a_gpu_was_idle(
    machine: Machine, percents: list[float | None], memory: list[float], idle: float, now: float
) -> None:
    """Memory that grows or shrinks is work: data that is loaded."""
    machine.job()
    for at, percent, used in zip(range(11, 51, 10), percents, memory, strict=True):
        machine.gpus["GPU-a"] = (0, percent, used)
        machine.sampler.sample(float(at))
    (gpu,) = machine.figures()["gpus"]
    assert (gpu["seen_s"], gpu["idle_s"], gpu["idle_now_s"]) == (40, idle, now)


def test_a_gap_is_not_idle_time(machine: Machine) -> None:
    """A GPU that is lost for a while, and a sampler that did not run: nothing is known of it."""
    machine.job()
    machine.gpus["GPU-a"] = (0, 0.0, 5.0)
    machine.sample(11.0, 21.0)
    lost = machine.gpus.pop("GPU-a")
    machine.sample(*range(31, 700, 10))
    assert machine.figures()["gpus"][0]["at"] == 21.0
    machine.gpus["GPU-a"] = lost
    (gpu,) = machine.sample(701.0, 711.0)["gpus"]
    assert (gpu["seen_s"], gpu["idle_s"], gpu["idle_now_s"]) == (40, 40, 20)


def test_time_in_which_a_job_is_suspended_counts_as_neither_idle_nor_used(machine: Machine) -> None:
    """The extern step's own process is not stopped with the others."""
    machine.job()
    machine.process(60, 1, "slurmstepd", cmdline="slurmstepd: [7.extern]", cgroup="0::/\n")
    machine.process(61, 60, "sleep")
    machine.gpus["GPU-a"] = (0, 0.0, 5.0)
    machine.sample(11.0, 21.0)
    stat = machine.root / "proc/51/stat"
    text = stat.read_text()
    stat.write_text(text.replace(") S ", ") T "))
    suspended = machine.sample(31.0, 41.0)
    machine.sampler = machine.new_sampler()
    stat.write_text(text)
    found = machine.sample(51.0)
    (before,), (after,) = suspended["gpus"], found["gpus"]
    assert (before["idle_s"], before["idle_now_s"], before["at"], suspended["suspended_s"]) == (20, 0, 41.0, 20.0)
    assert (after["idle_s"], after["idle_now_s"], after["seen_s"], found["suspended_s"]) == (30, 10, 30, 20.0)
    assert found["cpu_series"]["mean"] == [0.0, 0.0, None, None, 0.0]
    node = read_figures(f"uptime 51.00\nsampler running\nuse 7-1 {_encoded(machine, 7)}\n", "cl1", 1000.0).runs["7-1"]
    assert (node.measured_s, node.suspended_s) == (30.0, 20.0)


def test_a_sampler_that_was_killed_goes_on_where_it_was(machine: Machine) -> None:
    processes(machine)
    machine.process(51, 50, "sh", (100, 0, 200, 0), environ="SLURM_JOB_ID=7\0SLURM_JOB_GPUS=0\0")
    before = machine.sample(11.0, 21.0)
    machine.sampler = machine.new_sampler()
    after = machine.sample(31.0)
    assert (after["start"], after["cpu"][0], after["gpus"][0]["seen_s"]) == (1.0, 6.0, 30)
    assert before["cpu_series"]["mean"] == [0.6, 0.0]
    assert after["cpu_series"]["mean"] == [0.6, 0.0, 0.0]


def test_a_job_that_is_gone_keeps_its_last_figures(machine: Machine) -> None:
    machine.job()
    before = machine.sample(11.0, 21.0)
    machine.end()
    after = machine.sample(31.0, 41.0)
    assert after == before | {"ended": True}


def _step(machine: Machine, name: str, start: int) -> None:
    machine.process(50, 1, "slurmstepd", start=start, cmdline=f"slurmstepd: [7.{name}]", cgroup="0::/\n")


@pytest.mark.parametrize(
    ("restarts", "run_start", "starts"),
    [("", "1800000000", [1.0]), ("1", "1800000030", [1.0, 35.0]), ("", "1800000030", [1.0, 35.0]), ("", "", [1.0])],
)
@pytest.mark.parametrize("seen_to_end", [True, False])
def test_a_job_that_comes_again_goes_on_unless_it_is_another_run(
    machine: Machine, restarts: str, run_start: str, starts: list[float], seen_to_end: bool
) -> None:
    """As one that was allocated by salloc, between two steps; one that was requeued, or has the number of another."""
    machine.job(SLURM_JOB_START_TIME="1800000000")
    machine.sample(11.0)
    machine.end()
    if seen_to_end:
        machine.sample(31.0)
    else:
        machine.sampler = machine.new_sampler()
    machine.job(SLURM_RESTART_COUNT=restarts, SLURM_JOB_START_TIME=run_start)
    _step(machine, "1", 3500)
    machine.sample(41.0)
    ended = [False] if len(starts) == 1 else [True, False]
    assert [(run["start"], run["ended"]) for run in machine.runs()] == [*zip(starts, ended, strict=True)]


@pytest.mark.parametrize("seen_to_end", [True, False])
@pytest.mark.parametrize("step", ["extern", "batch", "interactive"])
def test_a_job_whose_first_step_is_new_was_requeued(machine: Machine, step: str, seen_to_end: bool) -> None:
    """Though no process of it shows how often; a sampler that is started again meanwhile does not mistake one."""
    machine.job()
    machine.sample(11.0)
    machine.end()
    if seen_to_end:
        machine.sample(31.0)
    _step(machine, step, 3500)
    found = machine.sample(41.0)
    assert (found["start"], found["restarts"], found["cpu"][0]) == (35.0, None, 0.0)
    assert [(run["start"], run["ended"], run["at"]) for run in machine.runs()[:-1]] == [(1.0, True, 11.0)]
    machine.sampler = machine.new_sampler()
    machine.job(SLURM_RESTART_COUNT="1")
    _step(machine, step, 3500)
    found = machine.sample(51.0)
    assert (found["start"], found["restarts"]) == (35.0, 1)


@pytest.mark.parametrize(("restarts", "start"), [("", 1.0), ("1", 35.0)])
def test_that_a_job_was_requeued_may_be_known_later(machine: Machine, restarts: str, start: float) -> None:
    """A step of srun has no process of the user's at its first sample."""
    machine.job()
    machine.sample(11.0)
    machine.end()
    machine.sample(31.0)
    _step(machine, "0", 3500)
    machine.sample(41.0)
    machine.job(SLURM_RESTART_COUNT=restarts)
    _step(machine, "0", 3500)
    found = machine.sample(51.0, 61.0)
    assert (found["start"], found["restarts"]) == (start, int(restarts or 0))


def test_a_process_of_a_user_is_no_slurmstepd(machine: Machine) -> None:
    machine.job()
    os.chown(machine.root / "proc/50", 1000, 1000)
    machine.sampler.sample(11.0)
    assert list((machine.root / "jobs").iterdir()) == []


def test_files_that_are_broken_are_written_anew(machine: Machine) -> None:
    machine.job()
    (machine.root / "jobs/7-1.use").write_bytes(zlib.compress(b'{"number": 7, "start": []}'))
    assert machine.sample(11.0)["at"] == 11.0


def test_files_of_jobs_that_ended_long_ago_go(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MAX_FILES", 3)
    for number in range(1, 6):
        machine.job(number)
        machine.sampler.sample(10.0 * number + 1)
        os.utime(machine.root / f"jobs/{number}-1.use", (number, number))
        machine.end()
    machine.job(9)
    machine.sampler.sample(71.0)
    assert sorted(file.name for file in (machine.root / "jobs").iterdir()) == ["4-1.use", "5-1.use", "9-1.use"]


@pytest.mark.slow
def test_a_long_job_on_many_gpus_stays_small(machine: Machine) -> None:
    """Four months, and figures that do not compress. Means and peaks stay true."""
    machine.gpus = {f"GPU-{n}": (n, 0.0, 5.0) for n in range(8)}
    machine.job(SLURM_JOB_GPUS="0,1,2,3,4,5,6,7")
    for number in range(400):
        machine.process(
            51, 50, "sh", (number * 7919 % 6007 * 100 + number * 700_000, 0, 0, 0), statm=f"9 {number * 7919 % 9973} 0"
        )
        machine.gpus = {f"GPU-{n}": (n, float((number + n) * 7919 % 101), 5.0 + number * 31 % 70) for n in range(8)}
        machine.sampler.sample(11.0 + number * 26000)
    found = machine.figures()
    assert (machine.root / "jobs/7-1.use").stat().st_size < 60_000
    series = [found["cpu_series"], found["memory_series"], *(gpu["series"] for gpu in found["gpus"])]
    assert all(len(one["mean"]) <= sampler.MAX_POINTS for one in series)
    assert max(peak for peak in found["gpus"][3]["series"]["peak"] if peak is not None) == 100.0


def test_series_keep_mean_and_peak() -> None:
    series = sampler.Series(0.0, 10.0)
    for number in range(5000):
        series.add(number * 10.0 + 5, 1000.0 if number == 777 else 1.0, 10.0)
    plain = series.plain()
    assert len(plain["mean"]) <= sampler.MAX_POINTS
    assert max(plain["peak"]) == 1000.0
    whole = sum(point[0] for point in series.points) / sum(point[1] for point in series.points)
    assert whole == pytest.approx(1 + 999 / 5000)
    assert sampler.Series.read(plain).plain() == plain


SMI = """#!/bin/sh
echo "$*" >>"$0.calls"
case "$*" in
-L) echo "GPU 0: A100 (UUID: GPU-a)"; echo "  MIG 1g.10gb Device 0: (UUID: MIG-x)" ;;
*) echo "GPU-a, 0, NVIDIA A100, [N/A], 12, 81920"; echo "GPU-b, 1, NVIDIA A100, 7, 13, 81920"
   echo "GPU-c, 2, A100, 7, [GPU is lost], 81920"; echo "Unable to determine the device handle" ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def test_what_nvidia_smi_says(smi: Path) -> None:
    asked = sampler.NvidiaSmi()
    rows = asked.rows()
    assert {uuid: (row["index"], row["percent"], row["memory_used_mib"]) for uuid, row in rows.items()} == {
        "GPU-a": (0, None, 12.0), "GPU-b": (1, 7.0, 13.0),
    }  # fmt: skip
    assert [asked.parent(name) for name in ("MIG-x", "MIG-y", "MIG-y")] == ["GPU-a", "", ""]
    assert len(smi.with_suffix(".calls").read_text().splitlines()) == 3, "a device that is not known is asked for once"


def test_an_nvidia_smi_that_hangs_is_started_once(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.write_text('#!/bin/sh\necho "$$" >>"$0.calls"\nexec sleep 1000\n')
    monkeypatch.setattr(sampler, "TOOL_S", 0.2)
    # As of one that waits for a dead GPU.
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    asked = sampler.NvidiaSmi()
    assert [asked.rows() for _ in range(3)] == [{}] * 3
    (pid,) = smi.with_suffix(".calls").read_text().split()
    os.kill(int(pid), signal.SIGKILL)
    asked._running.wait()


class LocalShell:
    """Runs the scripts here, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = {"/run/burstd": str(folder), "/run/systemd/system": "/nowhere"}

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - as in Shell
        for old, new in self.changes.items():
            text = text.replace(old, new)
        done = subprocess.run(
            ["sh", "-c", text, "sh", *args], input=input, capture_output=True, timeout=timeout_s, check=False
        )
        return CompletedCommand(done.returncode, done.stdout.decode(), done.stderr.decode())

    def wait_for_sampler(self, before: int) -> int:
        """Until another than ``before`` runs."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                pid = int((self.folder / "sampler/pid").read_text())
                if pid != before and re.search(rb"sampler\.[0-9a-f]+\.py", Path(f"/proc/{pid}/cmdline").read_bytes()):
                    return pid
            time.sleep(0.01)


def wait_for_end(pid: int) -> None:
    with contextlib.suppress(OSError):
        while Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0.01)


RUN = "4000000007-1"
"""Of no job that runs on this machine, where other tests may have a Slurm."""


def test_the_sampler_is_kept_running(tmp_path: Path) -> None:
    """Started, found, started again where it was killed or is another, its files handed over and forgotten, ended."""
    shell, config = LocalShell(tmp_path), SamplerConfig(1.0, 2.0)

    def fetch(config: SamplerConfig | None = config, *forget: str) -> Any:
        return fetch_figures(shell, "cl1", config, forget=forget, now=1000.0)  # type: ignore[arg-type]

    try:
        assert fetch().state == "started"
        first = shell.wait_for_sampler(0)
        assert fetch().state == "running"
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        assert fetch().state == "started"
        second = shell.wait_for_sampler(first)
        (tmp_path / f"sampler/jobs/{RUN}.use").write_bytes(zlib.compress(b"{}"))
        found = fetch(SamplerConfig(2.0, 2.0))
        assert (found.state, found.unreadable) == ("started", (RUN,))
        third = shell.wait_for_sampler(second)
        assert fetch(SamplerConfig(2.0, 2.0), RUN, "../x", "8").unreadable == ()
        assert fetch(None).state == "ended"
        wait_for_end(third)
        assert not list((tmp_path / "sampler").glob("sampler.*"))
    finally:
        fetch(None)


def test_a_visit_ends_when_the_sampler_that_it_started_can_be_seen(tmp_path: Path) -> None:
    """As on a node where a process starts only after the visit has begun to wait. Else the next starts a second one."""
    shell, programs, waits = LocalShell(tmp_path), tmp_path / "bin", tmp_path / "waits"
    programs.mkdir()
    (programs / "sleep").write_text(f"#!/bin/sh\n: >{waits}\nexec /bin/sleep 1\n")
    (programs / "setsid").write_text(
        f'#!/bin/sh\nfor n in 1 2 3 4 5; do [ -e {waits} ] || /bin/sleep 1; done\nexec /usr/bin/setsid "$@"\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    shell.changes["PATH=/usr/sbin"] = f"PATH={programs}:/usr/sbin"
    try:
        states = [fetch_figures(shell, "cl1", SamplerConfig(1.0, 2.0), forget=(), now=1000.0).state for _ in "12"]  # type: ignore[arg-type]
    finally:
        fetch_figures(shell, "cl1", None, forget=(), now=1000.0)  # type: ignore[arg-type]
    assert states == ["started", "running"]


def _visit(shell: LocalShell, *forget: str, owed: tuple[int, ...] = (), left_out: bool = False) -> list[int]:
    """Numbers of the jobs that were sent, and are forgotten; no sampler is started."""
    names, first = ([f"{number}-5" for number in some] for some in (forget, owed))
    found = fetch_figures(shell, "cl1", None, forget=names, owed=first, now=1000.0)  # type: ignore[arg-type]
    assert found.left_out is left_out
    return [int(name.removesuffix("-5")) for name in found.unreadable]


def _write(folder: Path, number: int) -> None:
    """As the sampler does. Nothing that can be read is in it: only what is sent counts here."""
    (folder / "new").write_bytes(zlib.compress(b"{}"))
    (folder / "new").replace(folder / f"{number}-5.use")


def test_running_jobs_are_sent_though_a_node_has_many_files(tmp_path: Path) -> None:
    shell, folder = LocalShell(tmp_path), tmp_path / "sampler/jobs"
    folder.mkdir(parents=True)
    for number in (*range(1, 301), 901, 902):
        _write(folder, number)
        os.utime(folder / f"{number}-5.use", (number, number))
    assert _visit(shell) == [902, 901, *range(300, 0, -1)]
    _write(folder, 901)
    found = _visit(shell)
    assert (found[0], sorted(found[1:])) == (901, [*range(1, 301), 902]), "901 runs on"
    _write(folder, 901)
    found = _visit(shell, "902", *map(str, range(1, 250)))
    assert (found[0], sorted(found[1:])) == (901, [*range(250, 301)])
    sent = [file.name.removesuffix("-5") for file in (tmp_path / "sampler/sent").iterdir()]
    assert sorted(map(int, sent)) == [*range(250, 301), 901]


def test_each_running_job_has_its_turn_where_not_all_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three fit into an answer; one of the eight ends before the second."""
    shell, folder = LocalShell(tmp_path), tmp_path / "sampler/jobs"
    monkeypatch.setattr("burstd.node.job_use._MAX_ANSWER_BYTES", 3 * 40)
    folder.mkdir(parents=True)
    visits = []
    for visit in range(6):
        for number in range(1, 9):
            if visit == 0 or number != 4:
                _write(folder, number)
        visits.append(_visit(shell, left_out=True))
    assert [len(sent) for sent in visits] == [3] * 6
    assert sorted({number for sent in visits[:3] for number in sent}) == [*range(1, 9)]
    assert sorted({number for sent in visits[3:] for number in sent} - {4}) == [1, 2, 3, 5, 6, 7, 8]
    for number in (1, 2, 3):
        _write(folder, number)
    assert _visit(shell, owed=(4, 99), left_out=True)[0] == 4


@pytest.mark.parametrize(
    "text", ["", "hello", "uptime 1\n", "uptime nan\nsampler running\n", "uptime 1\nsampler $(id)\n"]
)
def test_a_node_that_says_something_else_has_no_figures(text: str) -> None:
    with pytest.raises(CommandFailed, match="does not send figures"):
        read_figures(text, "cl1", 0.0)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    said = subprocess.run(["shellcheck", "-s", "sh", "-"], input=SCRIPT, capture_output=True, text=True, check=False)
    assert said.stdout == ""


def test_samples_that_are_meant_to_be_far_apart_have_no_gap_between_them(machine: Machine) -> None:
    """As of a node with ten thousand processes, where the sampler rests longer."""
    machine.job()
    machine.gpus["GPU-a"] = (0, 0.0, 5.0)
    machine.sampler.interval = 40.0
    (gpu,) = machine.sample(41.0, 81.0, 121.0)["gpus"]
    assert (gpu["seen_s"], gpu["idle_now_s"]) == (120, 120)
