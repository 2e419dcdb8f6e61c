"""Which machines are nobody's."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.shape import Shape
from burstd.planner.lifecycle.ownership import Ownership

OFFER = Offer("sky", "here", "a", "big", spot=False, shape=Shape(4, 8000), price=Decimal(1))
CLAIM = Claim("c1", "x", "gpu", "cl1", OFFER, Cause.DEMAND, S.IN_SERVICE, 0.0, 0.0, instance_id="i1")
MACHINE = Instance("i1", "sky", InstanceState.RUNNING, "c1")


@pytest.mark.parametrize(
    ("case", "claim", "machine", "stray"),
    [
        ("the one on record", CLAIM, MACHINE, False),
        ("a second one of its claim", CLAIM, replace(MACHINE, id="i2"), True),
        (
            "the same, listed by a second provider of the account",
            CLAIM,
            replace(MACHINE, provider="fog"),
            False,
        ),
        ("a second one there", CLAIM, replace(MACHINE, provider="fog", id="i2"), True),
        ("one whose launch has not answered", replace(CLAIM, instance_id="", state=S.LAUNCHING), MACHINE, False),
        ("one whose claim is closed", CLAIM, replace(MACHINE, id="i9", claim_id="c9"), True),
        ("one without a claim", CLAIM, replace(MACHINE, id="i9", claim_id=""), True),
    ],
)
def test_strays(case: str, claim: Claim, machine: Instance, stray: bool) -> None:
    assert Ownership([claim], [machine]).is_orphan(machine) is stray, case
