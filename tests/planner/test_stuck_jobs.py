"""Which pending jobs count as having room that Slurm does not give them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import DroppedWant, Target, Want
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.stuck_jobs import stuck_on_burst_since, stuck_since

OFFER = Offer("sky", "r", "z", "t", spot=False, shape=Shape(8, 1024), price=Decimal(1))
CLAIM = Claim("c1", "x", "gpu", "gpu-1", OFFER, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0)
SNAPSHOT = Snapshot(100.0, "x", {}, SlurmView((), {}, ()), {}, (CLAIM,))
REST = Want("gpu", 1, Cause.DEMAND, "job 7", (OFFER,), jobs=("7",), gang="7")


@pytest.mark.parametrize(
    ("target", "counted"),
    [
        pytest.param(Target(placements={"7": ("gpu-1",)}), {"7": 100.0}, id="all of its nodes are open"),
        pytest.param(Target(placements={"7": ("gpu-1",)}, wants=(REST,)), {}, id="one is to be started"),
        pytest.param(
            Target(placements={"7": ("gpu-1",)}, dropped_wants=(DroppedWant(REST, "backlog"),)), {}, id="one is refused"
        ),
    ],
)
def test_a_gang_has_capacity_where_all_of_its_nodes_are_in_service(target: Target, counted: dict[str, float]) -> None:
    assert stuck_since({}, SNAPSHOT, target) == counted
    assert stuck_on_burst_since({}, SNAPSHOT, target) == counted
