"""How burstctl explain prints the offers of a pool."""

from __future__ import annotations

import pytest

from burstd.api.answers.jobs import CandidateView, PoolCandidatesView
from burstd.cli.commands.job import _print_pool
from burstd.cli.output import ConsoleOutput

LONG = "Launch failed: the image of the pool is not there, and nobody may read the list of images; retry in 4 min"


def test_a_long_reason_that_offers_share_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    offers = [("a", LONG), ("b", "no capacity"), ("c", LONG), ("d", "no capacity"), ("e", "")]
    candidates = [
        CandidateView(
            offer=name, price_per_hour=None, price_per_shard=None, refused=why, by="", note="", chosen=False, cost=None
        )
        for name, why in offers
    ]
    pool = PoolCandidatesView(pool="gpu", lacks="", slots=8, free=8, candidates=candidates)
    _print_pool(ConsoleOutput(), pool)
    lines = " ".join(capsys.readouterr().out.split())
    assert lines == f"Pool gpu: 8 of 8 slots free b no capacity d no capacity e may be used a, c: {LONG}"
