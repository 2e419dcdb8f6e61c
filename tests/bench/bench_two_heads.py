"""Takeovers by the second head: ``python -m tests.bench.bench_two_heads`` with one of

``--simulated 1000``: kill -9 of the leader at random moments; real daemons and PostgreSQL, a played site; 1 h;
``--real 50``: the same on a real Slurm, with machines in boxes (root); 10 min;
``--cuts 100``: the network between the leader and its database is cut (root); 6 min.

Prints one table. Ends with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from tests.bench.two_heads_cuts import cut_leaders
from tests.bench.two_heads_world import PlayedHeads
from tests.crash.world import memory_folder
from tests.db.server import find_initdb, private_server
from tests.e2e.two_heads import Account, TwoHeads

KILLS_A_LIFE = 50
"""Then all comes to rest, and another site begins."""
BOTH = 0.2
"""How often the other head is killed too, while it takes over."""
KILL_BAR_S, CUT_BAR_S = 5.0, 15.0


@dataclass(slots=True)
class Table:
    """Rows, and whether one of them misses its bar."""

    missed: bool = False

    def row(self, name: str, value: float, bar: float | None = None) -> None:
        """``bar``: no more than this."""
        misses = bar is not None and value > bar
        self.missed |= misses
        limit = "" if bar is None else f"   bar {bar:g}{' MISSED' if misses else ''}"
        _say(f"{name:44} {value:8.3g}{limit}")

    def times(self, name: str, seconds: Sequence[float], bar: float) -> None:
        """How long it took each time."""
        worst = sorted(seconds)
        self.row(f"{name}: median, s", statistics.median(worst))
        self.row(f"{name}: p99, s", worst[int(0.99 * len(worst))])
        self.row(f"{name}: longest, s", worst[-1], bar)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _a_life(server: Path, kills: int, seed: int, killed_among: Counter[str], logs: Path | None) -> Account:
    """One site with its heads."""
    name = f"life{seed}"
    with psycopg.connect(host=str(server), user="burstd", dbname="postgres", autocommit=True) as made:
        made.execute(f"CREATE DATABASE {name}".encode())
    with memory_folder() as folder, PlayedHeads(folder, f"postgresql://burstd@/{name}?host={server}") as heads:
        try:
            found = heads.kill_leaders(kills, random.Random(seed), BOTH)  # noqa: S311 - nothing secret
            if logs is not None and max(found.took) > KILL_BAR_S:
                heads.keep_logs(logs / name)
            return found
        finally:
            killed_among.update(heads.killed_among)


def simulated(kills: int, seed: int, at_once: int, logs: Path | None, table: Table) -> None:
    """In lives of KILLS_A_LIFE kills, each with the next seed."""
    initdb = find_initdb()
    assert initdb is not None, "PostgreSQL is not installed"
    accounts: list[Account] = []
    among: Counter[str] = Counter()
    with memory_folder() as folder:
        data = folder / "postgresql"
        data.mkdir(0o700)
        with private_server(initdb, data), ThreadPoolExecutor(at_once) as pool:
            lives = {
                pool.submit(_a_life, data, min(KILLS_A_LIFE, kills - begun), seed + number, among, logs): seed + number
                for number, begun in enumerate(range(0, kills, KILLS_A_LIFE))
            }
            for life in as_completed(lives):
                if error := life.exception():
                    _say(f"seed {lives[life]}: {error}")
                    table.missed = True
                    continue
                accounts.append(life.result())
                _say(f"seed {lives[life]}: {_summary(accounts[-1])}")
    _say(f"claims when a head was killed: {', '.join(f'{count} {state}' for state, count in among.most_common())}")
    _kill_rows(accounts, table)


def _summary(one: Account) -> str:
    wrong = {name: found for name, found in one.faults.items() if found}
    made = f"{len(one.took)} kills, {one.jobs} jobs, {one.machines} machines, longest {max(one.took):.2f} s"
    return f"{made}; load {os.getloadavg()[0]:.0f} {wrong or ''}"


def real(kills: int, seed: int, table: Table) -> None:
    """On one site."""
    initdb = find_initdb()
    assert initdb is not None, "PostgreSQL is not installed"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "postgresql"
        data.mkdir(0o700)
        with private_server(initdb, data), TwoHeads(f"postgresql://burstd@/postgres?host={data}") as site:
            found = site.kill_leaders(kills, random.Random(seed))  # noqa: S311 - nothing secret
    _kill_rows([found], table)


def _kill_rows(accounts: Sequence[Account], table: Table) -> None:
    took = [seconds for one in accounts for seconds in one.took]
    table.row("kill -9 of the leader", len(took))
    table.row("jobs", sum(one.jobs for one in accounts))
    table.row("machines", sum(one.machines for one in accounts))
    table.times("the other leads after", took, KILL_BAR_S)
    for name in accounts[0].faults:
        table.row(name, sum(len(one.faults[name]) for one in accounts), 0)


def cuts(number: int, seed: int, at_once: int, table: Table) -> None:
    """By several pairs of heads."""
    with tempfile.TemporaryDirectory() as folder:
        found = cut_leaders(Path(folder), number, at_once, seed)
    table.row("cuts", len(found))
    table.times("the other acts after", [one.took for one in found], CUT_BAR_S)
    table.row("the leader was silent before, at least, s", min(one.silent_before for one in found))
    table.row("both acted", sum(one.silent_before <= 0 for one in found), 0)
    table.row("leaders that did not end by themselves", sum(not one.ended for one in found), 0)
    table.row("more than one leads, both being back", sum(not one.one_leads for one in found), 0)


def main() -> int:
    """Prints the table; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.bench_two_heads", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group(required=True)
    for name in ("simulated", "real", "cuts"):
        what.add_argument(f"--{name}", type=int, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))  # noqa: S311 - nothing secret
    parser.add_argument("--logs", type=Path, help="keep the heads' logs there where a takeover missed the bar")
    parser.add_argument("--at-once", type=int, help="sites (2), or pairs of heads whose network is cut (5)")
    asked = parser.parse_args()
    _say(f"seed {asked.seed}; load {os.getloadavg()[0]:.1f} before")
    table, begun = Table(), time.monotonic()
    run: Callable[[Table], None]
    if asked.simulated:
        run = partial(simulated, asked.simulated, asked.seed, asked.at_once or 2, asked.logs)
    elif asked.real:
        run = partial(real, asked.real, asked.seed)
    else:
        run = partial(cuts, asked.cuts, asked.seed, asked.at_once or 5)
    run(table)
    _say(f"{time.monotonic() - begun:.0f} s; load {os.getloadavg()[0]:.1f} after")
    return int(table.missed)


if __name__ == "__main__":
    sys.exit(main())
