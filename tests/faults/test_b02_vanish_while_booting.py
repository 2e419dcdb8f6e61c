"""B2: machines that are no nodes yet vanish together from a cloud's list: quota, a zone that fails, or a lie."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import NodeNotReady
from burstd.domain.slurm.job import JobState
from tests.crash.conftest import quiet, template
from tests.crash.world import TUNING, World
from tests.virtual.job import JobSpec
from tests.virtual.validator import SimValidator

__all__ = ["quiet", "template"]

pytestmark = pytest.mark.crash

SLOW = replace(TUNING, boot_timeout_s=400, validation_timeout_s=400)
JOBS = 2


class _NeverReadyValidator(SimValidator):
    """Machines answer, and are not what they should be yet."""

    ready = False

    def validate(self, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        done = super().validate(claim, pool, console, reached)
        if not self.ready:
            raise NodeNotReady("munge does not run")
        return done


def world(folder: Path, template: Path) -> World:
    w = World(folder, template=template, alpha="sim", tuning=SLOW)
    for _ in range(JOBS):
        w.slurm.submit(JobSpec(run_s=100, cpus_per_node=4))
    return w


def states(w: World) -> list[S]:
    return [claim.state for claim in w.claims()]


@pytest.fixture
def validating(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Machines that have answered, and are not proven so far."""
    monkeypatch.setattr("tests.crash.world.SimValidator", _NeverReadyValidator)
    w = world(tmp_path, template)
    w.run_until(lambda: states(w) == [S.VALIDATING] * JOBS, 120)
    return w


@pytest.fixture
def booting(tmp_path: Path, template: Path) -> World:
    """Machines that were listed, and whose sshd comes after three minutes."""
    w = world(tmp_path, template)
    w.run_until(lambda: len(w.running_instances()) == JOBS and all(m.address for m in w.running_instances()), 60)
    for made in w.running_instances():
        machine = w.machines.running_at(made.address)
        assert machine is not None
        machine.answers_from = w.clock.now() + 200
    w.run(20)
    assert states(w) == [S.BOOTING] * JOBS
    return w


def test_what_had_answered_and_answers_no_more_is_given_up_soon(
    validating: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = validating
    first = {claim.id for claim in w.claims()}
    for made in w.running_instances():
        w.kits[made.provider].end_instance(made.id)
        w.kits[made.provider].misreport(made.id, "omitted")
    monkeypatch.setattr(_NeverReadyValidator, "ready", True)
    w.run_until(lambda: not first & {claim.id for claim in w.claims()}, 180)
    w.run_until(lambda: not w.slurm.active, 600)
    assert all(job.state is JobState.COMPLETED for job in w.slurm.jobs())
    assert "lacks" not in w.alarm


def test_what_answers_is_kept_for_as_long_as_the_list_lacks_it(
    validating: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = validating
    first = {claim.id for claim in w.claims()}
    for liar in w.lying_clouds.values():
        liar.lie = "empty"
    w.run(300)
    assert "lacks 2 of 2 machines" in w.alarm
    for liar in w.lying_clouds.values():
        liar.lie = ""
    monkeypatch.setattr(_NeverReadyValidator, "ready", True)
    w.run_until(lambda: not w.slurm.active, 600)
    assert {claim.id for claim in w.all_claims()} == first


def test_the_silence_of_a_machine_that_boots_proves_nothing(booting: World) -> None:
    w = booting
    first = {claim.id for claim in w.claims()}
    launched = max(claim.since for claim in w.claims())
    for liar in w.lying_clouds.values():
        liar.lie = "empty"
    w.run(100)
    assert states(w) == [S.BOOTING] * JOBS
    said = re.search(r"those that boot by (\d\d):(\d\d) UTC", w.alarm)
    assert said is not None, w.alarm
    at = (launched + SLOW.boot_timeout_s) % 86400 // 60
    assert int(said[1]) * 60 + int(said[2]) == at
    for liar in w.lying_clouds.values():
        liar.lie = ""
    w.run_until(lambda: not w.slurm.active, 900)
    assert {claim.id for claim in w.all_claims()} == first


def test_what_is_given_up_at_last_does_not_run_on(booting: World) -> None:
    w = booting
    first = {made.id for made in w.running_instances()}
    for liar in w.lying_clouds.values():
        liar.lie = "empty"
    for made in w.running_instances():
        machine = w.machines.running_at(made.address)
        assert machine is not None
        machine.answers_from = float("inf")
    w.run(SLOW.boot_timeout_s + 60)
    assert not first & {made.id for made in w.running_instances()}
