"""The picture of what a job used: its scales."""

from __future__ import annotations

import pytest

from burstd.api.job_use_plot import time_ticks
from burstd.domain.units import memory_text
from burstd.plots.svg import value_ticks

NOON = 1_790_000_000.0 - 1_790_000_000.0 % 86400 + 43200


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (64 * 1024.0, ["0 B", "20 GiB", "40 GiB", "60 GiB"]),
        (3000.0, ["0 B", "1 GiB", "2 GiB"]),
        (500.0, ["0 B", "200 MiB", "400 MiB"]),
        (0.3, ["0 B", "102 KiB", "205 KiB", "307 KiB"]),
    ],
)
def test_memory_is_round_in_its_unit(most: float, ticks: list[str]) -> None:
    assert list(map(memory_text, value_ticks(most, memory_text))) == ticks


@pytest.mark.parametrize(
    ("most", "ticks"), [(8.0, [0, 2, 4, 6, 8]), (100.0, [0, 25, 50, 75, 100]), (3.0, [0, 1, 2, 3])]
)
def test_values_are_round(most: float, ticks: list[float]) -> None:
    assert value_ticks(most, "{:.3g}".format) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("begin", "length", "step", "first"),
    [
        (7.0, 100.0, 30.0, 30.0),
        (-100.0, 3 * 3600, 1800.0, 0.0),
        (1.0, 40 * 86400.0, 604800.0, None),
        (5, 1e15, 1e14, None),
    ],
)
def test_times_are_round_by_utc(begin: float, length: float, step: float, first: float | None) -> None:
    times = time_ticks(NOON + begin, length)
    assert 1 <= len(times) <= 7
    assert times[1] - times[0] >= step
    assert all(NOON + begin <= time <= NOON + begin + length for time in times)
    if first is not None:
        assert (times[1] - times[0], times[0] - NOON) == (step, first)
