"""A machine that a policy wants for its own jobs: nobody else gets it, and it ends with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.plan import BindJob, ChangeClaimState, MakeClaim, SetGate
from burstd.domain.plugins.policy import Target
from burstd.domain.snapshot import Snapshot
from burstd.planner.decide import decide
from burstd.planner.policy_chain import make_target
from burstd.planner.timeouts import Tuning

from .worlds import claim, job, make_snapshot, wants


class DedicatingPolicy:
    name = "alone"

    def evaluate(self, _: Snapshot, target: Target) -> Target:
        some = tuple(replace(want, dedicated=True) for want in target.wants)
        return replace(target, wants=some).with_remark("alone", "plan", "keep", "for its own jobs")


DEDICATED_CLAIM = claim("cpu1", ClaimState.READY, jobs=("2",), dedicated_by_policy=True)


def test_the_claim_bears_it() -> None:
    made = [
        a for a in decide(make_snapshot(job()), (DedicatingPolicy(),), Tuning()).actions if isinstance(a, MakeClaim)
    ]
    assert [a.claim.dedicated_by_policy for a in made] == [True]


def test_it_is_bound_to_its_job_and_not_opened_to_the_first_of_the_queue() -> None:
    actions = decide(make_snapshot(job("1", priority=9), job("2"), claims=(DEDICATED_CLAIM,)), (), Tuning()).actions
    assert [(a.job_id, a.nodes) for a in actions if isinstance(a, BindJob)] == [("2", ("cpu1",))]
    assert not [a for a in actions if isinstance(a, SetGate) and a.into_service]


def test_others_do_not_count_on_it() -> None:
    found = make_target(make_snapshot(job("1", priority=9), job("2"), claims=(DEDICATED_CLAIM,)), ())
    assert wants(found) == [("cpu", 1, ("1",))]


@pytest.mark.parametrize("state", [ClaimState.READY, ClaimState.IN_SERVICE])
def test_it_goes_when_its_jobs_are_over(state: ClaimState) -> None:
    ours = claim("cpu1", state, jobs=("2",), dedicated_by_policy=True)
    actions = decide(make_snapshot(job("1"), claims=(ours,)), (), Tuning()).actions
    closed = [a.reason for a in actions if isinstance(a, ChangeClaimState)]
    closed += [why for a in actions if isinstance(a, SetGate) and a.into_drain for why in a.claim_reasons]
    assert len(closed) == 1
    assert closed[0].startswith("its jobs are done")
