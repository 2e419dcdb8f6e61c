"""Runs on nodes of the site in each database: written twice they are there once, and all groupings add up alike."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import get_args

from burstd.db.repositories.bill import BillGrouping
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import WHOLE, Payer

from .opening import open_store
from .samples import START, ManualClock

RUNS = SiteRun("old", Payer("1", "ann", "atlas", "cpu"), 5, START, WHOLE // 2, Decimal("3.60"), "EUR")
OVER = replace(RUNS, payer=Payer("2", "bob", "belle", "cpu"), ended=START + 99999)


def test_runs_are_written_and_charged_once(place: str) -> None:
    with open_store(place, ManualClock()) as store:
        for _ in range(2):
            store.save_site_runs([RUNS], [OVER])
        assert store.open_site_runs() == [RUNS]
        assert store.charged_site_runs({"1", "2", "3"}) == {("2", 5)}
        groups: tuple[BillGrouping, ...] = get_args(BillGrouping)
        for group in groups:
            lines = store.site_bill(group, START - 86400, START + 200_000, limit=1)
            assert sum(line.cost for line in lines) == Decimal("299.999"), group
            assert sum(line.seconds for line in lines) == 149999.5
