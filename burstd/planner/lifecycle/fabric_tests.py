"""Which nodes of a gang the network between is tested of, two by two, before they open.

A node that has been in service is not tested: jobs may run on it. Nor is one alone, as long as no other of its gang and
pool is ready: it waits for no partner, only for its gang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import Action, ChangeClaimState, TestFabric
from burstd.planner.snapshot_view import SnapshotView

FABRIC_TEST = "fabric_test"
"""Error of claims whose machines do not reach each other as fast as their pool wants."""


def fabric_test_steps(
    view: SnapshotView, usable: Callable[[Claim], bool], timeout_s: float
) -> tuple[list[Action], frozenset[str]]:
    """The tests to begin now, and the claims that do not open before theirs has passed."""
    by_gang: dict[tuple[str, str], list[Claim]] = {}
    for claim in view.snapshot.claims:
        pool = view.snapshot.pools.get(claim.pool) if claim.gang and claim.state is S.READY else None
        if pool is not None and pool.fabric_test is not None and claim.in_service_from is None and usable(claim):
            # Tasks of an array may use each other's dedicated machines.
            gang = claim.gang.partition("_")[0] if claim.dedicated else claim.gang
            by_gang.setdefault((gang, claim.pool), []).append(claim)
    steps: list[Action] = []
    untested: set[str] = set()
    for members in by_gang.values():
        left = [c for c in members if c.id not in view.snapshot.runtime_state.fabric_tested]
        if len(members) > 1 and left:
            untested.update(claim.id for claim in left)
            steps += _steps(members, left, view, timeout_s)
    return steps, frozenset(untested)


def _steps(members: Sequence[Claim], left: Sequence[Claim], view: SnapshotView, timeout_s: float) -> list[Action]:
    progress = view.snapshot.runtime_state
    free = [claim for claim in left if claim.id not in progress.busy]
    since = max(progress.process_start, *(claim.since for claim in members))
    if view.now - since > timeout_s:
        why = f"the network between nodes of job {members[0].gang} could not be tested within {timeout_s:.0f} s"
        return [ChangeClaimState(claim.id, S.READY, S.FAILED, why, error=FABRIC_TEST) for claim in free]
    # The one that is left over is tested with one that has passed, once all others have.
    partners = [c for c in members if c not in left and c.id not in progress.busy] if len(left) == 1 else []
    ends = [*free, *partners[:1]] if free else []
    return [TestFabric(one.id, other.id) for one, other in zip(ends[::2], ends[1::2], strict=False)]
