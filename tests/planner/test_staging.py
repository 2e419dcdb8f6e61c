"""Which transfers begin, what is evicted, how fast stores are, when a node is started for an input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.units import parse_size, size_text, span_text
from burstd.planner.staging.transfer_schedule import (
    BOOT_S,
    CachedTree,
    PendingTransfer,
    StorageUse,
    TransferLimits,
    TransferRates,
    beyond_quota,
    boot_estimate,
    evictable,
    latest_boot_start,
    next_transfers,
    quota_shortage,
    ready_at,
    with_measurement,
)

NOW = 1_000_000.0
GB = 1 << 30
LIMITS = TransferLimits(site=3, per_user=2)


def one(name: str, user: str = "ada", size: int = GB, age: float = 0.0) -> PendingTransfer:
    return PendingTransfer(name, user, size, NOW - age)


@pytest.mark.parametrize(
    ("case", "waiting", "under_way", "expected"),
    [
        ("nothing waits", [], [one("a")], ()),
        ("small before large of one user", [one("big", size=9 * GB), one("small", size=1)], [], ("small", "big")),
        ("alike: the older", [one("a", size=9), one("b", size=9, age=5)], [], ("b", "a")),
        ("no more than a user may", [one("a"), one("b"), one("c")], [one("x")], ("a",)),
        ("no more than the site may", [one("a"), one("b", "bob")], [one("x", "eve"), one("y", "eve")], ("a",)),
        ("full", [one("a")], [one("x", "x"), one("y", "y"), one("z", "z")], ()),
        ("who has least under way comes first", [one("a"), one("b", "bob", 5 * GB)], [one("x")], ("b", "a")),
        ("users take turns", [*(one(f"a{n}") for n in range(9)), one("b", "bob")], [], ("a0", "b", "a1")),
        (
            "ten thousand files do not starve a small input",
            [*(one(f"a{n:04}", size=1, age=3000) for n in range(10_000)), one("b", "bob", size=GB)],
            [one("x", size=900 * GB), one("y", "eve")],
            ("b",),
        ),
        ("age outweighs size", [one("big", size=GB, age=30_000), one("small", size=GB // 10)], [], ("big", "small")),
    ],
)
def test_turns(
    case: str, waiting: list[PendingTransfer], under_way: list[PendingTransfer], expected: tuple[str, ...]
) -> None:
    assert next_transfers(waiting, under_way, LIMITS) == expected, case


def test_what_a_user_moved_of_late_counts() -> None:
    waiting = [one("a"), one("b", "bob")]
    assert next_transfers(waiting, [], TransferLimits(1, 1)) == ("a",)
    assert next_transfers(waiting, [], TransferLimits(1, 1), {"ada": 50 * GB}) == ("b",)


def test_nobody_waits_for_ever_while_newcomers_keep_coming() -> None:
    """One lane; a user who has moved much against a stream of users who have moved nothing."""
    hog = one("hog", "ada", 10 * GB)
    for minute in range(24 * 60):
        stream = PendingTransfer(f"s{minute}", f"u{minute}", 1, NOW + 60 * minute)
        if next_transfers([hog, stream], [], TransferLimits(1, 1), {"ada": 100 * GB}) == ("hog",):
            return
    pytest.fail("it waited for a day")


waitings = st.builds(
    PendingTransfer,
    st.uuids().map(str),
    st.sampled_from(["ada", "bob", "eve"]),
    st.integers(0, 1 << 50),
    st.floats(0, 1e9),
)


@given(st.lists(waitings, max_size=12), st.lists(waitings, max_size=6), st.integers(1, 6), st.integers(1, 3))
def test_turns_keep_within_the_limits_and_leave_no_lane_empty(
    waiting: list[PendingTransfer], under_way: list[PendingTransfer], site: int, per_user: int
) -> None:
    begun = next_transfers(waiting, under_way, TransferLimits(site, per_user))
    user = {w.id: w.user for w in waiting}
    assert len(begun) == len(set(begun))
    assert len(begun) <= max(0, site - len(under_way))
    room = {u: max(0, per_user - sum(w.user == u for w in under_way)) for u in ("ada", "bob", "eve")}
    for name, most in room.items():
        assert sum(user[b] == name for b in begun) <= most
    possible = sum(min(room[u], sum(w.user == u for w in waiting)) for u in room)
    assert len(begun) == min(max(0, site - len(under_way)), possible)


MIB = 1 << 20


def test_rates_follow_what_is_seen() -> None:
    rates = with_measurement(TransferRates(), "s3", "in", 1000 * MIB, 10.0)
    assert rates.rate("s3", "in") == pytest.approx(100.0 * MIB)
    assert (rates.rate("s3", "home"), rates.rate("ssh", "in")) == (0.0, 0.0)
    assert with_measurement(with_measurement(rates, "s3", "in", 0, 5.0), "s3", "in", 7 * MIB, 600.0) == rates, (
        "small ones tell of their beginnings"
    )
    faster = with_measurement(rates, "s3", "in", 240_000 * MIB, 240.0)
    assert 950 * MIB < faster.rate("s3", "in") < 1000 * MIB
    blip = with_measurement(faster, "s3", "in", 8 * MIB, 1.0)
    assert blip.rate("s3", "in") > 0.98 * faster.rate("s3", "in")


@given(st.lists(st.tuples(st.integers(8 * MIB, 1 << 40), st.floats(0.001, 1e5)), min_size=1))
def test_a_rate_lies_between_what_was_seen(moved: list[tuple[int, float]]) -> None:
    rates = TransferRates()
    for size, seconds in moved:
        rates = with_measurement(rates, "s", "in", size, seconds)
    each = [size / seconds for size, seconds in moved]
    assert min(each) * 0.999 <= rates.rate("s", "in") <= max(each) * 1.001


def test_estimates() -> None:
    assert ready_at(NOW, 900, 100, 10.0) == NOW + 100
    assert ready_at(NOW, 900, 0, 0.0) == 0.0
    assert ready_at(NOW, 0, 0, 0.0) == NOW
    assert latest_boot_start(NOW, NOW + 180, 40) == NOW + 140
    assert latest_boot_start(NOW, NOW + 10, 40) == NOW
    assert latest_boot_start(NOW, 0.0, 40) == NOW
    assert boot_estimate([]) == BOOT_S
    assert boot_estimate([40, 45, 900]) == 45


def tree(name: str, size: int = 10, idle: float = 0.0) -> CachedTree:
    return CachedTree(name, size, NOW - idle)


@pytest.mark.parametrize(
    ("case", "trees", "needed", "keep", "expected"),
    [
        ("all is young and fits", [tree("a"), tree("b")], "", 20, ()),
        ("beyond its lifetime", [tree("a", idle=101), tree("b", idle=99)], "", None, ("a",)),
        ("least recently used first", [tree("a", idle=1), tree("b", idle=3), tree("c", idle=2)], "", 15, ("b", "c")),
        ("no more than must go", [tree("a", idle=1), tree("b", 1, idle=3), tree("c", 9, idle=2)], "", 19, ("b",)),
        ("never what is needed", [tree("a", idle=500), tree("b", idle=300), tree("c")], "a", 10, ("b", "c")),
        ("even where that is too much", [tree("a", idle=500), tree("b", idle=5)], "ab", 0, ()),
    ],
)
def test_evictable(
    case: str, trees: list[CachedTree], needed: str, keep: int | None, expected: tuple[str, ...]
) -> None:
    assert evictable(trees, frozenset(needed), NOW, 100.0, keep) == expected, case


def test_quota() -> None:
    assert quota_shortage(10, StorageUse("ada", 5, 15), StorageUse("chem", 5, None)) is None
    short = quota_shortage(1, StorageUse("ada", 5, None), StorageUse("chem", 5, 5))
    assert str(short) == "the input is 1 B, and project chem may stage 0 B more (5 B of 5 B are in use)"
    short = quota_shortage(3 * GB, StorageUse("ada", 8 * GB, 10 * GB), StorageUse("chem", 0, 0))
    assert short is not None
    assert str(short) == "the input is 3 GiB, and user ada may stage 2 GiB more (8 GiB of 10 GiB are in use)"
    assert short.missing_bytes == GB


def test_an_input_larger_than_a_quota_never_fits() -> None:
    full = StorageUse("ada", 10 * GB, 10 * GB), StorageUse("chem", 0, 9 * GB)
    assert beyond_quota(9 * GB, *full) == ""
    assert beyond_quota(10 * GB, *full) == (
        "the input is 10 GiB, and the staging quota of project chem is 9 GiB: stage less, or ask the administrator for "
        "a larger quota"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10G", 10 * GB), ("1.5TiB", 3 << 39), ("500MB", 500_000_000), ("2 kib", 2048), ("7B", 7), ("0.5K", 512),
        ("10", None), ("", None), ("-1G", None), ("1e3G", None), ("10X", None), ("9999999P", None), ("٣G", None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_words_for_numbers() -> None:
    assert [size_text(n) for n in (5, 1536, 200 << 20, 3 << 60)] == ["5 B", "1.5 KiB", "200 MiB", "3072 PiB"]
    spans = [span_text(s) for s in (-1, 40, 140, 120, 11_100, 90_000)]
    assert spans == ["0 s", "40 s", "2 min 20 s", "2 min", "3 h 5 min", "1 d 1 h"]
