"""The page of the history: its charts as data, and the same as tables."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from burstd.api.answers.history import HistoryView, MoneySeriesView, SeriesView
from burstd.web.pages.history import MAX_ROWS, SPANS_S, history_charts
from tests.api.client import ApiTestClient
from tests.api.world import NOW


def _series(name: str, *values: float | None) -> SeriesView:
    subject, _, measure = name.rpartition("/")
    return SeriesView(name=name, subject=subject, measure=measure, values=list(values), peaks=[])


def test_charts_have_what_is_known_in_the_order_of_their_lines() -> None:
    times = [datetime.fromtimestamp(NOW + 60 * n, UTC) for n in range(2)]
    money = MoneySeriesView(
        name="site/money_per_hour.EUR",
        subject="site",
        measure="money_per_hour.EUR",
        currency="EUR",
        values=[Decimal("1.5"), None],
        peaks=[],
    )
    view = HistoryView(
        now=times[1], since=times[0], until=times[1], step_s=60, times=times, money=[money],
        series=[_series("pool/gpu/wait_s", 5400, None), _series("site/wait_median_s", None, 90),
                _series("site/jobs_running", 1, 2), _series("site/machines_idle", 0, 1),
                _series("site/machines_busy", 3, 4)],
    )  # fmt: skip
    found = {chart.title: {line.label: list(line.values) for line in chart.lines} for chart in history_charts(view)}
    assert found == {
        "Jobs": {"running": [1, 2]},
        "Machines": {"busy": [3, 4], "idle": [0, 1]},
        "Cost of machines": {"EUR": [1.5, None]},
        "Wait of the jobs that started": {"half had waited at most": [None, 90]},
        "Mean wait by pool": {"gpu": [90, None]},
    }
    units = {chart.title: chart.unit for chart in history_charts(view)}
    assert units["Cost of machines"] == "EUR per hour"
    assert (units["Wait of the jobs that started"], units["Mean wait by pool"]) == ("seconds", "minutes")
    assert list(found["Machines"]) == ["busy", "idle"]
    long = [datetime.fromtimestamp(NOW + n, UTC) for n in range(500)]
    view = view.model_copy(update={"times": long, "series": [_series("site/jobs_running", *range(500))], "money": []})
    rows = history_charts(view)[0].rows(long)
    assert len(rows) <= MAX_ROWS
    assert rows[-1] == (long[-1], [499])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("span", SPANS_S)
def test_the_block_of_data_is_json(root: ApiTestClient, span: str) -> None:
    text = root.text(f"/history?span={span}")
    block = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text)
    assert block is not None
    assert json.loads(block[1]).keys() == {"times", "charts"}
    assert root.fetch("GET", "/history?span=century").status == 422
