"""burstctl compare: the example of docs/money.md, and who sees what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.domain.billing.site_cost import SiteCosts
from tests.api.compared_jobs import serving_compared_jobs
from tests.api.fake_backend import FakeBackend
from tests.cli.conftest import NOBODY, Run, as_user

DOCS = (Path(__file__).parents[2] / "docs/money.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def socket() -> Iterator[tuple[FakeBackend, Path]]:
    with serving_compared_jobs() as served:
        yield served


def test_the_example_of_the_docs(run: Run, socket: tuple[FakeBackend, Path]) -> None:
    found = run("compare", "17", socket=socket[1], columns=118)
    assert found.code == 0, found.err
    printed = "\n".join(line.rstrip() for line in found.out.strip().splitlines())
    assert f"$ burstctl compare 17\n{printed}\n" in DOCS, printed


def test_figures_by_hand(run: Run, socket: tuple[FakeBackend, Path]) -> None:
    answer = json.loads(run("compare", "17", "--json", socket=socket[1]).out)
    here, there = answer["here"], answer["there"]
    assert [answer[key] for key in ("job", "name", "user", "jobs")] == ["17", "train.sh", "ada", 1]
    assert [here[key]["seconds"] for key in ("wait", "run", "completion")] == [11_400, 7200, 18_600]
    assert [there[key]["seconds"] for key in ("wait", "run", "completion")] == [300, 5700, 6000]
    # Two hours of 2.45 / 0.5 + 0.15 and of 0.15; the mean of 1.5 h of 4.00 and 1 h 40 min of 3.84.
    assert here["used"]["costs"] == [{"amount": "10.100000", "currency": "EUR"}]
    assert here["marginal"]["costs"] == [{"amount": "0.300000", "currency": "EUR"}]
    assert there["charged"]["costs"] == [{"amount": "6.200000", "currency": "EUR"}]
    assert (here["used"]["basis"]["measured"], there["charged"]["basis"]["like_jobs"]) == (1, 2)
    assert answer["groups"] == [
        {"group": "gpu", "nodes": 4, "since": "2026-09-20T00:00:00Z", "utilisation": "0.5"}
    ]  # fmt: skip
    assert (answer["break_even"], answer["break_even_reason"]) == ("0.830508", "")


def test_sums_of_a_month(run: Run, socket: tuple[FakeBackend, Path]) -> None:
    for words in (["--month", "2026-09"], ["--user", "ada"], ["--project", "atlas", "--user", "ada"]):
        answer = json.loads(run("compare", *words, "--json", socket=socket[1]).out)
        # Measured of one, and twice the like one here; 11_400 s and 600 s there, and their mean.
        assert answer["jobs"] == 3, words
        assert (answer["here"]["wait"]["seconds"], answer["there"]["wait"]["seconds"]) == (34_200, 900)
        assert answer["here"]["wait"]["basis"]["measured"] == 1
        assert answer["there"]["charged"]["costs"] == [{"amount": "18.600000", "currency": "EUR"}]
    for words in (["--project", "belle"], ["--month", "2026-08"]):
        found = run("compare", *words, socket=socket[1])
        assert (found.code, found.out.partition(" that ended")[0].split()[:2]) == (0, ["0", "jobs"])


def test_without_prices_there_is_no_cost_here(
    run: Run, socket: tuple[FakeBackend, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket[0], "site_costs", SiteCosts)
    found = run("compare", "17", socket=socket[1]).out
    assert "not known: [site.cost] has no group gpu any more" in " ".join(found.split())
    assert "No break-even: [site.cost] has no group gpu any more." in found


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["99"], 5, "No run of job 99 that is over is on record. Of an array name a task: 99_1."),
        (["17", "--user", "ada"], 2, "Say a job, or --user, --project and --month."),
        (["--month", "2026-13"], 2, "2026-13' is no month"),
        (["--month", "2026-10"], 2, "must end later than it begins"),
    ],
)
def test_what_is_refused(run: Run, socket: tuple[FakeBackend, Path], words: list[str], code: int, says: str) -> None:
    found = run("compare", *words, socket=socket[1])
    assert (found.code, says in found.err) == (code, True), found.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_others_see_their_own_jobs_only(run: Run, socket: tuple[FakeBackend, Path]) -> None:
    run("compare", socket=socket[1])
    with as_user(NOBODY):
        found = [run("compare", *words, socket=socket[1]) for words in (["17"], ["--user", "ada"], [])]
    assert [one.code for one in found] == [5, 4, 0]
    assert found[2].out.startswith("0 jobs of nobody that ended")
