"""Jobs that write into a home directory which their nodes do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.missing_home import MissingHome
from burstd.domain.plan import HoldJob
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import RuntimeState, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.homes import HOLDS_AT_ONCE, home_alarms
from burstd.planner.timeouts import Tuning

from .worlds import NOW, V100, job, make_snapshot, node, pool

HOME = MissingHome("cpu", "ada", "/home/ada", "cpu1")
GPU_HOME = replace(HOME, pool="gpu", slot="gpu3")
CPU, GPU = pool(), pool("gpu", shape=replace(pool().shape, gres=V100))
WHY = (
    'home directory /home/ada of ada is not on nodes of pool cpu (seen on cpu1); add home = { path = "{home}" } to '
    "[mounts.trees], let the image mount the directory, or submit from one that is there"
)


def here(**fields: Any) -> Job:
    return replace(job(), **{"work_dir": "/home/ada/x", "output_dir": "/home/ada/x", **fields})


def held(snapshot: Snapshot) -> list[HoldJob]:
    return [action for action in decide(snapshot, (), Tuning()).actions if isinstance(action, HoldJob)]


def world(*jobs: Job, homes: tuple[MissingHome, ...] = (HOME,), **fields: Any) -> Snapshot:
    return make_snapshot(*jobs, **{"pools": (CPU, GPU), "runtime_state": RuntimeState(missing_homes=homes), **fields})


def test_a_job_that_writes_there_is_held() -> None:
    assert held(world(here())) == [HoldJob("1", "1", WHY, "homes")]
    parts = [here(id=f"1+{n}", het_job_id="1", het_offset=n) for n in range(2)]
    assert held(world(*parts)) == [HoldJob("1", "1+0", WHY, "homes")], "a het job is held whole"
    [hold] = held(world(here(gres_per_node=V100), homes=(HOME, GPU_HOME)))
    assert hold.reason.startswith("home directory /home/ada of ada is not on nodes of pool gpu (seen on gpu3); add")


def test_a_loop_holds_a_few() -> None:
    jobs = [here(id=str(number)) for number in range(HOLDS_AT_ONCE + 5)]
    first = held(world(*jobs))
    assert len(first) == HOLDS_AT_ONCE
    left = [job for job in jobs if job.id not in {hold.job_id for hold in first}]
    assert len(held(world(*left))) == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"output_dir": "/project/x"}, {"output_dir": ""}, {"output_dir": "/home/adam"}, {"user": "bob"},
        {"batch": False}, {"reason": "JobHeldUser"}, {"dependency": "afterok:7"}, {"eligible": NOW + 60},
        {"het_job_id": "1", "het_offset": 1}, {"reason": "BurstBufferStageIn"},
        {"state": JobState.RUNNING}, {"gres_per_node": V100},
    ],
)  # fmt: skip
def test_others_are_not(fields: dict[str, Any]) -> None:
    assert held(world(here(**fields))) == []


def test_what_nobody_knows_holds_no_job() -> None:
    assert held(world(here(), homes=())) == []
    assert held(world(here(), nodes=(node("n1", partitions=("burst",)),))) == [], "nodes of the site may have it"
    staging = RuntimeState(missing_homes=(HOME,), stages_data=True)
    assert len(held(world(here(), runtime_state=staging))) == 1
    for reason in ("", "None", "Priority"):
        assert held(world(here(reason=reason), runtime_state=staging)) == [], "it may have data, unknown so far"
        assert len(held(world(here(reason=reason)))) == 1, "no job has data"
    assert held(world(here(), data={"1": StagingView(StageState.STAGED, 0.0)})) == [], "its output is brought home"
    assert held(world(here(), pools=(CPU, replace(GPU, cpu_jobs=True)))) == [], "the other pool may have it"


def test_administrators_are_told_while_jobs_are_held() -> None:
    jobs = [here(id=name, reason="JobHeldUser") for name in ("1", "2", "3")]
    snapshot = world(*jobs, runtime_state=RuntimeState(held_for_homes={"1": WHY, "2": WHY}))
    assert home_alarms(decide(snapshot, (), Tuning()).remarks) == [f"job 1, and 1 more: it is held: {WHY}"]
    released = world(*(replace(one, reason="Priority") for one in jobs), runtime_state=snapshot.runtime_state)
    assert home_alarms(decide(released, (), Tuning()).remarks) == []
