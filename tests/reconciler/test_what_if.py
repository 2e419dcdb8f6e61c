"""What users ask the deciding thread for does not keep it from its work."""

from __future__ import annotations

import pytest

from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Target
from burstd.domain.snapshot import Snapshot
from burstd.planner.policy_chain import make_target
from burstd.reconciler import what_if
from burstd.reconciler.what_if import ThrottledWhatIf
from tests.planner.worlds import job, make_snapshot


def test_a_long_answer_ends_in_time_and_is_given_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(what_if, "process_time", lambda: now)
    monkeypatch.setattr(what_if, "monotonic", lambda: now)
    snapshot = make_snapshot(job("1", cpus=9, cpus_per_node=9), job("2", cpus=9, cpus_per_node=9))
    target = make_target(snapshot, ())
    plan = Plan((), target, target.remarks)
    each_s = 0.0
    tried = 0

    def decide(seen: Snapshot) -> Target:
        nonlocal now, tried
        now += each_s
        tried += 1
        return make_target(seen, ())

    desk = ThrottledWhatIf()
    for job_id in ("1", "2", "1"):
        assert desk.smallest_changes(snapshot, plan, job_id, decide)
    each_s, before = 0.6, tried
    found = desk.smallest_changes(snapshot, plan, "1", decide)
    assert 1 <= tried - before <= 2
    before = tried
    assert desk.smallest_changes(snapshot, plan, "1", decide) == found
    assert desk.smallest_changes(snapshot, plan, "2", decide) == ()
    assert tried == before
    now += 2 * each_s * what_if.PAUSE_FACTOR + 1
    desk.smallest_changes(snapshot, plan, "2", decide)
    assert tried > before
