"""burstctl bill verify and charges, and what the bill says of months."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import update

from burstd.db import Store, StoreReader
from burstd.db.tables import CHARGE
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import WHOLE, Payer
from burstd.domain.claim import ClaimState
from tests.api.client import ApiTestClient
from tests.api.fake_backend import serving_api
from tests.api.world import NOW, USER, FixedClock
from tests.cli.conftest import NOBODY, Run
from tests.db.samples import ManualClock, planned
from tests.db.test_closed_months import at, close_months
from tests.db.test_money import CENTS, begin, end

SITE_RUN = SiteRun(
    "old", Payer("1", USER, "atlas", "cpu"), 5, at(7, 30, 23), WHOLE, Decimal("3.60"), "EUR", at(7, 31, 1), "n[1-2]"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A machine of July; burstd's time is the end of September."""
    clock = ManualClock(at(7, 30, 23))
    with Store.open(tmp_path / "burstd.db", clock) as opened:
        begin(opened, planned(offer=CENTS, users=(USER,)), clock=clock)
        clock.time = at(8, 1, 1)
        end(opened, "c1", clock)
        opened.save_site_runs([], [SITE_RUN])
        clock.time = NOW
        yield opened


@pytest.fixture
def socket(store: Store) -> Iterator[Path]:
    close_months(store)
    with StoreReader.open(store.location, FixedClock()) as reader, serving_api(reader) as (_, path):
        yield path


def test_what_is_printed_of_a_closed_month(run: Run, socket: Path, store: Store) -> None:
    closed = store.closed_months()[0]
    says = f"2026-07 closed on 2026-09-21 14:13 UTC, sha256 {closed.sha256}"
    assert says in run("bill", "--month", "2026-07", socket=socket).out.splitlines()
    assert len(run("bill", "--month", "2026-09", socket=socket).out.splitlines()) == 1
    found = run("bill", "verify", "2026-07", socket=socket)
    assert (found.code, found.out.splitlines()) == (
        0, [
            f"{says}: 3 charges, 90.00 EUR, rule 2", "Its charges are as they were then.",
            f"Nodes of the site: 2 charges, 7.20 EUR, sha256 {closed.site_sha256}",
            "Its charges are as they were then.",
        ],
    )  # fmt: skip
    with ApiTestClient(socket) as client:
        assert "2026-07 closed on 21 Sep 2026" in client.text("/costs?since=2026-07-01&until=2026-07-31")
    printed = run("bill", "charges", "2026-07", "--site", socket=socket).out
    assert hashlib.sha256(printed.encode()).hexdigest() == closed.site_sha256
    assert [row["nodes"] for row in csv.DictReader(io.StringIO(printed))] == ["n[1-2]", "n[1-2]"]
    printed = run("bill", "charges", "2026-07", socket=socket).out
    assert hashlib.sha256(printed.encode()).hexdigest() == closed.sha256
    assert [(row["date"], row["kind"], row["amount"]) for row in csv.DictReader(io.StringIO(printed))] == [
        ("2026-07-30", "boot", "0.100000"), ("2026-07-30", "idle", "3.500000"), ("2026-07-31", "idle", "86.400000"),
    ]  # fmt: skip
    with store._database.writing() as session:
        session.connection().execute(update(CHARGE).where(CHARGE.c.kind == "boot").values(user="bob"))
    found = run("bill", "verify", "2026-07", socket=socket)
    assert (found.code, "! Its charges were changed: 3 charges, sha256" in found.out) == (1, True)
    store.purge(NOW, NOW)
    found = run("bill", "verify", "2026-07", "--json", socket=socket)
    answer = json.loads(found.out)
    assert (found.code, answer["charges"], answer["found_charges"]) == (1, 3, 0)
    assert "on record no longer" in run("bill", "verify", "2026-07", socket=socket).out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("verify 2026-09", 5, "2026-09 is not closed."),
        ("charges 2026-09", 5, "2026-09 is not closed."),
        ("verify 2026-13", 2, "month"),
        ("charges x/../y", 5, "Not Found"),
    ],
)
def test_a_month_that_is_not_closed(run: Run, socket: Path, words: str, code: int, says: str) -> None:
    found = run("bill", *words.split(), socket=socket)
    assert (found.code, says in found.err) == (code, True), found.err


def test_a_month_that_has_to_wait_says_for_what(run: Run, store: Store) -> None:
    clock = ManualClock(at(8, 30))
    store._claims._clock = clock
    begin(store, planned("c2", "n2", offer=CENTS), clock=clock)
    store.transition_claim("c2", ClaimState.IN_SERVICE, ClaimState.DRAINING, "idle")
    store.transition_claim("c2", ClaimState.DRAINING, ClaimState.TERMINATING, "idle")
    close_months(store)
    with StoreReader.open(store.location, FixedClock()) as reader, serving_api(reader) as (_, path):
        lines = run("bill", "--month", "2026-08", socket=path).out.splitlines()
        assert lines[1] == "2026-08 open: the end is not confirmed of c2"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_only_administrators_have_the_charges_of_all(socket: Path) -> None:
    with ApiTestClient(socket, NOBODY) as client:
        [month] = client.get(f"/v1/bill?since={at(7, 1)}&until={at(8, 1)}")["months"]
        assert (month["month"], len(month["sha256"])) == ("2026-07", 64)
        for path in ("2026-07", "2026-07/charges?day=2026-07-30"):
            status, answer = client.request("GET", f"/v1/bill/months/{path}")
            assert (status, "This is for" in answer["error"]) == (403, True)
