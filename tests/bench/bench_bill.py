"""The bill of a month with 100,000 machines and a million ended jobs, beside the plain sum in SQL.

    python -m tests.bench.bench_bill [--claims 100000] [--jobs-per-claim 10]

Jobs are of 300 users in 40 projects; SQLite, in a folder of its own. Seconds are processor time.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from sqlalchemy import insert

from burstd.db import Cursor, Store, StoreReader
from burstd.db.repositories.bill import BillGrouping
from burstd.db.repositories.charges import charge_rows
from burstd.db.tables import CHARGE
from burstd.domain.billing.use import WHOLE, ClaimRun, Payer, charges_by_use
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.shape import Shape
from tests.db.samples import ManualClock

MONTH = 1_790_812_800.0
"""1 October 2026."""
MONTH_S = 31 * 86400.0
GROUPS: tuple[BillGrouping, ...] = ("user", "account", "pool", "day", "job")
_PAGES = "pages"


def fill(path: Path, claims: int, jobs: int) -> None:
    """Writes the charges of claims that are gone."""
    dice = random.Random(7)  # noqa: S311
    offer = Offer("aws", "r", "z", "m8", False, Shape(8, 16384), Decimal("3.0613"))
    with Store.open(path, ManualClock()) as store:
        rows = []
        for number in range(claims):
            begin = MONTH + dice.random() * (MONTH_S - 86400)
            end = begin + 3600 + dice.random() * 40000
            claim = Claim(
                f"c{number:06}", "site", f"pool{number % 5}", "n1", offer, Cause.DEMAND, ClaimState.GONE, begin, end,
                billed_from=begin, billed_until=end, in_service_from=begin + 120,
            )  # fmt: skip
            runs = []
            for place in range(jobs):
                user = dice.randrange(300)
                payer = Payer(str(number * jobs + place), f"user{user}", f"project{user % 40}", "gpu")
                started = begin + 120 + place * (end - begin - 200) / jobs
                runs.append(ClaimRun(claim.id, payer, started, WHOLE // 2, started + (end - begin) / jobs))
            states = (
                (begin, ClaimState.LAUNCHING),
                (begin + 120, ClaimState.IN_SERVICE),
                (end - 60, ClaimState.DRAINING),
            )
            rows += charge_rows(claim, charges_by_use(claim, states, runs, [(runs[0].payer, 1)], end))
            if len(rows) > 50_000 or number == claims - 1:
                with store._database.writing() as session:
                    session.connection().execute(insert(CHARGE), rows)
                rows = []


def measure(path: Path, group: BillGrouping) -> None:
    """One bill in this process, and its largest memory."""
    with StoreReader.open(path, replace(ManualClock(), time=MONTH + 2 * MONTH_S)) as reader:
        before = time.process_time()
        with reader._database.reading() as connection:
            connection.exec_driver_sql("SELECT currency, SUM(amount) FROM charge GROUP BY currency").all()
        plain = time.process_time() - before
        before = time.process_time()
        lines = reader.bill(group, MONTH, MONTH + MONTH_S, limit=1000)
        took = time.process_time() - before
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total = sum(line.cost for line in lines)
    sys.stdout.write(
        f"by {group}: {took:.2f} s, {took / plain:.1f} times the plain sum ({plain:.2f} s), {len(lines)} lines, "
        f"{most:.0f} MiB at most, {total}\n"
    )


def measure_pages(path: Path) -> None:
    """Every single charge, page by page, and the sheet that is printed; in this process."""
    end = MONTH + MONTH_S
    with StoreReader.open(path, replace(ManualClock(), time=end + MONTH_S)) as reader:
        begun, pages, rows, worst = time.process_time(), 0, 0, 0.0
        cursor: Cursor | None = Cursor(end + MONTH_S)
        while cursor is not None:
            before = time.process_time()
            lines, cursor = reader.charge_page(MONTH, end, cursor, 1000)
            pages, rows, worst = pages + 1, rows + len(lines), max(worst, time.process_time() - before)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sys.stdout.write(
            f"{rows} charges in {pages} pages: {time.process_time() - begun:.0f} s, {worst:.2f} s a page at most, "
            f"{most:.0f} MiB at most\n"
        )
        before = time.process_time()
        reader.bills(("account", "user", "day", "job"), MONTH, end, limit=30)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sys.stdout.write(f"the sheet: {time.process_time() - before:.1f} s, {most:.0f} MiB at most\n")


def main() -> None:
    """Fills once, and measures each grouping in a process of its own."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--claims", type=int, default=100_000)
    words.add_argument("--jobs-per-claim", type=int, default=10)
    words.add_argument("--measure", nargs=2, metavar=("PATH", "GROUP"))
    given = words.parse_args()
    if given.measure:
        path, what = Path(given.measure[0]), given.measure[1]
        measure_pages(path) if what == _PAGES else measure(path, what)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "burstd.db"
        before = time.process_time()
        fill(path, given.claims, given.jobs_per_claim)
        took = time.process_time() - before
        sys.stdout.write(f"charges of {given.claims} claims worked out and written in {took:.0f} s, "
                         f"{path.stat().st_size >> 20} MiB\n")  # fmt: skip
        for group in (*GROUPS, _PAGES):
            subprocess.run([sys.executable, "-m", "tests.bench.bench_bill", "--measure", str(path), group], check=True)


if __name__ == "__main__":
    main()
