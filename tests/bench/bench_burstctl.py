"""How long burstctl takes: ``python -m tests.bench.bench_burstctl [--turns 20]``.

The daemon is made of values: 4,000 slots, half of them in service, and 10,000 pending jobs. Prints milliseconds from
start to end, least and median, and the median as a multiple of an empty Python program's.
"""

from __future__ import annotations

import argparse
import os
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
COMMANDS = (("--help",), ("status",), ("status", "--json"), ("job", "show", "1"), ("node", "list"), ("job", "--help"))


def large_site() -> Snapshot:
    """4,000 slots, half of them in service and half of those busy; 10,000 pending jobs of 50 kinds."""
    return queue_snapshot(queue(50, JOBS, lambda _: 1), SLOTS, 0.5)


def _duration_ms(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - begun)


def main() -> None:
    """Each turn runs every command once, so that all see the same load."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=20)
    chosen = options.parse_args()
    burstctl = str(Path(sys.executable).with_name("burstctl"))
    commands = {f"burstctl {' '.join(words)}": [burstctl, *words] for words in COMMANDS}
    commands["python -c pass"] = [sys.executable, "-c", "pass"]
    found: dict[str, list[float]] = {name: [] for name in commands}
    with sample_database() as record, serving_api(record) as (backend, path):
        os.environ["BURSTD_SOCKET"] = str(path)
        snapshot = large_site()
        backend.loop = snapshot, decide(snapshot, (), Tuning())
        for _ in range(chosen.turns):
            for name, command in commands.items():
                found[name].append(_duration_ms(command))
    empty = statistics.median(found["python -c pass"])
    for name, times in found.items():
        median = statistics.median(times)
        print(f"{name:24} {min(times):6.0f} {median:6.0f} ms  {median / empty:5.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
