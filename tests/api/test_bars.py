"""Charts of the printed bill: each part stays in the picture and has its share of it, corrections below the axis."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from burstd.api.bill_files.bars import Bars, bars_svg

TOP, BOTTOM = 28, 186
KINDS = ("work", "boot", "idle", "storage")
RECT = re.compile(r'<rect x="([-\d.]+)" y="([-\d.]+)" width="[\d.]+" height="([-\d.]+)"')
costs = st.decimals(-1000, 1000, places=2)


def drawn(*days: dict[str, Decimal]) -> list[tuple[float, float, float]]:
    """Place, upper and lower edge of each part."""
    bars: Bars = defaultdict(lambda: defaultdict(Decimal))
    for number, parts in enumerate(days):
        bars[date(2026, 12, 1) + timedelta(days=number)].update(parts)
    found = [tuple(map(float, one)) for one in RECT.findall(bars_svg(bars)[1])[4:]]
    return [(x, y, y + height) for x, y, height in found]


def test_a_correction_is_below_the_axis() -> None:
    _, work, idle = drawn({"work": Decimal(20)}, {"work": Decimal(900), "idle": Decimal(-680)})
    assert (work[1], idle[2]) == (TOP, BOTTOM)
    assert work[2] == idle[1] == TOP + 90


@given(st.lists(st.dictionaries(st.sampled_from(KINDS), costs), min_size=1, max_size=5))
def test_all_parts_are_in_the_picture_and_none_covers_another(days: list[dict[str, Decimal]]) -> None:
    parts = sorted(drawn(*days))
    assert len(parts) == sum(cost != 0 for day in days for cost in day.values())
    assert all(TOP - 0.1 <= upper <= lower <= BOTTOM + 0.1 for _, upper, lower in parts)
    assert all(one[0] < other[0] or one[2] <= other[1] + 0.2 for one, other in pairwise(parts))
