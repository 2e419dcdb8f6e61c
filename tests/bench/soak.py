"""Whether burstd stays as it is under faults: ``python -m tests.bench.soak FOLDER [--minutes 120]`` (root).

A real Slurm, the sandbox cloud and the real burstd in boxes; jobs come all the time, and faults at random. burstd is
killed in the first quarter only, so that the rest is one process. Each minute is a line of FOLDER/soak.csv. In the end
every machine must have had its claim, and no figure may have grown: the slope (Theil and Sen) over that process's time.
``--read`` judges and draws what FOLDER holds already. Ends with 1 and words where something is not as it should be.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path

import httpx

from burstd.plots.files import write_svg
from burstd.plots.line_chart import Line, LineChart, line_chart_svg
from providers.sandbox.boxes.box import find_boxes
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e.sites import QUICK, queue, record, site_up, wait_all_gone
from tests.lab import programs
from tests.lab.prometheus import METRICS, SETTINGS
from tests.lab.site import Site
from tests.lab.slurm_files import VERSIONS

WORK = (
    "-p burst -c2 --mem=200 -t5",
    "-p burst --gres=gpu:v100:2 --mem=100 --array=1-2 -t5",
    "-p burst -N2 --exclusive --gres=gpu:4 -t5",
    "-p burst --gres=gpu:v100:3 --mem=100 -t5",
)
RUN_S = (1, 5, 20, 60)
JOB_EVERY_S, FAULT_EVERY_S, KILL_EVERY_S = 15.0, 45.0, 180.0
"""On average."""
MOST_WAITING = 30
KILLS_UNTIL = 0.25
"""Of the whole time."""
WARM_UP_MIN = 10.0
"""burstd's first minutes: caches fill."""
UNOWNED_MIN = 3
"""So many minutes in a row may the cloud show a machine that no live claim has: a claim that is gone is seen first."""
REFUSED = (FaultKind.CAPACITY, FaultKind.QUOTA, FaultKind.RATE_LIMIT, FaultKind.ERROR, FaultKind.UNAVAILABLE)
READ = f"""
import json, os, urllib.request
pid = open("/run/burstd.pid").read().strip()
status = dict(line.split(":", 1) for line in open(f"/proc/{{pid}}/status"))
ticks = sum(map(int, open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[11:13]))
files = [e.stat().st_size for e in os.scandir("/var/lib/burstd") if e.name == "burstd.db"]
metrics = urllib.request.urlopen("http://{METRICS}/metrics", timeout=30).read().decode()
loops = {{
    line.split('"')[1]: float(line.split()[-1]) for line in metrics.splitlines()
    if line.startswith("burstd_loop_seconds_bucket")
}}
print(json.dumps([pid, int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{{pid}}/fd")),
                  int(status["Threads"]), sum(files), ticks / os.sysconf("SC_CLK_TCK"), loops]))
"""
"""What is read in the head's box."""


@dataclass(frozen=True, slots=True)
class Minute:
    """A line of the file."""

    minute: float
    life: int
    """How many times burstd has been started before."""
    rss_mib: float
    descriptors: int
    threads: int
    database_kib: float
    loops: int
    """Since the line before, in this life."""
    cpu_ms: float
    """burstd's own processor time for each of them, all threads together."""
    loop_p50_ms: float
    loop_p99_ms: float
    jobs_submitted: int
    jobs_ended: int
    jobs_waiting: int
    machines_made: int
    machines_up: int
    machines_unowned: int
    """In the cloud, and of no live claim."""
    faults: int
    """So far, kills included."""
    load: float


@dataclass(frozen=True, slots=True)
class FlatFigure:
    """What may not grow: ``value`` of a line; by ``part`` of its median, or ``least`` of its unit, in the time seen."""

    name: str
    unit: str
    value: Callable[[Minute], float]
    part: float
    least: float


FLAT = (
    FlatFigure("memory", "MiB", lambda m: m.rss_mib, 0.05, 5.0),
    FlatFigure("descriptors", "", lambda m: m.descriptors, 0.1, 5.0),
    FlatFigure("threads", "", lambda m: m.threads, 0.1, 3.0),
    FlatFigure("database a machine", "KiB", lambda m: m.database_kib / max(1, m.machines_made), 0.1, 1.0),
    FlatFigure("processor time a loop", "ms", lambda m: m.cpu_ms, 0.25, 5.0),
    FlatFigure("loop, median", "ms", lambda m: m.loop_p50_ms, 0.25, 10.0),
    FlatFigure("loop, p99", "ms", lambda m: m.loop_p99_ms, 0.5, 100.0),
)


@dataclass(frozen=True, slots=True)
class DaemonUse:
    """What burstd holds, and what it did since the last look, or since its start where that was later."""

    rss_mib: float
    descriptors: int
    threads: int
    database_kib: float
    cpu_s: float
    histogram: Mapping[float, float]
    """Of its loops: by upper edge in seconds, how many took no longer."""

    @property
    def loops(self) -> int:
        """How many."""
        return int(max(self.histogram.values()))


class DaemonMeter:
    """Looks at the burstd of a site, whose settings have the metrics' socket."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pid, self._cpu_s = "", 0.0
        self._loops: Mapping[str, float] = {}

    def read(self) -> DaemonUse:
        """Since the last call."""
        said = self._site.cluster.head.run([f"{programs.PREFIX}/bin/python", "-c", READ], timeout=120).stdout
        pid, rss, descriptors, threads, database, cpu_s, loops = json.loads(said)
        before, cpu_before_s = (self._loops, self._cpu_s) if pid == self._pid else ({}, 0.0)
        self._pid, self._loops, self._cpu_s = pid, loops, cpu_s
        histogram = {float(edge): count - before.get(edge, 0.0) for edge, count in loops.items()}
        return DaemonUse(rss / 1024, descriptors, threads, database / 1024, cpu_s - cpu_before_s, histogram)


class Soak:
    """One site, its jobs and its faults."""

    def __init__(self, site: Site, minutes: float, chance: random.Random) -> None:
        self._site, self._chance = site, chance
        self._begun = time.monotonic()
        self._length_s = 60 * minutes
        self._jobs: set[str] = set()
        self._ended: set[str] = set()
        self._life = self._faults = 0
        self._meter = DaemonMeter(site)
        self._unowned: dict[str, int] = {}
        self.stop = threading.Event()
        self.unowned: set[str] = set()
        """Machines that no live claim had for too long."""

    def run(self, took: Callable[[Minute], None]) -> None:
        """Until the time is over, or ``stop`` is set."""
        turns = [
            (JOB_EVERY_S, self._submit, 1.0), (FAULT_EVERY_S, self._fault, 1.0), (KILL_EVERY_S, self._kill, KILLS_UNTIL)
        ]  # fmt: skip
        due = [self._chance.expovariate(1 / every) for every, _, _ in turns]
        minute = 60.0
        while (now := time.monotonic() - self._begun) < self._length_s:
            for number, (every, act, until) in enumerate(turns):
                if now >= due[number] and now < until * self._length_s:
                    act()
                    due[number] = now + self._chance.expovariate(1 / every)
            if now >= minute:
                minute += 60.0
                try:
                    took(self._minute())
                except (subprocess.SubprocessError, httpx.TransportError) as error:
                    _say(f"no figures of this minute: {error}")
            if self.stop.wait(max(0.05, min([minute, *due]) - (time.monotonic() - self._begun))):
                return

    def finish(self) -> Sequence[str]:
        """Heals all, and lets everything end; returns what is wrong."""
        self._site.cloud.cancel_fault()
        self._site.wait(self._site.api_answers, 30, "burstd answers")
        self._site.cluster.sh("scancel -u ada", timeout_s=120)
        account = wait_all_gone(self._site, 300)
        kept = record(self._site)
        wrong = [f"machine {one} had no live claim for {UNOWNED_MIN} minutes" for one in sorted(self.unowned)]
        wrong += [
            f"machines of claim {one}, which burstd does not know" for one in set(account.by_claim) - {*kept.claims}
        ]
        wrong += [f"claim {c.id} is {c.state.value}" for c in kept.claims.values() if c.state.value != "gone"]
        return wrong

    def _submit(self) -> None:
        if len(self._jobs - self._ended) > MOST_WAITING:
            return
        words, script = self._chance.choice(WORK), f"sleep {self._chance.choice(RUN_S)}"
        try:
            self._jobs.add(self._site.submit(words, script))
        except (RuntimeError, subprocess.SubprocessError) as error:
            _say(f"sbatch: {error}")  # slurmctld may be away

    def _kill(self) -> None:
        self._site.kill_burstd("KILL")
        self._site.spawn_burstd()
        self._life += 1
        self._count("kill -9")

    def _fault(self) -> None:
        kinds = [self._refuse, self._spoil_boot, self._lose_answer, self._restart_slurmctld, self._end_machine]
        self._chance.choice(kinds)()

    def _refuse(self) -> None:
        kind = self._chance.choice(REFUSED)
        calls = ("launch",) if kind in REFUSED[:2] else ("*",)
        self._order(SandboxFault(kind, calls, count=self._chance.randrange(1, 20), seconds=2.0))

    def _spoil_boot(self) -> None:
        kind = self._chance.choice((FaultKind.BOOT_FAIL, FaultKind.BOOT_HANG, FaultKind.BOOT_SLOW, FaultKind.LIE))
        self._order(SandboxFault(kind, count=1, seconds=5.0))

    def _lose_answer(self) -> None:
        kind = self._chance.choice((FaultKind.LOSE_ANSWER, FaultKind.DELAY))
        self._order(SandboxFault(kind, ("launch", "terminate", "list"), count=2, seconds=0.5))

    def _order(self, fault: SandboxFault) -> None:
        try:
            self._site.cloud.inject_fault(fault)
        except httpx.TransportError as error:
            self._count(f"the cloud took no order of a fault: {error}")
        else:
            self._count(f"{fault.kind} {' '.join(fault.calls)}")

    def _restart_slurmctld(self) -> None:
        self._site.cluster.restart_slurmctld()
        self._count("slurmctld is restarted")

    def _end_machine(self) -> None:
        up = self._machines()
        boxes = [b for b in find_boxes(self._site.cluster.lab.boxes_directory) if b.name in up]
        if boxes and (process := self._chance.choice(boxes).process) is not None:
            process.kill()
            self._count("a machine ends")

    def _machines(self) -> set[str]:
        """Those that the cloud has; by its bill, which no fault reaches."""
        return {row.instance for row in self._site.cloud.bill().rows if row.ended is None}

    def _count(self, what: str) -> None:
        self._faults += 1
        _say(what)

    def _minute(self) -> Minute:
        site, now = self._site, (time.monotonic() - self._begun) / 60
        site.wait(lambda: site.api_answers() and site.has_looked(), 60, "burstd has looked")
        use = self._meter.read()
        rows = {job.split("_")[0]: state for job, state, _ in queue(site) if state not in ("PENDING", "RUNNING")}
        left = {job.split("_")[0] for job, state, _ in queue(site) if state in ("PENDING", "RUNNING", "COMPLETING")}
        self._ended |= {job for job in self._jobs if job not in left and (job in rows or job in self._ended)}
        up = self._machines()
        owned = {node["instance"] for node in site.api("/v1/nodes")["nodes"]}
        self._unowned = {one: self._unowned.get(one, 0) + 1 for one in up - owned}
        self.unowned |= {one for one, times in self._unowned.items() if times >= UNOWNED_MIN}
        load = float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0])
        return Minute(
            round(now, 2), self._life, use.rss_mib, use.descriptors, use.threads, use.database_kib, use.loops,
            1000 * use.cpu_s / max(1, use.loops), 1000 * quantile(use.histogram, 0.5),
            1000 * quantile(use.histogram, 0.99), len(self._jobs), len(self._ended), len(self._jobs - self._ended),
            len(site.cloud.bill().rows), len(up), len(self._unowned), self._faults, load,
        )  # fmt: skip


def quantile(counts: Mapping[float, float], part: float) -> float:
    """Of a histogram: by upper edge, how many are not above it. As Prometheus has it, with a line in each bucket."""
    wanted = part * max(counts.values())
    low = below = 0.0
    for edge, count in sorted(counts.items()):
        if count >= wanted and count > below:
            return low if edge == float("inf") else low + (edge - low) * (wanted - below) / (count - below)
        low, below = edge, count
    return low


def grown(minutes: Sequence[Minute], figure: FlatFigure) -> float:
    """By how much it has grown from the first to the last, by the median of the slopes of all pairs."""
    pairs = combinations([(m.minute, figure.value(m)) for m in minutes], 2)
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x2 > x1]
    return statistics.median(slopes) * (minutes[-1].minute - minutes[0].minute)


def last_life(minutes: Sequence[Minute]) -> list[Minute]:
    """Of the last process, warmed up."""
    mine = [m for m in minutes if m.life == minutes[-1].life]
    return [m for m in mine if m.minute >= mine[0].minute + WARM_UP_MIN]


def judge(minutes: Sequence[Minute]) -> Sequence[str]:
    """Prints a line for each figure; returns what has grown, in words."""
    seen, wrong = last_life(minutes), []
    if len(seen) < UNOWNED_MIN:
        return [f"{len(seen)} minutes of one process are too few to say anything"]
    for figure in FLAT:
        middle, more = statistics.median(map(figure.value, seen)), grown(seen, figure)
        bar = max(figure.part * middle, figure.least)
        line = f"{figure.name}: {middle:.1f} {figure.unit}, {more:+.2f} in {len(seen)} minutes (bar {bar:.1f})"
        _say(line)
        if more > bar:
            wrong.append(f"not flat: {line}")
    return wrong


def chart(minutes: Sequence[Minute]) -> str:
    """All figures of the last process, each in per cent of its median, in medians of five minutes."""
    seen = last_life(minutes)
    groups = [seen[i : i + 5] for i in range(0, len(seen), 5)]
    lines = []
    for colour, figure in enumerate(FLAT):
        middle = statistics.median(map(figure.value, seen)) or 1.0
        points = [(group[0].minute, 100 * statistics.median(map(figure.value, group)) / middle) for group in groups]
        lines.append(Line(f"{figure.name} ({middle:,.0f}{' ' + figure.unit if figure.unit else ''})", points, colour))
    ended, faults = minutes[-1].jobs_ended, minutes[-1].faults
    title = f"{minutes[-1].minute:.0f} minutes, {ended} jobs, {minutes[-1].machines_made} machines, {faults} faults"
    return line_chart_svg(LineChart(title, "minutes", "per cent of the median, which stands in brackets", lines))


def read(file: Path) -> list[Minute]:
    """The lines of a file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            Minute(*(int(row[f.name]) if f.type == "int" else float(row[f.name]) for f in fields(Minute)))  # type: ignore[arg-type]
            for row in csv.DictReader(lines)
        ]


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs, judges and draws."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--release", default="trixie", choices=sorted(VERSIONS))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--read", action="store_true")
    asked = parser.parse_args()
    file: Path = asked.folder / "soak.csv"
    wrong: list[str] = []
    if not asked.read:
        asked.folder.mkdir(parents=True, exist_ok=True)
        _say(f"seed {asked.seed}")
        daemon = {"boot_timeout_s": 30.0}
        with site_up(asked.release, settings=QUICK + SETTINGS, daemon=daemon) as site, file.open("w", newline="") as to:
            rows = csv.DictWriter(to, [f.name for f in fields(Minute)])
            rows.writeheader()

            def took(minute: Minute) -> None:
                rows.writerow(asdict(minute))
                to.flush()

            soak = Soak(site, asked.minutes, random.Random(asked.seed))  # noqa: S311 - nothing secret
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: soak.stop.set())
            soak.run(took)
            wrong += soak.finish()
    minutes = read(file)
    wrong += judge(minutes)
    write_svg(asked.folder, {"soak": chart(minutes)} if last_life(minutes) else {})
    for line in wrong:
        _say(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
