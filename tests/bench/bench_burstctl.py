"""How long burstctl takes: ``python -m tests.bench.bench_burstctl [--turns 20]``.

The daemon is made of values: 4,000 slots, half of them in service, and 10,000 pending jobs. Prints the least
milliseconds of processor time, and those as a multiple of an empty Python program's; then the median of wall time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from burstd.domain.snapshot import Snapshot
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from tests.api.fake_backend import sample_database, serving_api
from tests.bench.bench_decide import queue, queue_snapshot

SLOTS, JOBS = 4000, 10_000
COMMANDS = (("--help",), ("status",), ("status", "--json"), ("job", "show", "1"), ("explain", "1"), ("node", "list"),
            ("job", "--help"))  # fmt: skip


def large_site() -> Snapshot:
    """4,000 slots, half of them in service and half of those busy; 10,000 pending jobs of 50 kinds."""
    return queue_snapshot(queue(50, JOBS, lambda _: 1), SLOTS, 0.5)


def _durations_ms(command: list[str]) -> tuple[float, float]:
    """Of the processor, then of the wall."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * spent, 1000 * (time.perf_counter() - begun)


def main() -> None:
    """Each turn runs every command once, so that all see the same load."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=20)
    chosen = options.parse_args()
    burstctl = str(Path(sys.executable).with_name("burstctl"))
    commands = {f"burstctl {' '.join(words)}": [burstctl, *words] for words in COMMANDS}
    commands["python -c pass"] = [sys.executable, "-c", "pass"]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with sample_database() as record, serving_api(record) as (backend, path):
        os.environ["BURSTD_SOCKET"] = str(path)
        snapshot = large_site()
        backend.loop = snapshot, decide(snapshot, (), Tuning())
        for _ in range(chosen.turns):
            for name, command in commands.items():
                found[name].append(_durations_ms(command))
    empty = min(found["python -c pass"])[0]
    for name, times in found.items():
        cpu, wall = min(times)[0], statistics.median(one for _, one in times)
        print(f"{name:24} {cpu:6.0f} ms  {cpu / empty:5.1f}  {wall:6.0f} ms")  # noqa: T201


if __name__ == "__main__":
    main()
