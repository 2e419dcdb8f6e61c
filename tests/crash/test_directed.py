"""Each fault alone, in virtual time: the outcome is what a person would call right."""

from __future__ import annotations

from pathlib import Path

from burstd.model.job import JobState
from burstd.sim.job import JobSpec
from tests.crash.world import World


def test_all_is_well(tmp_path: Path) -> None:
    w = World(tmp_path)
    small = w.slurm.submit(JobSpec())
    gang = w.slurm.submit(JobSpec(nodes=2, exclusive=True))
    w.run(600)
    assert w.states(small) == [JobState.COMPLETED]
    assert w.states(gang) == [JobState.COMPLETED]
    w.heal()
    w.calm()
    w.check_replay()
    w.check_bill()
