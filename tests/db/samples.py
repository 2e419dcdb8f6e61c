"""A clock that a test moves, and claims to write down."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from hypothesis import strategies as st

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.bounds import MAX_CPUS, MAX_GRES, MAX_MEMORY_MIB
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Gres, Shape

START = 1_700_000_000.0


@dataclass
class ManualClock:
    time: float = START

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


OFFER = Offer(
    "sandbox", "here", "a", "gpu4", False, Shape(8, 16384, (Gres("gpu", "v100", 4),), frozenset({"x"})), Decimal("3.06")
)


def planned(
    claim_id: str = "c1", slot: str = "gpu001", *, offer: Offer = OFFER, jobs: tuple[str, ...] = ("17",),
    users: tuple[str, ...] = ("ann",), pool: str = "gpu", at: float = START,
) -> Claim:  # fmt: skip
    return Claim(
        claim_id,
        "site",
        pool,
        slot,
        offer,
        Cause.DEMAND,
        ClaimState.PLANNED,
        at,
        at,
        "jobs wait",
        jobs=jobs,
        users=users,
    )


def request_for(claim: Claim, user_data: str = "#cloud-config\n") -> LaunchRequest:
    return LaunchRequest(claim.id, f"b-{claim.id}", claim.offer, "debian", user_data, {"burstd-claim": claim.id})


words = st.text(max_size=12)
moments = st.floats(0, 4e9, allow_nan=False)
counts = st.integers(0, 2**31 - 1)
prices = st.decimals(0, 1000, allow_nan=False, places=4)
shapes = st.builds(
    Shape,
    st.integers(0, MAX_CPUS),
    st.integers(0, MAX_MEMORY_MIB),
    st.lists(st.builds(Gres, words, words, st.integers(0, MAX_GRES)), max_size=3).map(tuple),
    st.frozensets(words, max_size=3),
)
names = st.text(st.characters(categories=("L", "N", "P")), max_size=12).filter(lambda text: not text.startswith("-"))
offers = st.builds(Offer, names, names, names, names, st.booleans(), shapes, prices, st.sampled_from(["EUR", "USD"]))
