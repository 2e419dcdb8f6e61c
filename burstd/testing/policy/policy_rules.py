"""What every policy must do, as rules that one evaluation is held against. Needs no test tools."""

from __future__ import annotations

from dataclasses import replace

from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Policy, Target, Want
from burstd.domain.plugins.read_only import read_only_snapshot, read_only_target
from burstd.domain.slurm.outlook import Outlooks
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.testing.policy.outlooks import FixedOutlooks


def check_policy(policy: Policy, snapshot: Snapshot, target: Target) -> Target:
    """One evaluation against the whole contract. Returns its answer; raises AssertionError with the broken rule."""
    if not isinstance(snapshot.outlook, Outlooks):
        # As in force: what is expected of jobs can always be asked for.
        snapshot = replace(snapshot, outlook=FixedOutlooks(snapshot.outlook))
    snapshot, target = read_only_snapshot(snapshot), read_only_target(target)
    found = policy.evaluate(snapshot, target)
    assert found == policy.evaluate(snapshot, target), "the same arguments gave another answer: no clock, no memory"
    assert isinstance(found, Target), "evaluate() returns a Target"
    assert found.remarks[: len(target.remarks)] == target.remarks, "remarks of others stay as they are, in front"
    assert (found.placements, found.failed_policies) == (target.placements, target.failed_policies), (
        "placements and failed_policies are not a policy's"
    )
    _check_wants(snapshot, target, found)
    _check_releases(snapshot, target, found)
    changed = (_comparable_wants(found), found.releases, found.offers) != (
        _comparable_wants(target),
        target.releases,
        target.offers,
    )
    new = found.remarks[len(target.remarks) :]
    reasons = [out for want in found.wants for out in want.excluded_offers if out.by == policy.name and out.reason]
    assert new or reasons or not changed, "each change comes with a remark"
    assert all(remark.by == policy.name for remark in new), "remarks bear the policy's name"
    assert all(r.reason and not r.reason.endswith(".") for r in new), "a reason is a sentence without a full stop"
    return found


def _comparable_wants(target: Target) -> tuple[Want, ...]:
    """The wants, as far as a change of them must be explained: not what is held back for them, and who pays."""
    return tuple(replace(want, reserved=(), users=(), accounts=()) for want in target.wants)


def _check_wants(snapshot: Snapshot, target: Target, found: Target) -> None:
    for pool_name, offers in found.offers.items():
        assert set(offers) <= set(target.offers.get(pool_name, ())), (
            f"offers of pool {pool_name} that are not to be had"
        )
    for want in found.wants:
        assert want.pool in snapshot.pools, f"pool {want.pool} does not exist"
        assert want.nodes > 0, "a want of no nodes"
        assert set(want.offers) <= set(target.offers.get(want.pool, ())), "offers that are not to be had"
        assert not want.slots or len(want.slots) == want.nodes, "as many slots as nodes, or none named"
    named = [slot for want in found.wants for slot in want.slots]
    assert len(named) == len(set(named)), "two wants name one slot"
    for name, pool in snapshot.pools.items():
        free = snapshot.free_slots(pool)
        assert set(named) & set(pool.slots) <= set(free), "a slot is named that is not free"
        wanted = sum(want.nodes for want in found.wants if want.pool == name and not _floor(want))
        assert wanted <= len(free), f"{wanted} machines are wanted for the {len(free)} free slots of pool {name}"
    before = {want.gang: _size(target, want.gang) for want in target.wants if want.gang}
    for gang, nodes in before.items():
        assert _size(found, gang) in (0, nodes), f"gang {gang} was split"


def _check_releases(snapshot: Snapshot, target: Target, found: Target) -> None:
    known = {release.claim_id for release in target.releases}
    claims = {claim.id: claim for claim in snapshot.claims}
    nodes = snapshot.slurm.nodes if isinstance(snapshot.slurm, SlurmView) else {}
    for release in found.releases:
        if release.claim_id in known:
            continue
        claim = claims[release.claim_id]
        assert claim.state in (ClaimState.IN_SERVICE, ClaimState.READY), f"{claim.id} is {claim.state.value}"
        assert claim.slot in nodes, f"{claim.slot} is not known to Slurm"
        assert not nodes[claim.slot].busy, f"{claim.slot} is busy"


def _floor(want: Want) -> bool:
    """A want for no job may exceed the free slots: the chain cuts it. What jobs were promised may not."""
    return not want.jobs


def _size(target: Target, gang: str) -> int:
    return sum(want.nodes for want in target.wants if want.gang == gang)
