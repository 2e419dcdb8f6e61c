"""The example of docs/money.md is what burstd charges, and what burstctl prints of it."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.api.routers.status import bill_view
from burstd.cli.commands.bill import print_bill
from burstd.cli.output import ConsoleOutput
from burstd.db.repositories.bill import Bill
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.use import WHOLE, ClaimRun, Payer, charges_by_use
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.shape import Shape

DOCS = (Path(__file__).parents[2] / "docs/money.md").read_text(encoding="utf-8")
S = ClaimState
T = datetime(2026, 10, 1, 10, tzinfo=UTC).timestamp()
ADA, BOB = Payer("17", "ada", "atlas", "burst"), Payer("18", "bob", "belle", "burst")
CLAIM = Claim(
    "c1", "site", "cpu", "cpu1", Offer("aws", "r", "z", "m8", False, Shape(8, 16384), Decimal("3.60")), Cause.DEMAND,
    S.GONE, T, T + 3220, jobs=("17",), users=("ada",), accounts=("atlas",), billed_from=T, in_service_from=T + 120,
    billed_until=T + 3220,
)  # fmt: skip
STATES = ((T, S.LAUNCHING), (T + 120, S.IN_SERVICE), (T + 3180, S.TERMINATING))
RUNS = (
    ClaimRun("c1", ADA, T + 180, WHOLE // 2, T + 1980),
    ClaimRun("c1", BOB, T + 1380, WHOLE // 4, T + 1980),
)
CHARGES = charges_by_use(CLAIM, STATES, RUNS, [(ADA, 1)], T + 9999)


def test_the_table() -> None:
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in DOCS.splitlines() if re.match(r"\| 10:|\| \|", row)
    ]
    seconds = [int(row[2]) for row in rows]
    sums = [[Decimal(cell or 0) for cell in row[3:]] for row in rows]
    assert seconds[-1] == sum(seconds[:-1]) == 3220
    assert sums[-1] == [sum(column) for column in zip(*sums[:-1], strict=True)]
    times = [datetime.strptime(f"2026-10-01 {row[0]}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) for row in rows[:-1]]
    assert [time.timestamp() - T for time in times] == [sum(seconds[:n]) for n in range(len(times))]
    charged: defaultdict[str, Decimal] = defaultdict(Decimal)
    for one in CHARGES:
        charged[one.payer.user] += one.amount * MICRO
    assert [charged["ada"], charged["bob"], charged[""]] == sums[-1]


def test_what_burstctl_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    bill = Bill("user", T, T + 3600)
    bill.add_live(CLAIM, CHARGES)
    print_bill(ConsoleOutput(), bill_view(bill.lines(), "user", T, T + 3600, T + 3600, []))
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == DOCS.split("```\n")[2].splitlines()
