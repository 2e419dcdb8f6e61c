"""Times as people write and read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.api.answers.text import (
    ago,
    duration_text,
    elapsed_text,
    local_time_text,
    parse_duration,
    parse_month,
    parse_time,
)
from burstd.domain.clock import utc_clock_text

NOW = datetime(2026, 11, 20, 23, 39, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("15min", 900), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("3d", 259200),
     ("1w", 604800), ("2 H", 7200)],
)  # fmt: skip
def test_lengths(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2x", "-2h", "2h!", "1h foo"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ValueError, match="is no length of time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [("2026-10", "2026-10-01", "2026-11-01"), ("2025-12", "2025-12-01", "2026-01-01"),
     ("2028-02", "2028-02-01", "2028-03-01")],
)  # fmt: skip
def test_months(text: str, since: str, until: str) -> None:
    assert parse_month(text) == (parse_time(since, zone=UTC), parse_time(until, zone=UTC))


@pytest.mark.parametrize("text", ["", "2026", "2026-13", "2026-10-01", "9999-12"])
def test_what_is_no_month(text: str) -> None:
    with pytest.raises(ValueError, match="is no month; write 2026-10"):
        parse_month(text)


@pytest.mark.parametrize(
    ("span", "text"),
    [(-5, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (3599, "59 min"), (3600, "1 h"), (7500, "2 h 5 min"),
     (86400, "1 d"), (90000, "1 d 1 h")],
)  # fmt: skip
def test_a_length_in_words(span: float, text: str) -> None:
    assert duration_text(span) == text


@given(st.floats(0, 10**7))
def test_words_say_the_length_to_their_last_unit(span: float) -> None:
    unit = 1 if span < 120 else 60 if span < 86400 else 3600
    assert abs(parse_duration(duration_text(span)) - span) <= unit


def test_times_are_counted_from_the_daemons_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    at, now = datetime.fromisoformat, datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    assert ago(at("2026-09-21T14:13:08.400000Z"), now) == "12 s ago"
    assert ago(None, now) == "never"
    assert elapsed_text(at("2026-09-21T14:13:30Z"), now) == "0 s"
    assert local_time_text(at("2026-09-21T14:13:08Z"), now) == "14:13:08"
    assert local_time_text(at("2026-09-20T14:13:08Z"), now) == "20 Sep 14:13:08"
    assert local_time_text(at("2025-09-20T14:13:08Z"), now) == "20 Sep 2025 14:13:08"
    assert utc_clock_text(NOW + 900, NOW, "%H:%M") == "23:54 UTC"
    assert utc_clock_text(NOW + 1800, NOW) == "2026-11-21 00:09:00 UTC"
    assert parse_time("2h", 10_000) == 2800
    assert parse_time("2026-09-21T14:00", 0) == parse_time("2026-09-21 14:00Z", 0) == 1_790_000_000 - 800
