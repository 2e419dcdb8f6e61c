"""The example of docs/money.md is what burstd charges, and what burstctl prints of it."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.api.routers.status import bill_view
from burstd.cli.commands.bill import print_bill
from burstd.cli.output import ConsoleOutput
from burstd.db.repositories.bill import Bill, BillLine
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.rates import Rates
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
    print_bill(ConsoleOutput(), bill_view(bill.lines(), "user", T, T + 3600, T + 3600, [], Rates()))
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == DOCS.split("```\n")[2].splitlines()


def test_the_total_in_one_currency_stands_beside_the_totals_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        BillLine("ada", "EUR", Decimal("1.02"), 600, 1),
        BillLine("bob", "USD", Decimal("2.00"), 600, 1),
    ]
    day = date(2026, 11, 1)
    rates = Rates("EUR", day, {"USD": Decimal("0.86"), "CHF": Decimal("1.07")})
    found = bill_view(lines, "user", T, T + 3600, T + 3600, [], rates)
    assert found.model_dump(mode="json", include={"total", "converted"}) == {
        "total": [{"amount": "1.020000", "currency": "EUR"}, {"amount": "2.000000", "currency": "USD"}],
        "converted": {
            "total": {"amount": "2.740000", "currency": "EUR"},
            "date": "2026-11-01",
            "rates": {"USD": "0.86"},
        },
    }
    print_bill(ConsoleOutput(), found)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "1.02 EUR + 2.00 USD from 2026-10-01 10:00 UTC to 2026-10-01 11:00 UTC",
        "2.74 EUR in all at rates of 2026-11-01 (1 USD = 0.86 EUR)",
    ]
    for some, at in ((lines[:1], rates), (lines, Rates()), (lines, Rates("EUR", day, {"CHF": Decimal(1)}))):
        assert bill_view(some, "user", T, T + 3600, T + 3600, [], at).converted is None
