"""burstd's own time, over the lives of the process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.daemon.app import set_clock
from burstd.db import Store
from burstd.runtime.clock import CLOCK_KEY, CLOCK_TRUSTED_KEY, ClockCheckpoint, SteadyClock, clock_alarm, resumed_time

DAY = 86400.0
NOW = 1_800_000_000.0
HERE = ClockCheckpoint("this-boot", 5000.0, NOW)


@pytest.mark.parametrize(
    ("case", "wall", "mark", "last", "owed", "expected"),
    [
        ("first start", NOW, None, 0.0, False, NOW),
        ("same boot, all is well", NOW, ClockCheckpoint("this-boot", 4000.0, NOW - 1000), NOW - 900, True, NOW),
        ("a second of NTP is followed", NOW + 1, ClockCheckpoint("this-boot", 4000.0, NOW - 1000), NOW, True, NOW + 1),
        ("40 days ahead", NOW + 40 * DAY, ClockCheckpoint("this-boot", 4000.0, NOW - 1000), NOW - 900, True, NOW),
        ("40 days back", NOW - 40 * DAY, ClockCheckpoint("this-boot", 4000.0, NOW - 1000), NOW - 900, True, NOW),
        ("another boot, an hour away", NOW, ClockCheckpoint("old", 9e6, NOW - DAY), NOW - 3600, True, NOW),
        (
            "another boot, 40 days on, machines",
            NOW + 40 * DAY,
            ClockCheckpoint("old", 9e6, 0),
            NOW - 60,
            True,
            NOW - 60,
        ),
        ("another boot, 40 days on, no machine", NOW + 40 * DAY, None, NOW - 60, False, NOW + 40 * DAY),
        ("another boot, a record ahead", NOW, ClockCheckpoint("old", 9e6, 0), NOW + 40 * DAY, False, NOW + 40 * DAY),
    ],
)
def test_the_time_at_a_start(
    case: str, wall: float, mark: ClockCheckpoint | None, last: float, owed: bool, expected: float
) -> None:
    assert resumed_time(wall, HERE, mark, last, has_live_claims=owed) == expected, case


@given(walls=st.lists(st.floats(0, 4e9), min_size=1, max_size=6), away=st.floats(0, 1e6))
def test_within_one_boot_no_system_time_makes_durations_wrong(walls: list[float], away: float) -> None:
    """Each restart follows the system's clock by OFF_S at the most."""
    mark, steady, last = ClockCheckpoint("b", 100.0, NOW), 100.0, NOW
    for wall in walls:
        steady += away
        here = ClockCheckpoint("b", steady, 0.0)
        at = resumed_time(wall, here, mark, last, has_live_claims=True)
        assert abs((at - mark.time) - away) <= 60.0 + 1e-3
        assert at >= last
        mark, last = ClockCheckpoint("b", steady, at), at


@pytest.mark.parametrize("off", [0.0, 59.0, -59.0])
def test_a_small_difference_is_no_alarm(off: float) -> None:
    assert clock_alarm(NOW + off, NOW) == ""


def test_an_alarm_names_both_remedies() -> None:
    text = clock_alarm(NOW + 40 * DAY, NOW)
    assert "40.0 d ahead of" in text
    assert "timedatectl" in text
    assert "burstctl confirm clock" in text
    assert "behind" in clock_alarm(NOW, NOW + 3600)


def test_time_goes_on_by_the_steady_clock_although_the_system_was_set(tmp_path: Path) -> None:
    path, off = tmp_path / "burstd.db", 0.0

    def life() -> SteadyClock:
        clock = SteadyClock(wall=lambda: time.time() + off)
        with Store.open(path, clock) as store:
            set_clock(clock, store)
            store.log_event("daemon", new="started")
            assert ClockCheckpoint.parse(store.metadata(CLOCK_KEY)) is not None
        return clock

    begun = life().now()
    for wrong in (40 * DAY, -40 * DAY, 0.0):
        off = wrong
        assert begun <= life().now() < begun + 60


def test_a_system_clock_that_is_trusted_is_followed_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "burstd.db"
    ahead = SteadyClock(wall=lambda: time.time() + 40 * DAY)
    with Store.open(path, ahead) as store:
        set_clock(ahead, store)
        store.set_metadata(CLOCK_TRUSTED_KEY, "yes")
    clock = SteadyClock()
    with Store.open(path, clock) as store:
        set_clock(clock, store)
        assert abs(clock.now() - time.time()) < 60
        assert store.last_event_time() <= clock.now()
        assert not store.metadata(CLOCK_TRUSTED_KEY)
