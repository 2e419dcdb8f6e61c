"""Numbers that users cause are bounded where they enter."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.planner.staging.transfer_schedule import (
    MAX_ESTIMATE_S,
    MAX_INPUT_BYTES,
    TransferRates,
    ready_at,
    with_measurement,
)
from burstd.staging.controller.tasks import StageFailed
from burstd.staging.movement.transfers import _check_size
from burstd.transfer.trees.walk import Walk

NOW = 1_800_000_000.0
SIZES = st.integers(0, 2**80) | st.just(2**63)
SECONDS = st.floats() | st.sampled_from([5e-324, 1e-9, 1e300])


@given(sizes=st.lists(st.tuples(SIZES, SECONDS), max_size=5), left=SIZES, ahead=SIZES)
def test_an_estimated_time_is_one_that_a_calendar_has(sizes: list[tuple[int, float]], left: int, ahead: int) -> None:
    rates = TransferRates()
    for size, seconds in sizes:
        rates = with_measurement(rates, "store", "in", size, seconds)
    ready = ready_at(NOW, left, ahead, rates.rate("store", "in"))
    assert ready == 0.0 or NOW <= ready <= NOW + MAX_ESTIMATE_S + 1
    datetime.fromtimestamp(ready, UTC)


def test_a_slow_rate_gives_no_time_in_a_far_year() -> None:
    rates = with_measurement(TransferRates(), "store", "in", 8 << 20, 3600.0)
    assert ready_at(NOW, 2**62, 0, rates.rate("store", "in")) == 0.0
    assert ready_at(NOW, 1 << 20, 0, rates.rate("store", "in")) > NOW


@pytest.fixture
def sparse() -> Iterator[Path]:
    shm = Path("/dev/shm")  # noqa: S108  a file system with files of up to 2^63 - 1 bytes
    folder = shm / f"burstd-sparse-{os.getpid()}"
    folder.mkdir()
    try:
        for name in ("a", "b"):
            with (folder / name).open("wb") as file:
                file.truncate(2**63 - 1)
        yield folder
    finally:
        for name in ("a", "b"):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def test_a_file_that_can_only_be_sparse_is_not_read(sparse: Path) -> None:
    rows = [(row, fd) for row, fd in Walk(str(sparse)) if row[0] != "d"]
    assert rows == [(["e", "a", errno.EFBIG], -1), (["e", "b", errno.EFBIG], -1)]
    with pytest.raises(OSError, match="File too large"):
        next(iter(Walk(str(sparse / "a"))))


def test_sums_of_sizes_fit_the_record() -> None:
    _check_size(MAX_INPUT_BYTES)
    with pytest.raises(StageFailed, match="sparse files") as caught:
        _check_size(MAX_INPUT_BYTES + 1)
    assert not caught.value.retryable
    # What another job of the user has is added to it here and there.
    assert 7 * MAX_INPUT_BYTES < 2**63
