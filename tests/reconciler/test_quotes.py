"""Quotes of the deciding thread: nothing comes of them, and they do not keep it from its work."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.errors import NoAnswer
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.quote import UsablePartition
from burstd.domain.snapshot import Snapshot
from burstd.planner.policy_chain import make_target
from burstd.reconciler import reconciler, what_if
from burstd.reconciler.what_if import ThrottledQuestions
from tests.crash.world import World
from tests.planner.worlds import job, make_snapshot
from tests.virtual.job import JobSpec


def on_record(world: World) -> list[str]:
    with sqlite3.connect(f"file:{world.path}?mode=ro", uri=True) as database:
        return list(database.iterdump())


def test_nothing_is_written_and_nothing_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, alpha="sim")
    world.slurm.submit(JobSpec(run_s=600, time_limit_s=3600))
    world.run(30)
    assert world.reconciler is not None
    record, calls, jobs = on_record(world), list(world.calls), list(world.slurm.jobs())
    (found,) = world.reconciler.quote_jobs(
        [job("", cpus=2, time_limit_s=3600.0)], [UsablePartition("burst"), UsablePartition("onprem")]
    )
    assert [way.pool for way in found.ways if way.taken] == ["", "cpu"]
    assert (on_record(world), world.calls, list(world.slurm.jobs())) == (record, calls, jobs)
    monkeypatch.setattr(world.reconciler._questions, "_rested_at", float("inf"))
    monkeypatch.setattr(reconciler, "copies_for_trial", None)
    assert world.reconciler.what_if("1") == (), "policies are copied for no question that is refused"


def test_a_long_answer_ends_in_time_and_the_next_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(what_if, "thread_time", lambda: now)
    monkeypatch.setattr(what_if, "monotonic", lambda: now)
    snapshot = make_snapshot()
    target = make_target(snapshot, ())
    tried, each_s = 0, 0.0

    def decide(seen: Snapshot) -> Target:
        nonlocal now, tried
        now += each_s
        tried += 1
        return make_target(seen, ())

    desk = ThrottledQuestions()

    def verdict() -> str:
        asked = replace(job(""), time_limit_s=3600.0, partitions=("gpu",))
        (found,) = desk.quote_jobs(
            snapshot, Plan((), target, target.remarks), [asked], [UsablePartition("burst")], decide
        )
        return found.verdict

    assert verdict() == "unknown"  # no pool serves its partition
    assert verdict() == "unknown"
    assert tried == 4
    each_s = 1.0
    verdict()
    assert tried == 5
    with pytest.raises(NoAnswer, match="try again in 9 s"):
        verdict()
    now += 12
    each_s = 0.04
    verdict()
    verdict()  # Short ones may follow each other, until they are many.
    with pytest.raises(NoAnswer, match="try again in 1 s"):
        verdict()
