"""What becomes of updates of jobs that Slurm refuses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from burstd.db import Store
from burstd.domain.errors import SchedulerRefused
from burstd.domain.plan import UpdateJobs
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.snapshot import RuntimeState
from burstd.reconciler.context import LoopContext
from burstd.reconciler.excluded_nodes import EXCLUDED_NODES_KEY, ExcludedNodes
from burstd.reconciler.slurm_actions import UPDATES_PER_LOOP, SlurmActions
from tests.db.samples import ManualClock
from tests.planner.worlds import job


def test_one_job_that_slurm_refuses_costs_no_call_for_each_of_the_others() -> None:
    calls: list[int] = []

    class Slurm:
        def update_jobs(self, job_ids: Collection[str], update: JobUpdate) -> None:
            del update
            calls.append(len(job_ids))
            if "77" in job_ids:
                raise SchedulerRefused("Job is no longer pending execution")

    now = [1000.0]
    context = SimpleNamespace(
        scheduler=Slurm(),
        clock=SimpleNamespace(now=lambda: now[0]),
        store=SimpleNamespace(
            claims=lambda: (), metadata=lambda _: "", set_metadata=lambda *_, **__: None, held_jobs=lambda _: {}
        ),
    )
    actions = SlurmActions(cast("LoopContext", context))
    ids = tuple(map(str, range(10_000)))
    update = JobUpdate(frozenset({"cpu1"}), frozenset({"cpu1"}))
    assert actions.apply(UpdateJobs(ids, ids, update, "as the comment requires")) == 0
    # Slurm has changed the others, and what was put there is known.
    assert len(actions.runtime_state(now[0], {}, RuntimeState()).excluded_nodes) == len(ids)
    assert actions.alarms(now[0]) == ["Job is no longer pending execution"]
    # In the next loop it alone is left; one that is refused again waits.
    for _ in range(3):
        actions.apply(UpdateJobs(("77",), ("77",), update, "as the comment requires"))
        now[0] += 1
    assert calls == [10_000, 1]


def test_an_update_is_sent_again_once_another_one_came_between() -> None:
    calls: list[tuple[tuple[str, ...], JobUpdate]] = []
    context = SimpleNamespace(
        scheduler=SimpleNamespace(update_jobs=lambda jobs, update: calls.append((tuple(jobs), update))),
        clock=SimpleNamespace(now=lambda: 1000.0),
        store=SimpleNamespace(
            claims=lambda: (), metadata=lambda _: "", set_metadata=lambda *_, **__: None, held_jobs=lambda _: {}
        ),
    )
    actions = SlurmActions(cast("LoopContext", context))
    one, other = (JobUpdate(frozenset({name}), frozenset({name})) for name in ("cpu1", "cpu2"))
    for ids, update in ((("1", "2"), one), (("1", "2"), one), (("1",), other), (("1", "2"), one)):
        actions.apply(UpdateJobs(tuple(f"{job_id}_[0]" for job_id in ids), ids, update, "as the comment requires"))
    assert calls == [(("1_[0]", "2_[0]"), one), (("1_[0]",), other), (("1_[0]",), one)]


def test_a_loop_makes_so_many_updates_and_the_next_one_goes_on() -> None:
    calls: list[str] = []

    def update_jobs(job_ids: Collection[str], update: JobUpdate) -> None:
        del update
        calls.extend(job_ids)
        if int(calls[-1]) < UPDATES_PER_LOOP:
            raise SchedulerRefused("Requested node configuration is not available")

    context = SimpleNamespace(
        scheduler=SimpleNamespace(update_jobs=update_jobs),
        clock=SimpleNamespace(now=lambda: 1000.0),
        store=SimpleNamespace(
            claims=lambda: (), metadata=lambda _: "", set_metadata=lambda *_, **__: None, held_jobs=lambda _: {}
        ),
    )
    actions = SlurmActions(cast("LoopContext", context))
    ids = [str(n) for n in range(UPDATES_PER_LOOP + 3)]
    made = []
    for _ in range(2):
        actions.runtime_state(1000.0, {}, RuntimeState())
        # Each asks for another size.
        updates = [JobUpdate(frozenset(), frozenset(), memory_mib=1 + int(job_id)) for job_id in ids]
        steps = [UpdateJobs((i,), (i,), u, "as the comment requires") for i, u in zip(ids, updates, strict=True)]
        made.append(sum(map(actions.apply, steps)))
    # Those that Slurm has refused do not hold up the others.
    assert (made, calls) == ([0, 3], ids)


def test_what_burstd_has_excluded_is_on_record_until_slurm_shows_that_it_is_over(tmp_path: Path) -> None:
    def recorded() -> dict[str, set[str]]:
        """As another process finds it."""
        return {job_id: set(nodes) for job_id, nodes in ExcludedNodes(store).by_job().items()}

    with Store.open(tmp_path / "burstd.db", ManualClock()) as store:
        excluded = ExcludedNodes(store)
        waits = job("1", excluded_nodes=("own",))
        task = job("7_1", array_job_id="7", excluded_nodes=("a",))
        excluded.record(["1", "7", "9"], frozenset({"a", "b"}), 10.0)
        # The queue may have been read before.
        excluded.forget([waits, task], 10.0)
        assert recorded() == {"1": {"a", "b"}, "7": {"a", "b"}}
        # Of one that runs, Slurm may not show it.
        excluded.record(["1"], frozenset({"c"}), 11.0)
        runs = replace(task, state=JobState.RUNNING, excluded_nodes=())
        excluded.forget([replace(waits, excluded_nodes=("own", "a", "c")), runs], 12.0)
        assert recorded() == {"1": {"a", "c"}, "7": {"a", "b"}}
        # What its user excludes later is its user's.
        excluded.record(["1"], frozenset(), 13.0)
        excluded.forget([waits], 14.0)
        assert recorded() == {}
        assert store.metadata(EXCLUDED_NODES_KEY) == ""
