"""The bill as files: figures worked out by hand are the same in each format, and each is what its readers open."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import pytest

from burstd.api.answers.charges import SiteChargesView, SiteChargeView
from burstd.api.bill_files.focus import site_focus_rows
from tests.api.fake_backend import serving_api
from tests.api.shared_node import BY_HAND, SITE_BY_HAND, TOTAL, shared_node_record
from tests.api.world import USER

from .conftest import NOBODY, Outcome, Run, as_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
Bill = Callable[..., Outcome]
Sums = Mapping[tuple[str, str, str], Decimal]


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Path]:
    with shared_node_record() as record, serving_api(record) as (_, path):
        yield path


@pytest.fixture
def bill(run: Run, shared_node: Path) -> Bill:
    return lambda *words: run("bill", "--month", "2026-09", *words, socket=shared_node)


def added_up(rows: list[dict[str, str]], *names: str) -> Sums:
    sums: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
    user, kind, cause, cost = names
    for row in rows:
        sums[row[user], row[kind], row[cause]] += Decimal(row[cost])
    return dict(sums)


def test_figures_by_hand_are_those_of_each_format(bill: Bill) -> None:
    shown = bill().out
    assert "3.18 EUR from 2026-09-01 00:00 UTC" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[2:] == [
        "(nobody's) 2.01 EUR 33 min 1 idle (keep alive) 1.20 EUR, idle (fragment) 0.75 EUR, end 0.060 EUR",
        "ada 1.02 EUR 17 min 1 work 0.90 EUR, boot 0.12 EUR",
        f"{USER} 0.15 EUR 2 min 1 work 0.15 EUR",
        "",
        "1.30 EUR on nodes of the site, by [site.cost], no part of the sum above",
        "USER COST NODE TIME",
        "bob 1.30 EUR 30 min",
    ]
    assert json.loads(bill("--format", "json").out) == json.loads(bill("--json").out)
    assert json.loads(bill("--json").out)["total"] == [{"amount": f"{TOTAL}0000", "currency": "EUR"}]
    rows = [*csv.DictReader(bill("--format", "csv").out.splitlines())]
    assert added_up(rows, "user", "kind", "cause", "cost") == BY_HAND
    rows = [*csv.DictReader(bill("--format", "site-csv").out.splitlines())]
    assert {row["user"]: (Decimal(row["site_cost"]), Decimal(row["node_s"]) / 3600) for row in rows} == SITE_BY_HAND
    rows = [*csv.DictReader(bill("--format", "focus").out.splitlines())]
    assert added_up(rows, "x_User", "x_Kind", "x_IdleCause", "BilledCost") == BY_HAND
    assert {row["x_Job"] for row in rows} == {"17", "18", ""}
    page = " ".join(re.sub(r"<[^>]*>", " ", bill("--format", "html").out).split())
    assert " 01 September 2026 to 21 September 2026 (UTC) 3.18 EUR " in page
    assert " ada 1.02 EUR 0.28 work 0.90 EUR, boot 0.12 EUR " in page
    assert f" {USER} 0.15 EUR 0.04 work 0.15 EUR " in page
    assert " 17 1.02 EUR 0.28 " in page
    assert " 1.30 EUR at the site's own prices, no part of the sum above. " in page
    assert " cleo 1.30 EUR 0.50 " in page
    assert " bob 1.30 EUR 0.50 " in page
    kinds = ("work 1.05 EUR", "boot 0.12 EUR", "idle 1.95 EUR", "end 0.060 EUR")
    assert [found for found in kinds if found in page] == [*kinds]
    assert {row["ChargePeriodStart"] for row in rows} == {"2026-09-20T00:00:00Z", "2026-09-21T00:00:00Z"}


def test_the_page_needs_nothing_and_runs_nothing(bill: Bill) -> None:
    page = bill("--format", "html").out
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|\son\w+=", page)
    assert page.count("<svg") == 1
    assert page.count("<rect") == 4 + 6, "a legend, and the kinds of two days"


@pytest.mark.skipif(find_spec("weasyprint") is not None, reason="PDF can be had")
def test_without_the_extra_it_is_said_what_pdf_needs(bill: Bill) -> None:
    outcome = bill("--format", "pdf")
    assert (outcome.code, outcome.out) == (1, "")
    assert "PDF needs the extra pdf (pip install 'burstd[pdf]')" in outcome.err


def test_no_name_is_a_formula(bill: Bill) -> None:
    rows = [*csv.DictReader(bill("--format", "csv", "--by", "project").out.splitlines())]
    assert {row["account"] for row in rows} == {"", "atlas", "'=belle"}


def test_no_file_has_nodes_of_the_site_beside_what_clouds_charge(run: Run) -> None:
    words = ("bill", "--since", "2026-01-01", "--by", "pool")
    answer = json.loads(run(*words, "--json").out)
    assert answer["total"]
    assert answer["site_total"]
    files = (
        ("csv", "cost", "total", words), ("site-csv", "site_cost", "site_total", words),
        ("site-focus", "BilledCost", "site_total", words[:3]),
    )  # fmt: skip
    for form, column, total, said in files:
        sums: defaultdict[str, Decimal] = defaultdict(Decimal)
        for row in csv.DictReader(run(*said, "--format", form).out.splitlines()):
            sums[row.get("currency") or row["BillingCurrency"]] += Decimal(row[column])
        assert sums == {one["currency"]: Decimal(one["amount"]) for one in answer[total]}


@pytest.mark.parametrize("cost", ["1.000001", "-1.000001", "0.000002"])
def test_a_run_on_nodes_of_the_site_is_split_among_them_to_the_millionth(cost: str) -> None:
    charge = SiteChargeView(
        day=date(2026, 10, 1), group="old", nodes="n[1-3]", job="7", user="ada", account="atlas", partition="p",
        cost=Decimal(cost), currency="EUR", milliseconds=3_600_001, corrects="2026-09",
    )  # fmt: skip
    head, *found = site_focus_rows([SiteChargesView(cluster="site", charges=[charge], next=None)])
    rows = [dict(zip(head, row, strict=True)) for row in found]
    assert [row["ResourceId"] for row in rows] == ["n1", "n2", "n3"]
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal(cost)
    assert sum(Decimal(row["ConsumedQuantity"]) for row in rows) == Decimal("3600.001")
    assert {(row["ProviderName"], row["PublisherName"], row["ServiceCategory"], row["SkuId"]) for row in rows} == {
        ("site", "site", "Compute", "site/old")
    }
    assert {(row["ChargeClass"], row["x_CorrectedMonth"], row["x_Job"]) for row in rows} == {
        ("Correction", "2026-09", "7")
    }


@needs_root
def test_users_get_what_they_are_charged_for(bill: Bill) -> None:
    with as_user(NOBODY):
        rows = [*csv.DictReader(bill("--format", "focus").out.splitlines())]
    assert added_up(rows, "x_User", "x_Kind", "x_IdleCause", "BilledCost") == {
        key: cost for key, cost in BY_HAND.items() if key[0] == USER
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--format csv --json", "Say --format or --json, not both."),
        ("--format focus --by job", "--by goes with text, json, csv and site-csv"),
        ("--format ods", "'ods' is not one of 'text', 'json', 'csv', 'site-csv', 'focus', 'site-focus', 'html'"),
    ],
)
def test_what_cannot_be_had(bill: Bill, words: str, says: str) -> None:
    outcome = bill(*words.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err
