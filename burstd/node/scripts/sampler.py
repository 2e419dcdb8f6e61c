"""Measures what each run of a job on this node uses, and keeps it in a file of its own, for burstd to fetch.

Run as root: ``python3 -I sampler.py FOLDER EVERY_S IDLE_BELOW_PERCENT``; Python 3.9 or newer, no other library. A job
is known by its slurmstepd processes. Its CPU time, memory and I/O are those of its cgroup (v1 or v2), or, for what the
cgroup does not count, those of the processes below slurmstepd. Times are seconds since boot (CLOCK_BOOTTIME): a change
of the clock moves nothing. The sampler rests longer where a sample is dear, so that it takes 2 % of one CPU at most.
It changes nothing of a job, and a job does not notice its end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import zlib
from collections import deque
from pathlib import Path
from typing import Any

MAX_POINTS = 360
"""Of a series. When it is full each two neighbours become one."""
MAX_GPUS = 16
"""Of a job on one node."""
MAX_FILES = 256
"""Files of jobs that are kept; of those that have ended the oldest go first."""
MAX_SHARE = 0.02
"""Of one CPU, that the sampler takes."""
GAP = 3.0
"""Samples that are further apart than so many intervals have a gap between them: nothing is known of it."""
RECENT_S = 300.0
FLAT_MIB = 64.0
"""GPU memory that changes by less is flat."""
REOPEN_S = 3600.0
"""A job that was away for longer begins anew: it has been requeued."""
TOOL_S = 8.0
"""How long nvidia-smi may take."""
MIB = 1 << 20
_STEP = re.compile(rb"slurmstepd: \[(\d{1,10})\.(\w*)")
_LASTING = frozenset({b"batch", b"extern", b"interactive"})
"""Steps that begin with the run of their job on the node and end with it, unlike those of srun."""
_HERTZ = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_QUERY = "uuid,index,name,utilization.gpu,memory.used,memory.total"


class Series:
    """Means and peaks of equal lengths of time."""

    def __init__(self, start: float, every: float) -> None:
        self.start, self.every = start, every
        self.points: list[tuple[float, float, float]] = []
        """Sum of value times seconds, seconds, peak."""
        # As they are written: at each sample only the last changes.
        self._mean: list[float | None] = []
        self._peak: list[float | None] = []

    def add(self, at: float, value: float, seconds: float) -> None:
        """A value that held for so many seconds up to ``at``."""
        middle = at - min(seconds, self.every) / 2 - self.start
        while middle >= MAX_POINTS * self.every:
            self._halve()
        place = max(0, int(middle / self.every))
        while len(self.points) <= place:
            self._set(len(self.points), (0.0, 0.0, 0.0))
        total, length, peak = self.points[place]
        self._set(place, (total + value * seconds, length + seconds, max(peak, value)))

    def _set(self, place: int, point: tuple[float, float, float]) -> None:
        total, length, peak = point
        after = slice(place, place + 1)
        self.points[after] = [point]
        self._mean[after] = [round(total / length, 2) if length else None]
        self._peak[after] = [round(peak, 2) if length else None]

    def _halve(self) -> None:
        points = self.points
        self.points, self._mean, self._peak = [], [], []
        for place in range(0, len(points), 2):
            totals, lengths, peaks = zip(*points[place : place + 2])  # noqa: B905 - new in Python 3.10
            self._set(place // 2, (sum(totals), sum(lengths), max(peaks)))
        self.every *= 2

    def plain(self) -> dict[str, Any]:
        """As it is written."""
        return {"start": round(self.start, 1), "every": self.every, "mean": self._mean, "peak": self._peak}

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Series:
        """What ``plain`` has written; each point counts as whole."""
        made = cls(float(plain["start"]), float(plain["every"]))
        for mean, peak in zip(plain["mean"], plain["peak"]):  # noqa: B905 - new in Python 3.10
            point = (mean * made.every, made.every, peak) if mean is not None else (0.0, 0.0, 0.0)
            made._set(len(made.points), point)
        return made


class Counter:
    """Sums up a counter of the kernel, which begins anew where its cgroup does."""

    def __init__(self) -> None:
        self.total = 0.0
        self._last = 0.0
        self._source = ""

    def add(self, value: float, source: str) -> float:
        """The growth since the last value. ``source``: where it comes from; of another one it counts from here on."""
        if self._source and source != self._source:
            growth = 0.0
        elif value >= self._last:
            growth = value - self._last
        else:
            # The time of a process whose parent did not wait for it is lost; a cgroup that is new counts from 0.
            growth = 0.0 if source == "processes" else value
        self._last, self._source = value, source
        self.total += growth
        return growth

    def plain(self) -> list[Any]:
        """As it is written."""
        return [round(self.total, 3), round(self._last, 3), self._source]

    @classmethod
    def read(cls, plain: list[Any]) -> Counter:
        """What ``plain`` has written."""
        made = cls()
        made.total, made._last, made._source = float(plain[0]), float(plain[1]), str(plain[2])
        return made


class Gpu:
    """What one job used of one GPU."""

    def __init__(self, uuid: str, at: float, every: float) -> None:
        self.uuid = uuid
        self.fields: dict[str, Any] = {"index": 0, "model": "", "memory_mib": 0}
        self.seen_s = self.idle_s = self.idle_now_s = self.busy = self.known_s = 0.0
        self.peak: float | None = None
        self.memory_peak = 0.0
        self.memory = -1.0
        self.at = at
        self.series = Series(at, every)

    def pass_over(self, at: float) -> None:
        """Its job is suspended: nothing is known of the GPU's time up to here."""
        self.at, self.idle_now_s = at, 0.0

    def add(self, at: float, row: dict[str, Any], every: float, idle_below: float) -> None:
        """One sample, which holds since the one before."""
        seconds = at - self.at
        self.fields = {"index": row["index"], "model": row["model"], "memory_mib": row["memory_mib"]}
        percent, memory = row["percent"], row["memory_used_mib"]
        flat = self.memory < 0 or abs(memory - self.memory) < FLAT_MIB
        gap = seconds > GAP * every
        seconds = every if gap else seconds
        self.at, self.memory = at, memory
        self.memory_peak = max(self.memory_peak, memory)
        self.seen_s += seconds
        if percent is None or percent >= idle_below or not flat:
            self.idle_now_s = 0.0
        else:
            self.idle_s += seconds
            self.idle_now_s = seconds if gap else self.idle_now_s + seconds
        if percent is not None:
            self.busy += percent * seconds
            self.known_s += seconds
            self.peak = percent if self.peak is None else max(self.peak, percent)
            self.series.add(at, percent, seconds)

    def plain(self) -> dict[str, Any]:
        """As it is written."""
        return {
            "uuid": self.uuid, **self.fields, "mean": round(self.busy / self.known_s, 2) if self.known_s else None,
            "peak": self.peak, "memory_peak_mib": round(self.memory_peak), "seen_s": round(self.seen_s, 1),
            "known_s": round(self.known_s, 1), "idle_s": round(self.idle_s, 1), "idle_now_s": round(self.idle_now_s, 1),
            "at": round(self.at, 1), "memory_now": round(self.memory, 1), "series": self.series.plain(),
        }  # fmt: skip

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Gpu:
        """What ``plain`` has written."""
        made = cls(str(plain["uuid"]), float(plain["at"]), 1.0)
        made.fields = {name: plain[name] for name in made.fields}
        made.seen_s, made.idle_s, made.idle_now_s = plain["seen_s"], plain["idle_s"], plain["idle_now_s"]
        made.known_s, made.peak, made.memory_peak = plain["known_s"], plain["peak"], plain["memory_peak_mib"]
        made.busy = (plain["mean"] or 0.0) * made.known_s
        made.memory, made.series = plain["memory_now"], Series.read(plain["series"])
        return made


class Job:
    """What one job used of this node."""

    def __init__(self, number: int, start: float, every: float) -> None:
        self.number, self.start, self.at = number, start, start
        self.cpus = self.memory_mib = 0
        self.restarts: int | None = None
        self.run_start = 0
        """When Slurm began the run, by its own clock; 0: this Slurm does not say."""
        self.devices: list[str] = []
        """Of GPUs: minor numbers of /dev/nvidia*, or UUIDs."""
        self.shared = False
        self.cpu, self.read, self.written = Counter(), Counter(), Counter()
        self.counts_io = False
        self.cpus_peak = self.memory_peak = self.memory_sum = self.memory_s = 0.0
        self.gpus: dict[str, Gpu] = {}
        self.cpu_series, self.memory_series = Series(start, every), Series(start, every)
        self.recent: deque[tuple[float, float, float]] = deque(maxlen=64)
        self.suspended_s = 0.0
        self.ended = False
        self.run_known = True
        """False: it was read from its file, and may be of a run before."""

    def add(self, at: float, used: dict[str, Any], every: float) -> None:
        """One sample of CPU time, memory and I/O."""
        seconds = max(at - self.at, 0.001)
        cpus = self.cpu.add(used["cpu_s"], used["cpu_from"]) / seconds
        self.cpus_peak = max(self.cpus_peak, cpus)
        self.cpu_series.add(at, cpus, seconds)
        memory = used["memory_mib"]
        self.memory_peak = max(self.memory_peak, memory)
        held = seconds if seconds <= GAP * every else every
        self.memory_sum += memory * held
        self.memory_s += held
        self.memory_series.add(at, memory, held)
        if used["read"] is not None:
            self.counts_io = True
            self.read.add(used["read"], used["io_from"])
            self.written.add(used["written"], used["io_from"])
        self.at = at
        self.recent.append((at, self.cpu.total, self.read.total))
        while at - self.recent[0][0] > RECENT_S:
            self.recent.popleft()

    def pass_over(self, at: float, used: dict[str, Any]) -> None:
        """It is suspended: the time up to here counts as neither used nor idle."""
        self.cpu.add(used["cpu_s"], used["cpu_from"])
        self.suspended_s += at - self.at
        self.at = at
        self.recent.clear()
        for gpu in self.gpus.values():
            gpu.pass_over(at)

    def plain(self) -> dict[str, Any]:
        """As it is written."""
        cpus_now = read_now = 0.0
        if len(self.recent) > 1:
            (since, cpu_s, read), span = self.recent[0], self.recent[-1][0] - self.recent[0][0]
            if span > 0:
                cpus_now, read_now = (self.cpu.total - cpu_s) / span, (self.read.total - read) / span / MIB
            del since
        elif self.recent and self.at > self.start + self.suspended_s:
            span = self.at - self.start - self.suspended_s
            cpus_now, read_now = self.cpu.total / span, self.read.total / span / MIB
        return {
            "number": self.number, "start": round(self.start, 1), "at": round(self.at, 1), "ended": self.ended,
            "suspended_s": round(self.suspended_s, 1), "cpus": self.cpus, "memory_mib": self.memory_mib,
            "restarts": self.restarts, "run_start": self.run_start, "devices": self.devices, "shared": self.shared,
            "cpu": self.cpu.plain(), "cpus_peak": round(self.cpus_peak, 2),
            "cpus_now": round(cpus_now, 2), "read_now_mib_s": round(read_now, 2),
            "memory_mean_mib": round(self.memory_sum / self.memory_s, 1) if self.memory_s else 0.0,
            "memory_s": round(self.memory_s, 1), "memory_peak_mib": round(self.memory_peak, 1),
            "read": self.read.plain() if self.counts_io else None,
            "written": self.written.plain() if self.counts_io else None,
            "gpus": [gpu.plain() for gpu in self.gpus.values()],
            "cpu_series": self.cpu_series.plain(), "memory_series": self.memory_series.plain(),
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Job:
        """What ``plain`` has written."""
        made = cls(int(plain["number"]), float(plain["start"]), 1.0)
        made.run_known = False
        made.at, made.cpus, made.memory_mib = float(plain["at"]), plain["cpus"], plain["memory_mib"]
        made.restarts, made.run_start, made.suspended_s = plain["restarts"], plain["run_start"], plain["suspended_s"]
        made.devices, made.shared = list(plain["devices"]), bool(plain["shared"])
        made.cpu, made.cpus_peak, made.memory_s = Counter.read(plain["cpu"]), plain["cpus_peak"], plain["memory_s"]
        made.memory_sum, made.memory_peak = plain["memory_mean_mib"] * made.memory_s, plain["memory_peak_mib"]
        made.counts_io = plain["read"] is not None
        if made.counts_io:
            made.read, made.written = Counter.read(plain["read"]), Counter.read(plain["written"])
        made.gpus = {gpu["uuid"]: Gpu.read(gpu) for gpu in plain["gpus"]}
        made.cpu_series, made.memory_series = Series.read(plain["cpu_series"]), Series.read(plain["memory_series"])
        return made


class Process:
    """A line of /proc/PID/stat."""

    __slots__ = ("children_s", "lasts", "name", "own_s", "parent", "pid", "start", "step", "stopped")

    def __init__(self, pid: int, stat: bytes) -> None:
        begin, end = stat.index(b"("), stat.rindex(b")")
        fields = stat[end + 2 :].split()
        self.pid, self.name, self.parent = pid, stat[begin + 1 : end], int(fields[1])
        self.own_s = (int(fields[11]) + int(fields[12])) / _HERTZ
        self.children_s = (int(fields[13]) + int(fields[14])) / _HERTZ
        self.start = int(fields[19]) / _HERTZ
        self.stopped = fields[0] == b"T"
        self.step = b""
        """Of a slurmstepd."""
        self.lasts = False
        """It is the slurmstepd of a step that is there as long as its job."""


class Node:
    """What the kernel says of the jobs here. ``root``: of its file systems, for tests."""

    def __init__(self, root: str = "/") -> None:
        self.proc, self.cgroup = Path(root, "proc"), Path(root, "sys/fs/cgroup")

    def jobs(self) -> dict[int, tuple[list[Process], list[Process]]]:
        """By number, the slurmstepd processes of each job and all that are below them."""
        every: dict[int, Process] = {}
        children: dict[int, list[Process]] = {}
        for entry in os.scandir(self.proc):
            if not entry.name.isdigit():
                continue
            try:
                process = Process(int(entry.name), self._bytes(entry.name, "stat"))
            except (OSError, ValueError, IndexError):
                continue
            every[process.pid] = process
            children.setdefault(process.parent, []).append(process)
        found: dict[int, tuple[list[Process], list[Process]]] = {}
        for process in every.values():
            number = self._job_of_step(process) if process.name == b"slurmstepd" else None
            if number is None:
                continue
            steps, below = found.setdefault(number, ([], []))
            steps.append(process)
            left = list(children.get(process.pid, ()))
            while left:
                one = left.pop()
                below.append(one)
                left += children.get(one.pid, ())
        return found

    def _job_of_step(self, process: Process) -> int | None:
        """Users may call their processes what they like: slurmstepd itself is root's, or in a pod without root ours."""
        try:
            if Path(self.proc, str(process.pid)).stat().st_uid not in (0, os.geteuid()):
                return None
            match = _STEP.match(self._bytes(str(process.pid), "cmdline"))
        except OSError:
            return None
        if match is None:
            return None
        process.step, process.lasts = match[2], match[2] in _LASTING
        return int(match[1])

    def use(self, steps: list[Process], below: list[Process]) -> dict[str, Any]:
        """CPU seconds, memory, bytes read and written of one job so far."""
        groups = self._groups(steps[0])
        used: dict[str, Any] = {"cpu_from": "cgroup", "io_from": "cgroup"}
        used["cpu_s"] = self._cpu(groups)
        if used["cpu_s"] is None:
            used["cpu_from"] = "processes"
            used["cpu_s"] = sum(p.own_s + p.children_s for p in below) + sum(p.children_s for p in steps)
        memory = self._memory(groups)
        used["memory_mib"] = (sum(self._resident(p.pid) for p in below) if memory is None else memory) / MIB
        moved = self._moved(groups)
        if moved is None:
            used["io_from"] = "processes"
            moved = self._moved_by(below)
        used["read"], used["written"] = moved if moved is not None else (None, None)
        return used

    def _groups(self, step: Process) -> dict[str, Path]:
        """The folders of the job's cgroup, by controller; of v2 under the empty name."""
        found: dict[str, Path] = {}
        try:
            lines = self._bytes(str(step.pid), "cgroup").decode("utf-8", "replace").splitlines()
        except OSError:
            return {}
        for line in lines:
            names, _, path = line.partition(":")[2].partition(":")
            parts = path.split("/")
            place = next((n for n, part in enumerate(parts) if part.startswith("job_")), None)
            if place is None:
                continue
            for name in names.split(","):
                folder = Path(self.cgroup, name, *parts[1 : place + 1])
                if folder.is_dir():
                    found[name] = folder
        return found

    def _cpu(self, groups: dict[str, Path]) -> float | None:
        if "" in groups:
            usage = _fields(_text(groups[""], "cpu.stat")).get("usage_usec")
            return usage / 1e6 if usage is not None else None
        nanoseconds = _number(_text(groups.get("cpuacct"), "cpuacct.usage"))
        return nanoseconds / 1e9 if nanoseconds is not None else None

    def _memory(self, groups: dict[str, Path]) -> float | None:
        """Without the page cache; of shared memory all. memory.peak and its like count the cache too."""
        if "" in groups:
            stat, names = _fields(_text(groups[""], "memory.stat")), ("anon", "shmem")
        else:
            stat, names = _fields(_text(groups.get("memory"), "memory.stat")), ("total_rss", "total_shmem")
        return sum(stat.get(name, 0.0) for name in names) if names[0] in stat else None

    def _moved(self, groups: dict[str, Path]) -> tuple[float, float] | None:
        if "" in groups:
            text = _text(groups[""], "io.stat")
            if text is None:
                return None
            words = [word.partition("=") for word in text.split()]
            return tuple(float(sum(int(v) for k, _, v in words if k == name)) for name in ("rbytes", "wbytes"))  # type: ignore[return-value]
        text = _text(groups.get("blkio"), "blkio.throttle.io_service_bytes_recursive")
        if not text:
            return None
        lines = [line.split() for line in text.splitlines()]
        return tuple(float(sum(int(w[2]) for w in lines if len(w) == 3 and w[1] == n)) for n in ("Read", "Write"))  # type: ignore[return-value]

    def _moved_by(self, below: list[Process]) -> tuple[float, float] | None:
        read = written = 0.0
        for process in below:
            try:
                fields = _fields(self._bytes(str(process.pid), "io").decode("ascii", "replace").replace(":", ""))
            except OSError:
                continue
            read += fields.get("read_bytes", 0.0)
            written += fields.get("write_bytes", 0.0)
        return (read, written) if below else None

    def _resident(self, pid: int) -> float:
        """Without files and shared memory, which several processes have together."""
        try:
            words = self._bytes(str(pid), "statm").split()
            return max(0, int(words[1]) - int(words[2])) * _PAGE
        except (OSError, ValueError, IndexError):
            return 0.0

    def environment(self, pid: int) -> dict[str, str]:
        """Of a process when it began; empty where it is gone."""
        try:
            raw = self._bytes(str(pid), "environ")
        except OSError:
            return {}
        words = [word.partition("=") for word in raw[: 1 << 20].decode("utf-8", "replace").split("\0")]
        return {name: value for name, _, value in words if name.startswith(("SLURM_", "CUDA_"))}

    def gpu_minors(self) -> dict[str, str]:
        """By the number in /dev/nvidiaN the UUIDs of GPUs, as the driver has them."""
        found = {}
        for file in Path(self.proc, "driver/nvidia/gpus").glob("*/information"):
            lines = [line.partition(":") for line in (_text(file.parent, file.name) or "").splitlines()]
            values = {name.strip(): value.strip() for name, _, value in lines}
            found[values.get("Device Minor", "")] = values.get("GPU UUID", "")
        return found

    def _bytes(self, process: str, name: str) -> bytes:
        # As short as can be: it runs for each process.
        file = os.open(f"{self.proc}/{process}/{name}", os.O_RDONLY)
        try:
            return os.read(file, 1 << 20)
        finally:
            os.close(file)


def _text(folder: Path | None, name: str) -> str | None:
    if folder is None:
        return None
    try:
        with (folder / name).open(encoding="ascii", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and text.strip().isdigit() else None


def _fields(text: str | None) -> dict[str, float]:
    lines = [line.split() for line in (text or "").splitlines()]
    return {words[0]: float(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def is_suspended(steps: list[Process], below: list[Process]) -> bool:
    """Whether Slurm, or whoever it is, has stopped all processes of a job. Those of the extern step may run on."""
    extern = {step.pid for step in steps if step.step == b"extern"}
    stopped = [process.stopped for process in below if process.parent not in extern]
    return bool(stopped) and all(stopped)


class NvidiaSmi:
    """Asks nvidia-smi, which may hang for good on a dead GPU: nobody waits for it then, and it is not started again."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self._parents: dict[str, str] = {}
        """By MIG device its GPU."""

    def rows(self) -> dict[str, dict[str, Any]]:
        """By UUID, what each GPU does now; nothing where it does not answer."""
        found = {}
        for line in self._lines(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"):
            words = [word.strip() for word in line.split(",")]
            if len(words) != 6 or not words[0].startswith("GPU-") or not words[1].isdigit():
                continue
            percent, used, total = (_figure(word) for word in words[3:])
            if used is None:
                continue
            found[words[0]] = {
                "index": int(words[1]), "model": words[2][:100], "percent": percent, "memory_used_mib": used,
                "memory_mib": round(total or 0.0),
            }  # fmt: skip
        return found

    def parent(self, device: str) -> str:
        """The GPU of a MIG device; empty: it is not known."""
        if device not in self._parents:
            gpu = self._parents[device] = ""
            for line in self._lines("-L"):
                match = re.search(r"UUID: ((?:GPU|MIG)-[0-9A-Za-z/-]+)", line)
                if match and match[1].startswith("GPU-"):
                    gpu = match[1]
                elif match:
                    self._parents[match[1]] = gpu
        return self._parents[device]

    def _lines(self, *words: str) -> list[str]:
        if self._running is not None and self._running.poll() is None:
            return []
        try:
            self._running = subprocess.Popen(
                ["nvidia-smi", *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError:
            return []
        try:
            out, _ = self._running.communicate(timeout=TOOL_S)
        except subprocess.TimeoutExpired:
            self._running.kill()
            return []
        return out[: 1 << 16].decode("utf-8", "replace").splitlines()


def _figure(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


class Sampler:
    """Keeps the figures of the jobs here in ``folder``."""

    def __init__(self, folder: Path, every: float, idle_below: float, node: Node, smi: NvidiaSmi) -> None:
        self.folder, self.every, self.idle_below = folder, every, idle_below
        self.interval = every
        """From the sample before to this one, as was meant."""
        self._node, self._smi = node, smi
        self._jobs: dict[int, Job] = {}

    def sample(self, now: float) -> None:
        """One sample of all jobs. ``now``: seconds since boot."""
        found, at_work = self._node.jobs(), []
        for number, (steps, below) in found.items():
            job = self._job(number, steps, below, now)
            self._learn(job, steps, below)
            used = self._node.use(steps, below)
            if is_suspended(steps, below):
                job.pass_over(now, used)
            else:
                job.add(now, used, self.interval)
                at_work.append(job)
        if any(job.devices for job in at_work):
            self._sample_gpus(now, at_work)
        for number in self._jobs.keys() - found.keys():
            self._jobs[number].ended = True
        for job in self._jobs.values():
            self._save(job)
        self._jobs = {number: job for number, job in self._jobs.items() if not job.ended}
        self._tidy()

    def _job(self, number: int, steps: list[Process], below: list[Process], now: float) -> Job:
        job = self._jobs.get(number) or self._load(number, now)
        if job is not None and self._is_of_before(job, steps, below):
            job.ended = True
            self._save(job)
            job = None
        if job is None:
            job = Job(number, round(min(now, *(step.start for step in steps)), 1), self.every)
        job.ended = False
        self._jobs[number] = job
        return job

    def _is_of_before(self, job: Job, steps: list[Process], below: list[Process]) -> bool:
        """True where the job was requeued since, or another has its number: Slurm counts from 1 again at some time."""
        # Times in files are rounded.
        if any(step.lasts and step.start > job.at + 0.1 for step in steps):
            return True
        run = None if job.run_known else self._run(steps, below)
        if run is None:
            # Not known before a step has processes of the user's.
            return False
        job.run_known = True
        restarts, start = run
        is_other = start and job.run_start and start != job.run_start
        return job.restarts is not None and bool(restarts != job.restarts or is_other)

    def _run(self, steps: list[Process], below: list[Process]) -> tuple[int, int] | None:
        """How often the job had been requeued before, and when Slurm began it; None: no process shows it."""
        for values in self._environments(steps, below):
            if "SLURM_JOB_ID" in values:
                return _whole(values.get("SLURM_RESTART_COUNT")), _whole(values.get("SLURM_JOB_START_TIME"))
        return None

    def _environments(self, steps: list[Process], below: list[Process]) -> list[dict[str, str]]:
        """Of the first processes of each step."""
        parents = {step.pid for step in steps}
        first = [p.pid for p in below if p.parent in parents][:64]
        return [self._node.environment(pid) for pid in first]

    def _learn(self, job: Job, steps: list[Process], below: list[Process]) -> None:
        """What the job was given, as the environment of its steps has it. A step has GPUs of its job."""
        if job.devices and job.cpus:
            return
        devices: dict[str, None] = dict.fromkeys(job.devices)
        for values in self._environments(steps, below):
            job.cpus = job.cpus or _whole(values.get("SLURM_CPUS_ON_NODE"))
            job.memory_mib = (
                job.memory_mib
                or _whole(values.get("SLURM_MEM_PER_NODE"))
                or (_whole(values.get("SLURM_MEM_PER_CPU")) * job.cpus)
            )
            if job.restarts is None and "SLURM_JOB_ID" in values:
                job.restarts = _whole(values.get("SLURM_RESTART_COUNT"))
                job.run_start = _whole(values.get("SLURM_JOB_START_TIME"))
            job.shared = job.shared or "SLURM_SHARDS_ON_NODE" in values or "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in values
            visible = values.get("CUDA_VISIBLE_DEVICES", "")
            given = (
                visible if "-" in visible else values.get("SLURM_JOB_GPUS") or values.get("SLURM_STEP_GPUS") or visible
            )
            devices.update(
                dict.fromkeys(d for d in given.split(",") if re.fullmatch(r"[0-9]{1,4}|(GPU|MIG)-[\w/-]{1,80}", d))
            )
        job.devices = list(devices)[:MAX_GPUS]

    def _sample_gpus(self, now: float, jobs: list[Job]) -> None:
        rows = self._smi.rows()
        if not rows:
            return
        by_index = {str(row["index"]): uuid for uuid, row in rows.items()}
        minors = {**by_index, **self._node.gpu_minors()}
        for job in jobs:
            for device in job.devices:
                gpu = self._smi.parent(device) if device.startswith("MIG-") else minors.get(device, device)
                if gpu not in rows:
                    continue
                uuid = device if device.startswith("MIG-") else gpu
                if uuid not in job.gpus:
                    job.gpus[uuid] = Gpu(uuid, max(job.start, now - self.interval), self.every)
                job.gpus[uuid].add(now, rows[gpu], self.interval, self.idle_below)

    def _file(self, job: Job) -> Path:
        return self.folder / f"{job.number}-{int(job.start)}.use"

    def _save(self, job: Job) -> None:
        """A node whose /run is full keeps what it has in memory, and what was written last."""
        file = self._file(job)
        unfinished = file.with_suffix(".new")
        try:
            unfinished.write_bytes(zlib.compress(json.dumps(job.plain(), separators=(",", ":")).encode("ascii"), 1))
            unfinished.replace(file)
        except OSError as error:
            sys.stderr.write(f"the figures of job {job.number} cannot be written: {error}\n")

    def _load(self, number: int, now: float) -> Job | None:
        """What was kept of the last run of this number."""
        try:
            file = max(self.folder.glob(f"{number}-*.use"), key=lambda file: int(file.stem.partition("-")[2]))
            job = Job.from_plain(json.loads(zlib.decompress(file.read_bytes())))
        except (OSError, ValueError, KeyError, TypeError, IndexError, zlib.error):
            return None
        return job if 0 <= now - job.at <= REOPEN_S else None

    def _tidy(self) -> None:
        files = sorted(self.folder.glob("*.use"), key=_age)
        running = {self._file(job) for job in self._jobs.values()}
        for file in [file for file in files if file not in running][: max(0, len(files) - MAX_FILES)]:
            file.unlink(missing_ok=True)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,10}", text) else 0


def _age(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def main() -> None:
    """Samples until it is ended."""
    folder, every = Path(sys.argv[1]), float(sys.argv[2])
    os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True)
    sampler = Sampler(folder, every, float(sys.argv[3]), Node(), NvidiaSmi())
    while True:
        began, spent = time.monotonic(), time.process_time()
        sampler.sample(time.clock_gettime(time.CLOCK_BOOTTIME))
        sampler.interval = max(every, (time.process_time() - spent) / MAX_SHARE)
        time.sleep(max(0.0, began + sampler.interval - time.monotonic()))


if __name__ == "__main__":
    main()
