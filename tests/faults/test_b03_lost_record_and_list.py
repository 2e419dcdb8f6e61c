"""B3 with B2: the record is lost, or an older copy, while a cloud lists what is not so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.db import back_up_database
from burstd.domain.claim import ClaimState as S
from burstd.domain.slurm.job import JobState
from tests.crash.conftest import quiet, template
from tests.crash.world import TUNING, World, memory_folder
from tests.virtual.job import JobSpec

__all__ = ["quiet", "template"]

pytestmark = pytest.mark.crash

JOBS = 4
LIE_S = 120.0


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[World]:
    """Machines at work in both clouds, and a copy of the record from when one of them had no node."""
    with memory_folder(tmp_path) as folder:
        w = World(folder, alpha="sim", template=template)
        for _ in range(JOBS):
            w.slurm.submit(JobSpec(run_s=1500, cpus_per_node=4))
        while not any(claim.state is S.VALIDATING for claim in w.claims()):
            w.run(1.0)
        back_up_database(w.path, copy_of(w))
        end = w.clock.now() + 300
        while not all(claim.state is S.IN_SERVICE for claim in w.claims()) or len(running(w)) < JOBS:
            assert w.clock.now() < end, w.report()
            w.run(1.0)
        yield w
        w.kill()


def copy_of(w: World) -> Path:
    return w.path.with_name("copy.db")


def running(w: World) -> list[str]:
    return [job.id for job in w.slurm.active if job.state is JobState.RUNNING]


@pytest.mark.parametrize("older", [False, True], ids=["lost", "older"])
@pytest.mark.parametrize("lie", ["empty", "terminated"])
def test_the_doubt_lasts_until_lists_show_every_node_that_slurm_hears(world: World, lie: str, older: bool) -> None:
    w = world
    machines = {one.id for one in w.running_instances()}
    w.kill()
    w.lose_record()
    if older:
        shutil.copy(copy_of(w), w.path)
    for liar in w.lying_clouds.values():
        liar.lie = lie
    w.start()
    calls = len(w.calls)
    for _ in range(int(LIE_S / 10)):
        w.run(10.0)
        w.check()
    if not older:
        assert "no cloud lists the machine. If it is gone, set its node down" in w.alarm
    assert not [call for call in w.calls[calls:] if call.endswith((".launch", ".terminate", ".remove"))]
    for liar in w.lying_clouds.values():
        liar.lie = ""
    w.run(120)
    assert not w.alarm
    assert {c.instance_id for c in w.claims() if c.state is S.IN_SERVICE} == machines
    w.run(2 * TUNING.orphan_grace_s)
    assert [job.restarts for job in w.slurm.jobs()] == [0] * JOBS
    assert {one.id for one in w.running_instances()} == machines
    w.heal()
    w.calm(2.0)
    w.check_replay()


def test_a_machine_that_is_gone_with_the_record_ends_the_doubt_when_slurm_misses_it(world: World) -> None:
    w = world
    w.kill()
    w.lose_record()
    w.kits["alpha"].end_instance(w.kits["alpha"].launched_instances()[0].id)
    w.start()
    w.run(15)
    assert w.alarm
    w.run(300)
    assert not w.alarm
    w.heal()
    w.calm(2.0)
