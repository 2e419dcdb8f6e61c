"""The table of ``burstctl history``, and its bars."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.cli.commands.history import bars
from burstd.db import Store, StoreReader
from burstd.domain.site_history import Part
from tests.api.fake_backend import serving_api
from tests.api.world import NOW, FixedClock
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def control() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        path, clock = Path(folder) / "burstd.db", FixedClock(NOW)
        with Store.open(path, clock) as store:
            for minute, jobs in ((5, 4), (4, 2), (1, 8)):
                clock.time = NOW - 60 * minute
                site = {"jobs_pending": jobs, "started": 1, "wait_s": 90, "wait_max_s": 90, "waits_below_128": 1}
                money = {"site": {"money_per_hour.EUR": 1_500_000 * jobs}}
                store.record_site_figures(clock.time, {Part.SITE: {"site": site}, Part.MACHINES: money}, thin=False)
        with StoreReader.open(path, FixedClock()) as reader, serving_api(reader) as (_, socket):
            yield socket


def test_a_row_for_each_series(run: Run) -> None:
    found = run("history", "site/*", "--since", "2026-09-20")
    assert found.code == 0
    rows = {row.split()[0]: row.split()[1:] for row in found.out.splitlines()[2:]}
    assert rows["site/jobs_pending"][:3] == ["8", "4.7", "8"]
    assert rows["site/jobs_pending"][3].startswith("▄▂··█")
    assert rows["site/wait_s"][:2] == rows["site/wait_median_s"][:2] == ["90", "s"]
    assert rows["site/money_per_hour.EUR"][:2] == ["12.00", "EUR"]
    answer = json.loads(run("history", "site/jobs_pending", "--since", "2026-09-20", "--json").out)
    assert [one["name"] for one in answer["series"]] == ["site/jobs_pending"]
    lines = run(
        "history", "site/jobs_pending", "site/money_per_hour.EUR", "--since", "2026-09-20", "--csv"
    ).out.splitlines()
    assert lines[0] == "time,site/jobs_pending,site/money_per_hour.EUR"
    values = [line.partition(",")[2] for line in lines[1:]]
    assert values == ["4.0,6", "2.0,3", ",", ",", "8.0,12", ","]
    assert run("history", "--csv", "--json").code == 2
    assert "Nothing is on record" in run("history", "pool/none/x", "--since", "2026-09-20").out
    assert run("history", "--since", "never").code == 2


@pytest.mark.parametrize(
    ("values", "text"),
    [([], ""), ([0, 0], "  "), ([1, 2, 4, 8], "▁▂▄█"), ([None, 8], "·█"), ([0, None, 4, 4], " ·██"),
     ([1.0] * 80, "█" * 40), ([8.0, None] * 40, "█" * 40)],
)  # fmt: skip
def test_bars(values: list[float | None], text: str) -> None:
    assert bars(values) == text
