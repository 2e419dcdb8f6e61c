"""How budgets stand, in the bill: all of them for administrators, to others their own."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.api.answers.base import Money
from burstd.api.answers.text import money_text
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.snapshot import SlurmView
from tests.api.client import ApiTestClient
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.world import OTHER_USER, SNAPSHOT, USER
from tests.cli.conftest import NOBODY, Run


def line(kind: str, name: str, fault: str = "") -> BudgetLine:
    return BudgetLine(kind, name, "month", "EUR", Decimal(100), Decimal("12.5"), Decimal("3.25"), fault)


BUDGETS = (
    line("", ""),
    line("project", "atlas"),
    line("project", "belle"),
    line("user", USER),
    line("user", OTHER_USER),
)


@pytest.fixture
def budgets(backend: FakeBackend) -> None:
    """Jobs of the caller are of atlas."""
    slurm = SNAPSHOT.slurm
    assert isinstance(slurm, SlurmView)
    jobs = tuple(replace(job, account="atlas" if job.user == USER else "belle") for job in slurm.jobs)
    snapshot = replace(SNAPSHOT, slurm=replace(slurm, jobs=jobs))
    backend.loop = (snapshot, replace(PLAN, target=replace(PLAN.target, budgets=BUDGETS)))


@pytest.mark.usefixtures("budgets")
def test_an_administrator_sees_all(run: Run) -> None:
    found = run("bill")
    assert found.code == 0
    rows = [" ".join(row.split()) for row in found.out.splitlines()]
    assert "BUDGET PERIOD LIMIT SPENT PROMISED LEFT" in rows
    assert "whole site month 100.00 EUR 12.50 EUR 3.25 EUR 84.25 EUR" in rows
    assert "project atlas month 100.00 EUR 12.50 EUR 3.25 EUR 84.25 EUR" in rows
    answer = json.loads(run("bill", "--by", "project", "--json").out)
    assert answer["group"] == "account"
    assert [(b["kind"], b["name"]) for b in answer["budgets"]] == [(b.kind, b.name) for b in BUDGETS]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
@pytest.mark.usefixtures("budgets")
def test_others_see_their_own_and_those_of_their_projects(control: Path) -> None:
    with ApiTestClient(control, NOBODY) as client:
        answer = client.get("/v1/bill")
    assert [(b["kind"], b["name"]) for b in answer["budgets"]] == [("project", "atlas"), ("user", USER)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_dates_are_whole_days_of_the_bill(run: Run, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        found = run("bill", "--since", "2025-10-01", "--until", "2025-10-31")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.out.splitlines()[0].endswith(" from 2025-10-01 00:00 UTC to 2025-11-01 00:00 UTC")


def test_jobs_and_machines_are_the_dearest_and_one_line_for_the_others(run: Run) -> None:
    every = json.loads(run("bill", "--by", "claim", "--json").out)
    first, other = json.loads(run("bill", "--by", "claim", "--limit", "1", "--json").out)["lines"]
    assert first == every["lines"][0]
    assert (other["key"], other["others"]) == ("", len(every["lines"]) - 1)
    assert f"({other['others']} others)" in run("bill", "--by", "claim", "--limit", "1").out


def test_the_end_of_the_month_is_for_administrators_and_says_what_it_does_not_know(run: Run, control: Path) -> None:
    found = run("bill", "forecast")
    assert found.code == 0
    text = " ".join(found.out.split())
    assert " spent, " in text
    assert "to come from running machines and volumes; too little history to expect more: 0 of 60 days" in text
    (one,) = json.loads(run("bill", "forecast", "--json").out)["forecasts"]
    assert (one["expected"], one["low"]) == (None, None)
    if os.geteuid() == 0:
        with ApiTestClient(control, NOBODY) as client:
            assert client.request("GET", "/v1/bill/forecast")[0] == 403


def test_without_budgets_the_bill_says_nothing_of_them(run: Run) -> None:
    assert "BUDGET" not in run("bill").out


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0.00 EUR"), ("12.5", "12.50 EUR"), ("0.05", "0.050 EUR"), ("0.0042", "0.0042 EUR"),
     ("-0.0042", "-0.0042 EUR"), ("0.0000018", "0.000002 EUR")],
)  # fmt: skip
def test_small_sums_are_no_zeros(amount: str, text: str) -> None:
    assert money_text(Money(amount=Decimal(amount), currency="EUR")) == text
