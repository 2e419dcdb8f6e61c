"""What a year of history takes: ``python -m tests.bench.bench_site_history [--database FILE] [--rounds 7]``.

20 pools, 5 providers, 200 projects. The record is written and thinned as the daemon does, in virtual time: a sample
each minute for two days, two in ten minutes for the month before, two a day before that. So each page has as many rows
to read as after a year of samples of each minute; only hours before the last month are missing, and are counted in
with the mean size of the others. Prints MB, what a sample takes, and what answers take at the server, in milliseconds
of the processor: the first and the least. ``select`` is SQLite's time for the same statements alone. ``--database``
keeps the record for another run.
"""

from __future__ import annotations

import argparse
import gc
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

from sqlalchemy import event

from burstd.db import Store, StoreReader
from burstd.domain.site_history import DAY_S, RESOLUTIONS, Part, step_start
from burstd.web.pages.history import SPANS_S
from tests.api.fake_backend import FakeBackend
from tests.api.world import FixedClock
from tests.db.site_figures import busy_site, walk
from tests.web.served import serving

BEGIN = step_start(1_790_000_000, DAY_S)
END = BEGIN + 366 * DAY_S
BATCH = 500
ASKED = {
    "page": (),
    "site, pools, providers": ("site/*", "pool/*", "provider/*"),
    "burstctl history": ("site/*", "pool/*/machines_busy", "pool/*/wait_s"),
    "waits of each project": ("project/*/wait_median_s",),
    "one project": ("project/physics-007/*",),
}


def moments() -> Iterator[int]:
    """When samples are taken."""
    for day in range(BEGIN, END - 32 * DAY_S, DAY_S):
        yield from (day, day + 600)
    yield from range(END - 32 * DAY_S, END - 2 * DAY_S, 300)
    yield from range(END - 2 * DAY_S, END, 60)


def fill(path: Path) -> None:
    """Writes a year, and says what that took."""
    chance, world, clock = random.Random(1), busy_site(), FixedClock(BEGIN)  # noqa: S311
    spent: dict[bool, list[float]] = {False: [], True: []}
    thinned = 0
    due = list(moments())
    with Store.open(path, clock) as store:
        for start in range(0, len(due), BATCH):
            with store.batch():
                for now in due[start : start + BATCH]:
                    world = {part: walk(chance, figures) for part, figures in world.items()}
                    step, clock.time = step_start(now, RESOLUTIONS[1].step_s), now
                    begun = time.process_time()
                    store.record_site_figures(now, world, thin=step != thinned)
                    spent[step != thinned].append(1000 * (time.process_time() - begun))
                    thinned = step
    for thin, name in ((False, "a sample"), (True, "a sample, and thinning")):
        print(f"{name:24} {statistics.median(spent[thin]):6.1f} ms, most {max(spent[thin]):.0f}")  # noqa: T201


def size(path: Path) -> None:
    """Of each length of samples the mean size of a row, and the MB of a year, with all that the table takes."""
    total = 0.0
    with sqlite3.connect(path) as database:
        query = "SELECT step_s, count(*), avg(length(figures)) FROM site_history GROUP BY step_s"
        found = {step_s: (rows, mean) for step_s, rows, mean in database.execute(query)}
        table = "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%site_history%'"
        beside = database.execute(table).fetchone()[0] / sum(rows * mean for rows, mean in found.values())
    for resolution in RESOLUTIONS:
        rows = len(Part) * int(min(resolution.keep_s, END - BEGIN) / resolution.step_s)
        there, mean = found[resolution.step_s]
        total += (held := rows * mean * beside / 1e6)
        print(f"{resolution.step_s:6} s: {rows:6} rows ({there} written) of {mean:5.0f} bytes {held:6.1f} MB")  # noqa: T201
    print(f"in all {total:.1f} MB, {beside:.2f} times its figures")  # noqa: T201


def milliseconds(call: Callable[[], object]) -> float:
    """Of the processor, which other programs do not prolong; the server is in this process."""
    begun = time.process_time()
    call()
    return 1000 * (time.process_time() - begun)


def answers(path: Path, rounds: int) -> None:
    """A line for each question and time."""
    clock = FixedClock(END)
    statements: list[tuple[str, tuple[object, ...]]] = []
    with StoreReader.open(path, clock) as reader, sqlite3.connect(path) as plain:
        backend = FakeBackend(reader)
        backend.clock = clock

        @event.listens_for(reader._database.engine, "before_cursor_execute")
        def note(_c: object, _cursor: object, statement: str, values: tuple[object, ...], *_: object) -> None:
            if statement.startswith("SELECT"):
                statements.append((statement, values))

        gc.collect()
        gc.freeze()  # as the daemon does
        with serving(backend) as port:
            link = HTTPConnection("127.0.0.1", port)

            def replay() -> None:
                for statement, values in statements:
                    plain.execute(statement, values).fetchall()

            def fetch(path: str) -> int:
                clock.time += 60  # as new to all caches
                link.request("GET", path, headers={"accept": "text/html" if path.startswith("/h") else "*/*"})
                answer = link.getresponse()
                body = answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{path}: {answer.status} {body[:200]!r}")
                return len(body)

            print(f"{'':24} {'':6} {'first':>6} {'least':>6} {'select':>6} {'ratio':>6} {'KiB':>6}")  # noqa: T201
            for name, patterns in ASKED.items():
                for span, span_s in SPANS_S.items():
                    query = [("since", str(END - span_s)), *(("series", one) for one in patterns)]
                    asked = f"/v1/history?{urlencode(query)}" if patterns else f"/history?span={span}"
                    clock.time = END
                    first = milliseconds(partial(fetch, asked))
                    took, bare = [], []
                    for _ in range(rounds):
                        statements.clear()
                        took.append(milliseconds(partial(fetch, asked)))
                        bare.append(milliseconds(replay))
                    clock.time = END - 60
                    kib, least, select = fetch(asked) / 1024, min(took), min(bare)
                    print(  # noqa: T201
                        f"{name:24} {span:6} {first:6.0f} {least:6.0f} {select:6.1f} {least / select:6.1f} {kib:6.0f}"
                    )


def main() -> None:
    """Fills a record where there is none, and asks."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_site_history", description=__doc__)
    parser.add_argument("--database", type=Path, help="keep the year there")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        path = chosen.database or Path(folder) / "burstd.db"
        if not path.exists():
            fill(path)
        Store.open(path, FixedClock(END)).close()  # one of an older burstd is upgraded
        size(path)
        sys.stdout.flush()
        answers(path, chosen.rounds)


if __name__ == "__main__":
    main()
