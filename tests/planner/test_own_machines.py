"""A machine that a policy wants for its own jobs: nobody else gets it, and it ends with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.plan import Bind, MakeClaim, Move, SetGate
from burstd.domain.plugins.policy import Target
from burstd.domain.snapshot import Snapshot
from burstd.planner.decide import decide
from burstd.planner.policy_chain import make_target
from burstd.planner.timeouts import Tuning

from .worlds import claim, job, wants, world


class Alone:
    name = "alone"

    def evaluate(self, _: Snapshot, target: Target) -> Target:
        some = tuple(replace(want, alone=True) for want in target.wants)
        return replace(target, wants=some).with_remark("alone", "plan", "keep", "for its own jobs")


OURS = claim("cpu1", ClaimState.READY, jobs=("2",), alone=True)


def test_the_claim_bears_it() -> None:
    made = [a for a in decide(world(job()), (Alone(),), Tuning()).actions if isinstance(a, MakeClaim)]
    assert [a.alone for a in made] == [True]


def test_it_is_bound_to_its_job_and_not_opened_to_the_first_of_the_queue() -> None:
    actions = decide(world(job("1", priority=9), job("2"), claims=(OURS,)), (), Tuning()).actions
    assert [(a.job_id, a.nodes) for a in actions if isinstance(a, Bind)] == [("2", ("cpu1",))]
    assert not [a for a in actions if isinstance(a, SetGate) and a.opens]


def test_others_do_not_count_on_it() -> None:
    found = make_target(world(job("1", priority=9), job("2"), claims=(OURS,)), ())
    assert wants(found) == [("cpu", 1, ("1",))]


@pytest.mark.parametrize("state", [ClaimState.READY, ClaimState.OPEN])
def test_it_goes_when_its_jobs_are_over(state: ClaimState) -> None:
    ours = claim("cpu1", state, jobs=("2",), alone=True)
    actions = decide(world(job("1"), claims=(ours,)), (), Tuning()).actions
    closed = [a.reason for a in actions if isinstance(a, Move)]
    closed += [why for a in actions if isinstance(a, SetGate) and a.closes for why in a.why]
    assert len(closed) == 1
    assert closed[0].startswith("its jobs are done")
