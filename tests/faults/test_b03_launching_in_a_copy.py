"""B3: a copy of the record was made while a launch was under way, and is put back much later."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from burstd.db import back_up_database
from burstd.domain.claim import ClaimState
from burstd.domain.slurm.job import JobState
from tests.crash.conftest import quiet, template, tmp_path
from tests.crash.workers import Delay
from tests.crash.world import World
from tests.virtual.job import JobSpec

__all__ = ["quiet", "template", "tmp_path"]

pytestmark = pytest.mark.crash

CLOUDS = {"sandbox": "alpha", "sim": "alpha", "batches": "alpha", "none": "beta"}
"""Of ``beta`` a launch without an answer is looked for in lists; of the others it is repeated by its token."""


@pytest.fixture(params=CLOUDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> World:
    w = World(tmp_path, template=template, alpha=request.param)
    w.delays[CLOUDS[request.param]] = Delay(after_s=20.0)
    return w


def copied_while_launching(w: World, run_s: float) -> tuple[str, Path]:
    """A job whose machine the cloud has just made, which the record does not know so far."""
    job = w.slurm.submit(JobSpec(run_s=run_s, time_limit_s=20 * 3600, cpus_per_node=4))
    w.run_until(lambda: [c.state for c in w.claims()] == [ClaimState.LAUNCHING] and bool(w.running_instances()), 60)
    saved = w.path.with_name("backup.db")
    back_up_database(w.path, saved)
    w.delays.clear()
    return job, saved


def put_back(w: World, saved: Path) -> None:
    w.kill()
    w.lose_record()
    shutil.copy(saved, w.path)
    w.start()


def test_its_machine_that_is_at_work_is_found_and_bought_once(world: World) -> None:
    w = world
    job, saved = copied_while_launching(w, 1500)
    w.run_until(lambda: w.states(job) == [JobState.RUNNING], 200)
    machines = [one.id for one in w.running_instances()]
    put_back(w, saved)
    w.run(300)
    assert [one.id for one in w.launched_instances()] == machines
    assert [claim.instance_id for claim in w.claims()] == machines
    w.calm(2.0)
    assert w.states(job) == [JobState.COMPLETED]
    assert w.slurm.job(job).restarts == 0
    assert [one.id for one in w.launched_instances()] == machines


def test_its_machine_that_has_ended_is_not_bought_again(world: World) -> None:
    w = world
    job, saved = copied_while_launching(w, 60)
    w.run_until(lambda: not w.claims() and not w.running_instances(), 900)
    assert w.states(job) == [JobState.COMPLETED]
    machines = [one.id for one in w.launched_instances()]
    w.run(600)
    calls = len(w.calls)
    put_back(w, saved)
    w.run(600)
    w.calm(2.0)
    assert [one.id for one in w.launched_instances()] == machines
    assert not [call for call in w.calls[calls:] if call.endswith(".launch")], "a cloud forgets its tokens"
    assert not w.store.breakers()


def test_a_job_that_still_waits_gets_its_machine(world: World) -> None:
    w = world
    job, saved = copied_while_launching(w, 60)
    (one,) = w.running_instances()
    w.kill()
    w.kits[one.provider].end_instance(one.id)
    w.clock.advance(900)
    w.lose_record()
    shutil.copy(saved, w.path)
    w.start()
    w.run_until(lambda: w.states(job) == [JobState.COMPLETED], 900)
    w.calm(2.0)
    assert len(w.launched_instances()) == 2
