"""What projects have used lately."""

from __future__ import annotations

from fractions import Fraction
from math import log
from pathlib import Path

import pytest

from burstd.db import Store
from burstd.domain.project import FairShare, Share
from burstd.reconciler.pollers.project_usage import ProjectUsage
from tests.virtual.clock import VirtualClock

HALF_LIFE_S = 1000.0
HOW = FairShare(usage_half_life_s=HALF_LIFE_S, usage_factor=1.0)


def runs(gpus: int) -> dict[str, Share]:
    return {"a": Share(Fraction(gpus), Fraction(gpus), Fraction(0), Fraction(gpus))}


def test_use_counts_half_after_a_half_life_and_over_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    start = clock.now()
    with Store.open(tmp_path / "burstd.db", clock) as store:
        usage = ProjectUsage(store)
        assert usage.usage(start, HOW) == {}
        usage.add(runs(4), start, HOW, since=start)
        # A hundred steps give what one gives.
        for step in range(1, 101):
            usage.add(runs(4), start + 10.0 * step, HOW, since=start)
        used = 4 * HALF_LIFE_S / log(2) / 2
        assert usage.usage(start + 1000, HOW) == pytest.approx({"a": used})
        usage.add(runs(0), start + 1000 + HALF_LIFE_S, HOW, since=start)
        assert usage.usage(start + 1000 + HALF_LIFE_S, HOW) == pytest.approx({"a": used / 2})
    with Store.open(tmp_path / "burstd.db", clock) as store:
        usage, later = ProjectUsage(store), start + 1000 + 2 * HALF_LIFE_S
        assert usage.usage(later, HOW) == pytest.approx({"a": used / 4}, rel=1e-6)
        # What ran while burstd was away is not known.
        usage.add(runs(4), later, HOW, since=later)
        assert usage.usage(later, HOW) == pytest.approx({"a": used / 4}, rel=1e-6)


def test_nothing_is_written_where_usage_does_not_count(tmp_path: Path) -> None:
    clock = VirtualClock()
    with Store.open(tmp_path / "burstd.db", clock) as store:
        usage = ProjectUsage(store)
        usage.add(runs(4), clock.now() + 100, FairShare(), since=clock.now())
        assert usage.usage(clock.now() + 100, FairShare()) == {}
        assert store.metadata("project usage") == ""
