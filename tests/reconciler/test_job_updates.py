"""What becomes of updates of jobs that Slurm refuses."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

from burstd.domain.errors import SchedulerRefused
from burstd.domain.plan import UpdateJobs
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.snapshot import RuntimeState
from burstd.reconciler.context import LoopContext
from burstd.reconciler.slurm_actions import SlurmActions


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
        store=SimpleNamespace(claims=lambda: (), metadata=lambda _: ""),
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
