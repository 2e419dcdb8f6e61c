"""kill -9 of the leading head at random moments: the other takes over; no machine twice, none lost, no job harmed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

from tests.db.conftest import postgresql_server
from tests.e2e.two_heads import TwoHeads

__all__ = ["postgresql_server"]

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

KILLS = 3
"""``python -m tests.bench.bench_two_heads --real 50`` has more."""


@pytest.fixture(scope="module")
def site(postgresql_server: str) -> Iterator[TwoHeads]:
    with TwoHeads(postgresql_server) as up:
        yield up


def test_a_head_that_is_killed_is_followed_by_the_other(site: TwoHeads, figure: Callable[[str], None]) -> None:
    seed = int(os.environ.get("BURSTD_TEST_SEED", random.randrange(10**6)))  # noqa: S311 - nothing secret
    figure(f"takeovers: seed {seed} (BURSTD_TEST_SEED={seed} plays it again)")
    found = site.kill_leaders(KILLS, random.Random(seed))  # noqa: S311 - nothing secret
    assert not any(found.faults.values()), found.faults
    longest = max(found.took)
    figure(f"takeovers: {KILLS} of kill -9, {found.jobs} jobs, {found.machines} machines, the longest {longest:.1f} s")
