"""Jobs here beside there, by hand: measured, by like jobs, by others, or not known."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from operator import attrgetter

import pytest

from burstd.domain.billing.compare import LIKENESS, LIMITS, PARTIAL, Basis, Comparison, Place, PlacedRun, Side, compare
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.rates import Rates
from burstd.domain.billing.site_cost import HourCost, NodeGroup, SiteCosts
from burstd.domain.billing.site_prices import SitePrices, break_even, site_prices

HERE, THERE = Place.HERE, Place.THERE
OLD, CLOUD = "old", "EUR"


def ran(job: str, place: Place, wait_s: float, run_s: float, cents: int = 0, **fields: object) -> PlacedRun:
    """Submitted at 0 and held for 10 s; of ada, with 4 CPUs."""
    start, price = 10 + wait_s, OLD if place is HERE else CLOUD
    made = PlacedRun(
        job, "ada", "train", 1, 4, 0, place, 0.0, 10.0, start, start + run_s, start + run_s,
        {price: cents * 10_000} if cents else {},
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def other(run: PlacedRun, **fields: object) -> PlacedRun:
    """Of another user; it is not asked for."""
    return replace(run, user="bob", counted=False, **fields)  # type: ignore[arg-type]


def compared(*runs: PlacedRun) -> Comparison:
    return compare(sorted(runs, key=attrgetter(*LIKENESS, "job", "started")))


def figures(side: Side) -> tuple[float | Decimal, ...]:
    """Wait, run, submission to end, millionths of the cost."""
    return (
        side.wait.seconds,
        side.run.seconds,
        side.completion.seconds,
        sum(side.cost.amounts.values(), Decimal(0)) * MICRO,
    )


MEASURED = Basis(measured=1)


def test_a_job_that_ran_at_both_places_is_measured_at_both() -> None:
    found = compared(
        ran("1", THERE, 60, 100, 30), ran("1", HERE, 5, 200, 40, submitted=500.0, eligible=500.0, started=505.0,
                                          ended=705.0, delivered=705.0),
    )  # fmt: skip
    assert found.jobs == 1
    assert figures(found.there) == (60, 100, 170, Decimal("0.30"))
    assert figures(found.here) == (5, 200, 205, Decimal("0.40"))
    for side in (found.here, found.there):
        assert side.wait.basis == side.run.basis == side.completion.basis == side.cost.basis == MEASURED


def test_the_other_place_is_the_mean_of_like_jobs_there() -> None:
    found = compared(
        ran("1", HERE, 1000, 200, 40),
        ran("2", THERE, 60, 100, 30, counted=False),
        ran("3", THERE, 120, 140, 50, counted=False, delivered=310.0),  # 40 s later
        ran("4", THERE, 3, 5, 10, counted=False, nodes=2),  # not alike
        ran("5", THERE, 3, 5, 10, counted=False, name="eval"),
        ran("7", THERE, 3, 5, 10, counted=False, cpus=8),
        other(ran("6", THERE, 3, 5, 10)),
    )
    assert (found.jobs, figures(found.here)) == (1, (1000, 200, 1210, Decimal("0.40")))
    # Held for 10 s as it was, and the means of 90 s, 120 s and 20 s.
    assert figures(found.there) == (90, 120, 240, Decimal("0.40"))
    like = Basis(like=1, like_jobs=2)
    assert found.there.wait.basis == found.there.run.basis == found.there.completion.basis == like
    assert found.there.cost.basis == like
    assert not found.needs_others


def test_where_no_like_job_ran_others_tell_wait_speed_and_price() -> None:
    """bob's jobs run 0.5 as long there; there 8 CPUs for 100 s cost 16 cents, 0.02 for 100 s of a CPU."""
    others = (
        other(ran("2", HERE, 50, 200, cpus=8)),
        other(ran("3", THERE, 60, 100, 16, cpus=8)),
        other(ran("4", THERE, 20, 7, 99, gpus=2, name="gpu")),  # tells of jobs with GPUs
    )
    found = compared(ran("1", HERE, 1000, 300, 40), *others)
    assert figures(found.there) == (60, 150, 220, Decimal("0.12"))
    assert found.there.wait.basis == found.there.completion.basis == Basis(others=1, other_jobs=1)
    assert found.there.run.basis == found.there.cost.basis == Basis(others=1, other_jobs=1)
    back = compared(ran("1", THERE, 60, 150, 12), *others)
    assert figures(back.here)[:3] == (50, 300, 360)
    assert back.here.cost.basis == Basis(unknown=1)  # nothing here has a price


def test_without_a_speed_it_is_taken_to_be_the_same_and_what_nothing_tells_is_not_known() -> None:
    found = compared(ran("1", HERE, 1000, 300, 40), other(ran("3", THERE, 60, 100, 16, name="x")))
    assert found.there.run.seconds == 300
    assert found.there.run.basis == Basis(assumed=1)
    assert figures(found.there) == (60, 300, 370, Decimal("0.48"))
    alone = compared(ran("1", HERE, 1000, 300, 40)).there
    assert alone.wait.basis == alone.completion.basis == alone.cost.basis == Basis(unknown=1)
    assert (alone.run.seconds, alone.run.basis) == (300, Basis(assumed=1))
    assert not alone.cost.amounts
    assert found.needs_others


def test_without_others_what_no_like_job_tells_is_not_known() -> None:
    runs = [ran("1", HERE, 1000, 300, 40), ran("2", HERE, 5, 6, 7, name="x"), ran("3", THERE, 8, 9, 10, name="x")]
    found = compare(runs, by_others=False)
    assert (figures(found.here), figures(found.there)) == (
        (1010, 312, 1352, Decimal("0.54")), (16, 18, 54, Decimal("0.20"))
    )  # fmt: skip
    there = Basis(measured=1, like=1, like_jobs=1, unknown=1)
    assert {repr(getattr(found.there, name).basis) for name in ("wait", "run", "completion", "cost")} == {repr(there)}
    assert found.needs_others
    assert found.limits == (*LIMITS, PARTIAL)
    assert compare(runs[1:], by_others=False).limits == LIMITS


def test_sums_are_those_of_the_single_jobs() -> None:
    runs = [
        ran("1", HERE, 100, 200, 40), ran("2", THERE, 60, 100, 30), ran("3", THERE, 20, 120, 34),
        ran("4", HERE, 7, 90, 9, name="eval"), ran("5", HERE, 8, 30, name="eval"),
        ran("6", HERE, 9, 50, 6, gpus=1, name="gpu"), ran("7", THERE, 11, 70, 21, gpus=2, name="more"),
        other(ran("8", HERE, 5, 10, 1)), other(ran("9", THERE, 6, 30, 2)),
    ]  # fmt: skip
    whole = compared(*runs)
    single = [
        compared(*(replace(run, counted=run.job == job) for run in runs)) for job in "1234567"
    ]  # fmt: skip
    assert (whole.jobs, [one.jobs for one in single]) == (7, [1] * 7)
    for place in ("here", "there"):
        sums = [list(map(float, figures(getattr(one, place)))) for one in single]
        added = [sum(column) for column in zip(*sums, strict=True)]
        assert list(map(float, figures(getattr(whole, place)))) == pytest.approx(added), place
        for name in ("wait", "run", "completion", "cost"):
            basis = [getattr(getattr(one, place), name).basis for one in (whole, *single)]
            assert basis[0].known == sum(one.known for one in basis[1:])
            assert basis[0].unknown == sum(one.unknown for one in basis[1:])
            assert basis[0].known + basis[0].unknown == 7


def test_of_several_runs_at_a_place_the_last_one_counts() -> None:
    again = ran("1", HERE, 5, 200, 40, submitted=500.0, eligible=500.0, started=505.0, ended=705.0, delivered=705.0)
    found = compared(ran("1", HERE, 60, 100, 40), again)
    assert (found.jobs, figures(found.here)) == (1, (5, 200, 205, Decimal("0.40")))


# 2.45 an hour owned, 0.15 an hour of use: docs/money.md.
GPU = NodeGroup("gpu", ("gpu*",), HourCost("EUR", Decimal("2.45"), Decimal("0.15")))
PLAIN = NodeGroup("old", ("old*",), HourCost("EUR", Decimal(3), None))
COSTS = SiteCosts((GPU, PLAIN))
HALF = {"gpu": Decimal("0.5"), "old": Decimal("0.5")}


HOUR = Decimal(3_600_000)


def test_two_node_hours_at_each_price() -> None:
    found = site_prices({"gpu": 2 * HOUR}, COSTS, HALF, {})
    assert (found.owned, found.marginal, found.used) == ({"EUR": Decimal("4.9")}, {"EUR": Decimal("0.3")},
                                                         {"EUR": Decimal("10.10")})  # fmt: skip
    assert not found.reason + found.used_reason + found.marginal_reason
    assert site_prices({"gpu": HOUR}, COSTS, {}, {}).used_reason
    assert "does not say" in site_prices({"old": HOUR}, COSTS, HALF, {}).marginal_reason
    assert "no group new" in site_prices({"new": HOUR}, COSTS, HALF, {}).reason


@pytest.mark.parametrize("currency", ["EUR", "USD"])
def test_prices_are_those_of_now(currency: str) -> None:
    """Two hours that were charged at 2.60 EUR, and the prices have doubled since; for each of two GPUs the half."""
    now = HourCost(currency, Decimal("4.90"), Decimal("0.30"))
    for hour, gpus in ((now, {}), (HourCost(currency, Decimal("2.45"), Decimal("0.15"), per_gpu=True), {"gpu": 2})):
        found = site_prices({"gpu": 2 * HOUR}, SiteCosts((replace(GPU, hour=hour),)), HALF, gpus)
        assert (found.owned, found.marginal, found.used) == (
            {currency: Decimal("9.80")}, {currency: Decimal("0.60")}, {currency: Decimal("20.20")}
        )  # fmt: skip
    per_gpu = SiteCosts((replace(GPU, hour=replace(now, per_gpu=True)),))
    assert "different numbers of GPUs" in site_prices({"gpu": HOUR}, per_gpu, HALF, {}).reason


@pytest.mark.parametrize(
    ("hours", "there", "rates", "found", "reason"),
    [
        # 4.90 EUR owned, by what is left of 10.10 EUR without the 0.30 EUR of use.
        (2, {"EUR": "10.10"}, Rates(), "0.5", ""),
        (2, {"EUR": "5.20"}, Rates(), "1", ""),
        (2, {"EUR": "5.19"}, Rates(), None, "renting is cheaper"),
        (2, {"USD": "20.20"}, Rates(), None, "no rate between EUR and USD"),
        (2, {"USD": "20.20"}, Rates("EUR", worth={"USD": Decimal("0.5")}), "0.5", ""),
        (0, {"EUR": "1"}, Rates(), None, "not known"),
        (2, {}, Rates(), None, "not known"),
    ],
)
def test_break_even(hours: int, there: dict[str, str], rates: Rates, found: str | None, reason: str) -> None:
    prices = site_prices({"gpu": hours * HOUR} if hours else {}, COSTS, HALF, {})
    got, why = break_even(prices, {currency: Decimal(amount) for currency, amount in there.items()}, rates)
    assert got == (None if found is None else Decimal(found))
    assert reason in why
    assert bool(why) == (got is None)


def test_a_price_that_is_gone_gives_no_break_even() -> None:
    assert break_even(SitePrices(reason="gone"), {"EUR": Decimal(1)}, Rates()) == (None, "gone")
