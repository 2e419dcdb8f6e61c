"""What users ask the deciding thread for does not keep it from its work."""

from __future__ import annotations

import pytest

from burstd.domain.errors import NoAnswer
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.quote import UsablePartition
from burstd.domain.snapshot import Snapshot
from burstd.planner.policy_chain import make_target
from burstd.reconciler import what_if
from burstd.reconciler.what_if import ThrottledQuestions
from tests.planner.worlds import job, make_snapshot


def test_a_long_answer_ends_in_time_and_is_given_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(what_if, "thread_time", lambda: now)
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

    desk = ThrottledQuestions()
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


def test_short_answers_have_together_an_eleventh_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = worked = 0.0
    monkeypatch.setattr(what_if, "thread_time", lambda: worked)
    monkeypatch.setattr(what_if, "monotonic", lambda: now)
    snapshot = make_snapshot(job("1", cpus=9, cpus_per_node=9), job("2", cpus=9, cpus_per_node=9))
    target = make_target(snapshot, ())
    plan = Plan((), target, target.remarks)
    refused = 0

    def decide(seen: Snapshot) -> Target:
        nonlocal now, worked
        now += 0.01
        worked += 0.01
        return make_target(seen, ())

    desk = ThrottledQuestions()
    assert desk.smallest_changes(snapshot, plan, "1", decide)
    assert worked < what_if.UNTHROTTLED_CPU_S
    while now < 60:
        desk.smallest_changes(snapshot, plan, "1", decide)
        desk.smallest_changes(snapshot, plan, "2", decide)
        try:
            desk.quote_jobs(snapshot, plan, [job("")], [UsablePartition("burst")], decide)
        except NoAnswer:
            refused += 1
        now += 0.01
    most = what_if.UNTHROTTLED_CPU_S + now / (what_if.PAUSE_FACTOR + 1)
    assert 0.9 * most < worked < most + what_if.UNTHROTTLED_CPU_S
    assert refused
    now += 60
    assert desk.smallest_changes(snapshot, plan, "2", decide)
