"""B9: a node that is kept for output costs money: the alarm says how much, and the site may limit it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.lifecycle.output_retention import retained_nodes, retention_alarm
from tests.planner.worlds import NOW, claim, make_snapshot, offer


def behind_a_cut_line(hours: float, limit: str | None) -> Snapshot:
    """A machine at 20 EUR/h, whose job ended so many hours ago with output that is not off it."""
    one = claim("cpu1", ClaimState.IN_SERVICE, offer=offer(price="20"), created=NOW - 90_000, billed_from=NOW - 90_000)
    ended = NOW - hours * 3600
    data = {"7": StagingView(StageState.COLLECTING, 0.0, ("cpu1",), since=ended, ended=ended, error="no answer")}
    return replace(make_snapshot(claims=(one,), data=data), output_retention_cost=Decimal(limit) if limit else None)


@pytest.mark.parametrize(
    ("hours", "limit", "is_kept"),
    [
        (23, None, True),
        (25, None, False),
        (1.9, "40", True),
        (2.1, "40", False),
        (23, "1000", True),
        (25, "1000", False),
    ],
)
def test_it_is_kept_no_longer_than_the_time_and_the_money_last(hours: float, limit: str | None, is_kept: bool) -> None:
    assert bool(retained_nodes(behind_a_cut_line(hours, limit))) == is_kept


def test_the_alarm_says_what_it_has_cost_and_costs() -> None:
    assert "which has cost 100.00 EUR since their jobs ended and costs 20.00 EUR/h" in retention_alarm(
        behind_a_cut_line(5, None)
    )
    assert "which has cost 40.00 EUR since their jobs ended:" in retention_alarm(behind_a_cut_line(5, "40"))
