"""Which circuit breaker a launch opens whose image the cloud does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.errors import NoSuchImage
from burstd.domain.snapshot import CircuitBreaker
from burstd.reconciler.machines.circuit_breakers import CircuitBreakers
from tests.planner.worlds import claim


@pytest.mark.parametrize(
    ("versions", "causes"),
    [
        ({"node": ("v2", "v1")}, ["version"]),
        # It was withdrawn since the machine was planned: the next one starts from another.
        ({"node": ("v1",)}, []),
        ({"node": ("v2",)}, ["image"]),
        ({"v2": ("v3",)}, ["image"]),
        ({}, ["image"]),
    ],
)
def test_an_image_that_is_not_there(versions: Mapping[str, Sequence[str]], causes: Sequence[str]) -> None:
    saved: list[CircuitBreaker] = []
    store = SimpleNamespace(breakers=lambda: (), save_breaker=saved.append)
    context: Any = SimpleNamespace(store=store, clock=SimpleNamespace(now=lambda: 100.0))
    planned = claim("cpu1", ClaimState.LAUNCHING, image="v2")
    breakers = CircuitBreakers(context, lambda: {planned.offer.provider: versions})
    breakers.record_refusal(planned, NoSuchImage("v2 is not there"))
    assert [one.cause for one in saved] == causes
