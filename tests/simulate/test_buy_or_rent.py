"""More GPUs, bought or rented for good, beside bursting: figures reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from math import inf
from pathlib import Path

import pytest

from burstd.cli.offline.buy_or_rent import print_buy_or_rent
from burstd.domain.billing.rates import Rates
from burstd.domain.billing.site_cost import CostParts, HourCost, NodeGroup, SiteCosts, plain_hour
from burstd.settings import PluginRegistry
from burstd.simulate.buy_or_rent.alternatives import (
    AddedReplay,
    added_replay,
    alternatives_of,
    break_even,
    cheapest,
    cloud_hour,
)
from burstd.simulate.buy_or_rent.prices import (
    BuyOrRentError,
    Commitment,
    Prices,
    Way,
    chosen_group,
    parse_commitments,
    prices_of,
)
from burstd.simulate.buy_or_rent.replay import Question, replay_buy_or_rent
from burstd.simulate.buy_or_rent.report import BuyOrRentReport
from burstd.simulate.report.result import SimulatedJobRun, TraceWindow
from burstd.simulate.study import Study, prepare_study
from burstd.simulate.traces.trace_job import Trace, TraceJob
from tests.simulate.test_report import result

START = 1_507_420_800.0  # 2017-10-08 00:00 UTC
HOUR = 3600.0
WINDOW = TraceWindow(START, START + 100 * HOUR)
OWNED = Way("bought", HourCost("EUR", Decimal("0.50"), Decimal("0.10"), per_gpu=True))
RENTED = Way("1y", HourCost("EUR", Decimal("1.00"), Decimal(0), per_gpu=True))
PRICES = Prices("EUR", (OWNED, RENTED), Decimal(1))
NODE = NodeGroup("gpu", ("gpu*",), CostParts(Decimal(87600), Decimal(5)).hour("EUR"))


def run(submitted: float, start: float, end: float, gpus: int, *nodes: int) -> SimulatedJobRun:
    """Times in hours from the beginning of the window."""
    submitted, start, end = (START + hours * HOUR for hours in (submitted, start, end))
    return SimulatedJobRun("1", submitted, start, end, gpus, max(1, len(nodes)), burst=not nodes, site_nodes=nodes)


def row(*figures: object) -> tuple[object, ...]:
    """To be compared whatever the types of the numbers."""
    return figures


def replayed(units: int, *, burst: bool, **figures: float | Decimal) -> AddedReplay:
    plain = AddedReplay(units, burst, 10, 0, 0.0, 60.0, 3600.0, 0.0, 0.0, 0.0, Decimal(0))
    return replace(plain, **figures)  # type: ignore[arg-type]


NO_CLOUD = replayed(0, burst=False, p90_wait_s=7200.0)
BURST = replayed(0, burst=True, cloud_used_h=400.0, cloud_cost=Decimal(1200))
MORE = replayed(8, burst=False, p90_wait_s=600.0, inside_h=320.0, after_h=20.0)
MORE_AND_BURST = replayed(8, burst=True, inside_h=300.0, after_h=0.0, cloud_used_h=120.0, cloud_cost=Decimal(370))


def test_use_of_added_nodes_within_the_window_and_after_it() -> None:
    jobs = (
        run(0, 0, 10, 8, 1),  # 80 GPU-hours on the added node 1
        run(0, 1, 5, 8, 0),  # on a node of before
        run(1, 98, 103, 16, 0, 1),  # half of it on node 1: 8 x 2 h within, 8 x 3 h after
        run(90, 101, 102, 4, 1),  # 4 GPU-hours after
    )
    made = replace(result("never", cloud_busy_gpu_hours=7.0, cost=Decimal("9.50")), jobs=jobs)
    found = added_replay(8, made, 1, WINDOW, burst=True)
    assert (found.inside_h, found.after_h) == (96.0, 28.0)
    assert (found.p50_wait_s, found.p90_wait_s) == (1 * HOUR, 97 * HOUR)
    assert found.mean_completion_s == (10 + 5 + 102 + 12) * HOUR / 4
    assert (found.jobs, found.unfinished, found.cloud_used_h, found.cloud_cost) == (4, 0, 7.0, Decimal("9.50"))


def test_jobs_that_never_start_count_as_waits_without_end() -> None:
    jobs = (*(run(0, 0, 1, 8, 0) for _ in range(8)), *(run(0, inf, inf, 8) for _ in range(2)))
    found = added_replay(0, replace(result("never"), jobs=jobs), 1, WINDOW, burst=False)
    assert (found.p50_wait_s, found.p90_wait_s, found.mean_completion_s, found.unfinished) == (0.0, inf, inf, 2)


def test_costs_by_hand() -> None:
    found = alternatives_of([MORE_AND_BURST, BURST, NO_CLOUD, MORE], PRICES, WINDOW)
    table = {(one.replay.units, one.way and one.way.name, one.replay.burst): one for one in found}
    assert [*table] == [
        (0, None, False), (0, None, True), (8, "bought", False), (8, "bought", True), (8, "1y", False), (8, "1y", True),
    ]  # fmt: skip
    # 8 GPUs for 100 h, and 20 h after: 820 x 0.50; used for 340 h: x 0.10.
    bought = table[8, "bought", False]
    assert row(bought.cost, bought.marginal, bought.utilisation, bought.replaced) == (444, 34, 0.4, None)
    assert bought.cost_per_used == Decimal(444) / 340
    assert bought.marginal_per_used == Decimal("0.1")
    # 800 x 0.50, 300 x 0.10, and the cloud's 370; it did 280 h less than alone, of 800.
    mixed = table[8, "bought", True]
    assert row(mixed.cost, mixed.marginal, mixed.utilisation, mixed.replaced) == (800, 400, 0.375, 0.35)
    assert mixed.cost_per_used == Decimal(800) / 420
    # After the window its hours are paid for too: 280 of 820.
    after = alternatives_of([BURST, replace(MORE_AND_BURST, after_h=20.0)], PRICES, WINDOW)[1]
    assert row(after.paid_h, after.replaced, after.cost) == (820.0, 280 / 820, 800 + 10 + 2)
    # A commitment is paid whether it is used or not: use adds nothing.
    assert row(table[8, "1y", False].cost, table[8, "1y", False].marginal) == (820, 0)
    assert row(table[8, "1y", True].cost, table[8, "1y", True].marginal) == (1170, 370)
    assert row(table[0, None, True].cost, table[0, None, True].cost_per_used) == (1200, 3)
    assert row(table[0, None, False].cost, table[0, None, False].cost_per_used) == (0, None)
    # An hour in the cloud came to 3 EUR: 0.50 / (3 - 0.10), 1 / 3.
    cloud = cloud_hour(BURST, Decimal(1))
    assert break_even(OWNED.hour, cloud) == Decimal("0.5") / Decimal("2.9")
    assert break_even(RENTED.hour, cloud) == Decimal(1) / 3
    assert cloud_hour(NO_CLOUD, Decimal(1)) is None
    assert break_even(OWNED.hour, None) is None


def test_a_cost_that_is_not_known_is_not_taken_for_nothing() -> None:
    whole = Way("bought", plain_hour("EUR", Decimal("0.60"), None, per_gpu=True))
    found = alternatives_of([NO_CLOUD, BURST, MORE, MORE_AND_BURST], Prices("EUR", (whole,), Decimal(2)), WINDOW)
    bought, mixed = found[2:]
    assert row(bought.cost, bought.marginal, bought.marginal_per_used) == (492, None, None)
    assert row(mixed.cost, mixed.marginal) == (480 + 740, None)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, (8, "bought", True)),
        # Without a cloud for less, and no wait longer.
        ({"more": {"p90_wait_s": 60.0}}, (8, "bought", False)),
        ({"more": {"p90_wait_s": 60.0, "unfinished": 1}}, (8, "bought", True)),
        ({"more": {"p90_wait_s": 0.0, "p50_wait_s": 1.0}}, (8, "bought", True)),
        # The mix lets jobs wait longer.
        ({"mixed": {"p90_wait_s": 61.0}}, (0, None, True)),
        ({"mixed": {"cloud_cost": Decimal(900)}}, (0, None, True)),
    ],
)
def test_the_cheapest_with_waits_not_longer_than_bursting(
    changed: dict[str, dict[str, float]], found: tuple[int, str | None, bool]
) -> None:
    more = replace(MORE, **changed.get("more", {}))  # type: ignore[arg-type]
    mixed = replace(MORE_AND_BURST, **changed.get("mixed", {}))  # type: ignore[arg-type]
    some = alternatives_of([NO_CLOUD, BURST, more, mixed], PRICES, WINDOW)
    best = cheapest(some)
    assert (best.replay.units, best.way and best.way.name, best.replay.burst) == found


def test_prices_of_a_node_and_of_commitments() -> None:
    found = prices_of(NODE, parse_commitments(["1y=1.20", "3y=0.90 EUR"]), "EUR", Rates(), 8)
    assert [row(way.name, way.hour.owned, way.hour.marginal) for way in found.ways] == [
        ("bought", Decimal("0.25"), 0), ("1y", Decimal("1.20"), 0), ("3y", Decimal("0.90"), 0),
    ]  # fmt: skip
    assert row(found.currency, found.cloud_worth, found.note) == ("EUR", 1, "")
    gpu = NodeGroup("gpu", ("*",), plain_hour("EUR", Decimal("0.60"), Decimal("0.10"), per_gpu=True))
    assert prices_of(gpu, (), "EUR", Rates(), 8).ways[0].hour == gpu.hour


def test_several_currencies_are_compared_at_the_rates_of_the_site() -> None:
    rates = Rates("EUR", date(2026, 11, 1), {"USD": Decimal("0.80")})
    found = prices_of(NODE, [Commitment("1y", Decimal(2), "")], "USD", rates, 8)
    assert (found.currency, found.cloud_worth) == ("EUR", Decimal("0.80"))
    assert [(way.hour.currency, way.hour.owned) for way in found.ways] == [
        ("EUR", Decimal("0.25")),
        ("EUR", Decimal("1.60")),
    ]
    assert found.note == "rates of 2026-11-01: 1 USD = 0.80 EUR"
    with pytest.raises(
        BuyOrRentError, match=r"prices of clouds are in USD, \[site.cost.gpu\] is in EUR: say what USD is"
    ):
        prices_of(NODE, (), "USD", Rates(), 8)
    with pytest.raises(BuyOrRentError, match=r"--committed 1y is in CHF, .* say what CHF is worth in \[rates\]"):
        prices_of(NODE, [Commitment("1y", Decimal(2), "CHF")], "EUR", rates, 8)


@pytest.mark.parametrize(
    "text", ["1y", "1y=", "=2", "1y=-2", "1y=2 euro", "1y=nan", "1y=1e3", "one year=2", "1y=2  EUR"]
)
def test_commitments_that_are_none(text: str) -> None:
    with pytest.raises(BuyOrRentError, match="is no price: write NAME=PRICE"):
        parse_commitments([text])


def test_a_name_is_given_once() -> None:
    for texts in (["1y=1", "1y=2"], ["bought=1"]):
        with pytest.raises(BuyOrRentError, match="give it another name"):
            parse_commitments(texts)


def test_the_group_is_named_or_the_only_one() -> None:
    other = NodeGroup("old", ("old*",), plain_hour("EUR", Decimal(1), None, per_gpu=True))
    assert chosen_group(SiteCosts(), "", "gpu") is None
    assert chosen_group(SiteCosts((NODE,)), "", "gpu") is NODE
    assert chosen_group(SiteCosts((NODE, other)), "old", "gpu") is other
    for costs, name, unit, says in (
        (SiteCosts((NODE, other)), "", "gpu", "give --site-cost with one of gpu, old"),
        (SiteCosts((NODE,)), "gpus", "gpu", r"has no \[site.cost.gpus\], it has gpu"),
        (SiteCosts((other,)), "", "cpu", "the trace has none: give node_hour"),
    ):
        with pytest.raises(BuyOrRentError, match=says):
            chosen_group(costs, name, unit)  # type: ignore[arg-type]


def asked(added: list[int], *, days: float = 10 / 24, **changed: object) -> BuyOrRentReport:
    """Two jobs of 8 GPUs and an hour that come at once, to a node with 8 GPUs; a window of ten hours."""
    jobs = tuple(TraceJob(name, START, HOUR, gpus=8, account="a") for name in "12")
    study = Study(
        trace=Path("two.csv"), chains=("idle(keep_alive_s=0)",), nodes=1, size=8, days=days, boot_s=0.0, staging_s=0.0,
        start=START,
    )  # fmt: skip
    prepared = prepare_study(replace(study, **changed), PluginRegistry.installed(), Trace(jobs, "philly"))  # type: ignore[arg-type]
    return replay_buy_or_rent(prepared, Question(added, "", (Commitment("1y", Decimal("0.50"), ""),)))


def test_two_jobs_on_paper() -> None:
    found = asked([8, 16])
    rows = {(one.added, one.burst): one for one in found.alternatives}
    alone, one_more, mixed, two_more = rows[0, False], rows[8, False], rows[8, True], rows[16, False]
    assert row(alone.p50_wait_s, alone.p90_wait_s, alone.mean_completion_s, alone.cost) == (0, 3600, 5400, 0)
    # 8 GPUs for ten hours at 0.50; eight GPU-hours of it are used.
    assert row(one_more.p90_wait_s, one_more.mean_completion_s, one_more.cost) == (0, 3600, 40)
    assert row(one_more.utilisation, one_more.used_hours, one_more.cost_per_used, one_more.marginal) == (0.1, 8, 5, 0)
    assert row(two_more.utilisation, two_more.cost) == (0.05, 80)
    # The second job ran in the cloud for an hour, at 8 x 2.50; then a loop finds its machine idle.
    burst = rows[0, True]
    assert (burst.used_hours, burst.p50_wait_s) == (8, 0)
    assert 20 <= burst.cost < 22
    assert row(mixed.replaced, mixed.cloud_cost, rows[16, True].replaced) == (0.1, 0, 0.05)
    (way,) = found.ways
    assert found.cloud_hour is not None
    assert way.break_even == pytest.approx(0.5 / float(found.cloud_hour), abs=1e-3)
    shares = "10 % with 8 more, 5 % with 16 more (0 % of the last 8)"
    assert found.verdict[1] == f"So much of their hours would have been used in its place: {shares}."
    assert found.verdict[2].startswith(
        "Cheapest with waits (median, 90 %) not longer than with bursting alone: bursting alone, 2"
    )
    assert found.verdict[2].endswith(" EUR in 0.42 days.")


def test_a_window_that_is_used_makes_renting_pay() -> None:
    found = asked([8], days=1 / 24)
    (best,) = [one for one in found.alternatives if one.cheapest]
    assert row(best.name, best.added, best.cost, best.utilisation) == ("1y", 8, 4, 1)
    assert found.verdict[0].startswith("Renting by 1y pays when about 2")
    assert "8 more, 1y, 4.00 EUR (marginal 0.00) in 0.04 days; bursting alone costs 2" in found.verdict[2]


def test_a_commitment_dearer_than_the_cloud_never_pays() -> None:
    found = asked([8], price=Decimal("0.10"))
    assert found.ways[0].break_even is None
    assert found.verdict[0].startswith("Renting by 1y never pays: an hour costs 0.50 EUR used or not, and a used hour")


def test_without_a_job_in_the_cloud_there_is_nothing_to_replace() -> None:
    found = asked([8], nodes=2)
    assert found.cloud_hour is None
    assert found.verdict[0].startswith("Renting by 1y has nothing to replace: no job ran in a cloud")
    assert len(found.verdict) == 2


def test_a_narrow_window_has_every_figure_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_buy_or_rent(asked([8]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("GPUs")] == ["GPUs", "GPUs"]
    assert [line.split() for line in lines if line.startswith("  +8  1y  ")] == [
        ["+8", "1y", "0", "s", "0", "s", "60.0", "min", "10", "%", "\N{EN DASH}"],
        ["+8", "1y", "40.00", "0.00", "5.00", "0.00"],
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("added", "changed", "says"),
    [
        ([8, 12], {}, "12 GPUs are no whole number of nodes with 8 each; give multiples of it, or --gpus-per-node"),
        ([8], {"chains": ("never",)}, "--policy never has no cloud to compare with"),
    ],
)
def test_what_cannot_be_compared(added: list[int], changed: dict[str, object], says: str) -> None:
    with pytest.raises(BuyOrRentError, match=says):
        asked(added, **changed)  # type: ignore[arg-type]
