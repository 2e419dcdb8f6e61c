"""``GET /v1/history``: what each caller sees of it, its gaps, its steps and its refusals."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path

import pytest

from burstd.api.answers.history import HistoryView
from burstd.db import Store, StoreReader
from burstd.domain.project import Project, ProjectsView
from burstd.domain.site_history import Part

from .client import ApiTestClient
from .conftest import NOBODY
from .fake_backend import PLAN, FakeBackend, serving_api
from .world import JOBS, NOW, SLURM, SNAPSHOT, USER, FixedClock

BEGIN = NOW // 60 * 60 - 3600
GAP = range(20, 30)
"""Minutes without burstd."""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeBackend, Path]]:
    """An hour on record; the caller ``nobody`` has a job in account phys, which is project a's."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        path, clock = Path(folder) / "burstd.db", FixedClock(BEGIN)
        with Store.open(path, clock) as store, store.batch():
            for minute in range(60):
                clock.time = BEGIN + 60 * minute
                if minute in GAP:
                    continue
                waits = {"started": 2, "wait_s": 90, "wait_max_s": 80, "waits_below_16": 1, "waits_below_128": 1}
                waits = waits if minute % 2 else {}
                money = {"money_per_hour.EUR": 1_500_000 * (minute % 3)}
                jobs = {"jobs_pending": minute, "gpus_pending": 1.5, **waits}
                store.record_site_figures(
                    clock.time,
                    {
                        Part.SITE: {"site": jobs, "pool/gpu": waits},
                        Part.MACHINES: {"site": {**money, "spent.EUR": 10_000 * minute},
                                        "pool/gpu": {"machines_busy": 4, **money}},
                        Part.PROJECTS: {f"project/{n}": {**jobs, **money} for n in "ab"} | {
                                        f"account/{n}": {**jobs, **money} for n in ("phys", "chem")},
                    },
                    thin=minute % 10 == 0,
                )  # fmt: skip
        with StoreReader.open(path, FixedClock()) as reader, serving_api(reader) as found:
            yield found


@pytest.fixture
def backend(served: tuple[FakeBackend, Path]) -> FakeBackend:
    projects = {n: Project(n, account, Fraction(4)) for n, account in (("a", "phys"), ("b", "chem"))}
    queue = (replace(JOBS[0], account="phys"), *JOBS[1:])
    assert JOBS[0].user == USER
    world = replace(SNAPSHOT, projects=ProjectsView(projects), slurm=replace(SLURM, jobs=queue))
    served[0].reset()
    served[0].loop = (world, PLAN)
    return served[0]


def ask(client: ApiTestClient, query: str = "") -> HistoryView:
    return HistoryView.model_validate(client.get(f"/v1/history?{query}"))


def names_of(found: HistoryView) -> set[str]:
    return {one.name for one in found.series} | {one.name for one in found.money}


def test_values_gaps_and_money(root: ApiTestClient, backend: FakeBackend) -> None:
    assert backend.loop is not None
    found = ask(root, f"since={BEGIN}&until={BEGIN + 3599}&series=site/*")
    series = {one.name: one for one in found.series}
    money = {one.name: one for one in found.money}
    assert (found.step_s, len(found.times), found.since.timestamp()) == (60, 60, BEGIN)
    pending = series["site/jobs_pending"].values
    assert pending == [None if n in GAP else n for n in range(60)]
    assert series["site/started"].values == [None if n in GAP else 2 * (n % 2) for n in range(60)]
    assert series["site/wait_s"].values == [None if n in GAP or not n % 2 else 45 for n in range(60)]
    assert series["site/wait_s"].peaks[1] == 80
    assert (series["site/wait_median_s"].values[:2], series["site/wait_p90_s"].values[:2]) == ([None, 16], [None, 80])
    spent = money["site/spent.EUR"]
    assert spent.values[:2] == [None, Decimal("0.01")], "what was spent before is not known"
    # What was spent in the gap is in the first step after it.
    assert spent.values[GAP.stop] == Decimal("0.11")
    assert money["site/money_per_hour.EUR"].values[1] == Decimal("1.5")
    raw = root.get(f"/v1/history?since={BEGIN}&series=site/spent.*")
    assert raw["money"][0]["values"][1] == "0.01"


def test_every_length_of_time_gives_few_points_that_agree(root: ApiTestClient, backend: FakeBackend) -> None:
    assert backend.loop is not None
    for since in (BEGIN, BEGIN - 3 * 86400, BEGIN - 40 * 86400, 0):
        found = ask(root, f"since={since}&series=site/started&series=pool/gpu/machines_busy")
        assert len(found.times) <= 501
        started, busy = found.series[1], found.series[0]
        assert (started.name, busy.name) == ("site/started", "pool/gpu/machines_busy")
        assert sum(value or 0 for value in started.values) == 50
        assert {value for value in busy.values if value is not None} == {4}


@pytest.mark.parametrize(
    "patterns", [["project/a/*"], ["project/a*", "site/wait_p90_s"], ["site/wait_s", "pool/gpu/wait_median_s"],
                 ["account/chem/money*", "project/b/started"], ["*_s"], ["site/*"], ["[ps]*/gpu/*", "provider/x/y"]],
)  # fmt: skip
def test_some_series_are_as_among_all(root: ApiTestClient, backend: FakeBackend, patterns: list[str]) -> None:
    assert backend.loop is not None
    whole = ask(root, f"since={BEGIN - 86400}&series=*")
    some = ask(root, f"since={BEGIN - 86400}&" + "&".join(f"series={p}" for p in patterns))
    assert some.series or some.money
    assert some.series == [s for s in whole.series if any(fnmatchcase(s.name, p) for p in patterns)]
    assert some.money == [s for s in whole.money if any(fnmatchcase(s.name, p) for p in patterns)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_who_sees_what(root: ApiTestClient, backend: FakeBackend, control: Path) -> None:
    everything = ask(root, "series=*")
    names = names_of(everything)
    assert {"site/spent.EUR", "project/b/wait_s", "account/chem/jobs_pending"} <= names
    with ApiTestClient(control, NOBODY) as client:
        seen = ask(client, "series=*")
    others = names_of(seen)
    hidden = {name for name in names if name.startswith(("project/b/", "account/chem/"))}
    assert names - others == hidden | {"site/spent.EUR"}
    assert {"project/a/wait_p90_s", "account/phys/gpus_pending", "pool/gpu/wait_median_s"} <= others
    assert {one.subject for one in ask(root).series} == {"site", "pool/gpu"}
    assert len(backend.commands) == 0


@pytest.mark.parametrize(
    ("query", "text"),
    [("since=2000&until=1000", "would end"), ("since=nan", "since"), ("&".join(["series=a"] * 11), "series"),
     (f"series={'a' * 201}", "series")],
)  # fmt: skip
def test_refusals(root: ApiTestClient, backend: FakeBackend, query: str, text: str) -> None:
    status, answer = root.request("GET", f"/v1/history?{query}")
    assert status == 422
    assert text in answer["error"]
    assert backend.commands == []


def test_nothing_on_record_is_no_error(root: ApiTestClient, backend: FakeBackend) -> None:
    assert ask(root, f"since=1&until={BEGIN - 100}").series == []
    assert ask(root, f"since={BEGIN - 90_000}&until={BEGIN - 86_400}").series == []
    assert ask(root, "series=[").series == []
    assert backend.commands == []
