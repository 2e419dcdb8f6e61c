"""Quotes beside what came of the jobs, in a replayed queue; all figures are those of tests/bench/bench_quote.py."""

from __future__ import annotations

import pytest

from tests.bench.bench_quote import made_trace, replayed, window


@pytest.mark.parametrize("cloud", [False, True])
def test_three_of_four_jobs_start_within_the_range_and_cost_what_was_quoted(cloud: bool) -> None:
    found = replayed(window(made_trace(400, 11)), 100, cloud=cloud, load=0.9, seed=11)
    assert len(found) > 80
    assert sum(one.hit() for one in found) >= 0.75 * len(found)
    known = [one.cost_error() for one in found if cloud and one.known_length]
    assert all(error <= 0.1 for error in known)
    assert bool(known) is cloud
