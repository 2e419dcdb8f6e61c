"""B2: a cloud lists what is not so for minutes. No machine that works, boots or owes output ends by that."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from burstd.domain.claim import ClaimState as S
from burstd.domain.slurm.job import JobState
from tests.crash.world import World, memory_folder
from tests.doubles.lying_cloud import ALL
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

JOBS = 7
LIE_S = 180.0
LACKING = ("empty", "half", "the other half", "terminated", "stopping")
"""Lies by which many running machines seem gone."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of loops would drown what a failing test says."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[World]:
    """Machines at work in both clouds; jobs that outlast every lie."""
    with memory_folder(tmp_path) as folder:
        w = World(folder, template=template, alpha="sim")
        for _ in range(JOBS):
            w.slurm.submit(JobSpec(run_s=3000, cpus_per_node=4))
        w.run_until(lambda: len(busy(w)) == JOBS and all(c.state is S.IN_SERVICE for c in w.claims()), 300)
        yield w
        w.kill()


def busy(w: World) -> list[str]:
    """Slots on which a job runs."""
    return sorted({n for job in w.slurm.active if job.state is JobState.RUNNING for n in job.nodes})


@pytest.mark.parametrize("lie", ALL)
def test_nothing_that_works_is_ended_and_no_job_begins_anew(world: World, lie: str) -> None:
    before = {c.id: c.instance_id for c in world.claims()}
    alarms: list[str] = []
    for liar in world.lying_clouds.values():
        liar.lie = lie
    for _ in range(int(LIE_S / 5)):
        world.run(5.0)
        world.check()
        assert world.reconciler is not None
        alarms.append(world.reconciler.alarm)
    for liar in world.lying_clouds.values():
        liar.lie = ""
    world.run(LIE_S)
    world.check()
    assert {c.id: c.instance_id for c in world.claims() if c.id in before} == before
    assert [job.restarts for job in world.slurm.jobs() if job.state is JobState.RUNNING] == [0] * JOBS
    assert all(one.alive for one in world.launched_instances() if one.claim_id in before)
    if lie in LACKING:
        assert any("the list of alpha lacks" in alarm for alarm in alarms), alarms[-1]
    assert world.reconciler is not None
    assert world.reconciler.alarm == ""
