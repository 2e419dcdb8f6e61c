"""B3. A record that is lost, emptied, or older than the machines that run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from burstd.db import back_up_database
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.slurm.job import JobState
from tests.crash.conftest import quiet, template, tmp_path
from tests.crash.world import SLOTS, TUNING, World
from tests.doubles.lying_cloud import ALL
from tests.virtual.job import JobSpec

__all__ = ["quiet", "template", "tmp_path"]

LONG = JobSpec(run_s=1500, time_limit_s=20 * 3600, cpus_per_node=4)
OPEN, GONE = ClaimState.IN_SERVICE, ClaimState.GONE


@pytest.fixture(params=["sandbox", "batches"])
def world(request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> World:
    return World(tmp_path, template=template, alpha=request.param)


def runs(w: World, *jobs: str) -> bool:
    return all(w.states(job) == [JobState.RUNNING] for job in jobs)


def finishes(w: World, *jobs: str) -> None:
    """The jobs complete in their first run, then nothing is left of any machine."""
    w.heal()
    w.calm(2.0)
    for job in jobs:
        assert w.states(job) == [JobState.COMPLETED]
        assert w.slurm.job(job).restarts == 0, "it began anew"


def adopted(w: World) -> list[Claim]:
    return [c for c in w.claims() if "adopted" in w.store.claim_events(c.id)[0].reason]


@pytest.mark.crash
def test_a_lost_record_adopts_the_machines_and_their_jobs_run_on(world: World) -> None:
    w = world
    jobs = [w.slurm.submit(LONG) for _ in range(3)]
    w.run_until(lambda: runs(w, *jobs), 120)
    before = {c.slot: c for c in w.claims()}
    w.kill()
    w.lose_record()
    w.start()
    w.run_until(lambda: len(adopted(w)) == len(before), 120)
    for claim in w.claims():
        old = before[claim.slot]
        assert (claim.state, claim.offer, claim.address) == (OPEN, old.offer, old.address)
        assert set(claim.jobs) <= set(jobs)
        assert claim.users
        assert abs((claim.billed_from or 0.0) - (old.billed_from or 0.0)) < 60, "it is billed from its launch on"
    w.run(2 * TUNING.orphan_grace_s)
    assert runs(w, *jobs)
    finishes(w, *jobs)
    assert {c.state for c in w.all_claims()} == {GONE}
    w.check_replay()


@pytest.mark.crash
def test_a_lost_record_adopts_machines_that_still_boot(world: World) -> None:
    w = world
    job = w.slurm.submit(LONG)
    w.run_until(lambda: any(c.state is ClaimState.BOOTING and c.instance_id for c in w.claims()), 60)
    machines = {one.id for one in w.running_instances()}
    w.slurm.cancel(job)
    w.kill()
    w.lose_record()
    w.start()
    w.run_until(lambda: bool(adopted(w)) or not w.running_instances(), 120)
    finishes(w)
    assert machines <= {c.instance_id for c in w.all_claims()} or world.kits["alpha"].provider.name == "batches"


@pytest.mark.crash
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
def test_an_older_copy_adopts_before_it_acts(world: World, marked: bool) -> None:
    """The copy has a claim for the slot of a machine that came after it: only its claim is taken off the record."""
    w = world
    w.store.drain_slots(SLOTS - {"c1"}, "user:root", "one slot is enough")
    first = w.slurm.submit(JobSpec(run_s=60, cpus_per_node=4))
    w.run_until(lambda: runs(w, first), 120)
    slot = w.slurm.job(first).nodes[0]
    old = w.claim_on(slot)
    saved = w.path.with_name("backup.db")
    back_up_database(w.path, saved)
    w.run_until(lambda: w.store.claim(old.id).state is GONE, 600)
    later = w.slurm.submit(LONG)
    w.run_until(lambda: runs(w, later), 120)
    assert w.slurm.job(later).nodes == (slot,), "the new machine is for the same slot"
    new = w.claim_on(slot)
    w.kill()
    w.lose_record()
    shutil.copy(saved, w.path)
    if not marked:  # The whole folder was put back, the mark with it.
        w.path.with_name("record.mark").unlink()
    w.start()
    w.step()
    calls = len(w.calls)
    if marked:
        assert "is an older copy" in w.alarm
        assert "burstctl confirm record" in w.alarm
        w.run_until(lambda: "older copy" not in w.alarm, 120)
        assert not [c for c in w.calls[calls:] if c.endswith((".launch", ".terminate", ".remove"))]
    w.run_until(lambda: bool(adopted(w)), 200)
    assert w.store.claim(old.id).state is GONE
    assert (w.claim_on(slot).instance_id, w.claim_on(slot).state) == (new.instance_id, OPEN)
    w.run(2 * TUNING.orphan_grace_s)
    assert runs(w, later)
    finishes(w, later)
    w.check_replay()


@pytest.mark.crash
def test_an_emptied_record_is_noticed(world: World, template: Path) -> None:
    w = world
    job = w.slurm.submit(LONG)
    w.run_until(lambda: runs(w, job), 120)
    w.kill()
    w.lose_record()
    shutil.copy(template, w.path)
    w.start()
    w.step()
    assert "is not the one that was used before" in w.alarm
    w.run_until(lambda: not w.alarm, 120)
    finishes(w, job)


@pytest.mark.crash
def test_while_a_cloud_cannot_be_listed_the_doubt_stays_until_it_is_confirmed(world: World) -> None:
    w = world
    w.run(60)
    w.kill()
    w.lose_record()
    w.kits["beta"].fail("down", 3)
    w.start()
    waiting = w.slurm.submit(LONG)
    w.run(300)
    assert "is not the one" in w.alarm
    assert w.states(waiting) == [JobState.PENDING], "nothing is launched while the record is in doubt"
    assert not w.launched_instances()
    assert w.reconciler is not None
    w.reconciler.confirm_record("user:root")
    w.run_until(lambda: runs(w, waiting), 120)
    finishes(w, waiting)


@pytest.mark.crash
def test_a_restart_on_the_same_record_is_in_no_doubt(world: World) -> None:
    w = world
    job = w.slurm.submit(LONG)
    w.run_until(lambda: runs(w, job), 120)
    for _ in range(3):
        w.kill()
        w.start()
        w.step()
        assert not w.alarm
        w.run(10)
    finishes(w, job)
    assert not [c for c in w.all_claims() if "adopted" in c.reason]


@pytest.mark.crash
@pytest.mark.parametrize(
    ("lie", "older"), [*((lie, False) for lie in ALL), ("empty", True), ("addresses of others", True)]
)
def test_a_list_that_lies_while_the_record_is_in_doubt(
    tmp_path: Path, template: Path, lie: str, *, older: bool
) -> None:
    """No machine that works is ended or is on record twice, and no job begins anew, whatever the clouds list."""
    w = World(tmp_path, template=template, alpha="sim")
    saved = w.path.with_name("backup.db")
    first = [w.slurm.submit(JobSpec(run_s=60, cpus_per_node=4)) for _ in range(2)] if older else []
    w.run_until(lambda: runs(w, *first), 120)
    back_up_database(w.path, saved)
    w.run_until(lambda: not w.running_instances(), 900)
    jobs = [w.slurm.submit(LONG) for _ in range(4)]
    w.run_until(lambda: runs(w, *jobs) and all(c.state is OPEN for c in w.claims()), 200)
    machines = sorted(one.id for one in w.running_instances())
    w.kill()
    w.lose_record()
    if older:
        shutil.copy(saved, w.path)
    for liar in w.lying_clouds.values():
        liar.lie = lie
    w.start()
    w.run(90.0)
    w.check()
    for liar in w.lying_clouds.values():
        liar.lie = ""
    w.run_until(lambda: machines == sorted(c.instance_id for c in w.claims() if c.instance_id in machines), 120)
    assert runs(w, *jobs)
    assert {w.slurm.job(job).restarts for job in jobs} == {0}
    assert {one.id for one in w.running_instances()} >= {*machines}
    addresses = {one.id: one.address for one in w.running_instances()}
    for claim in w.claims():
        assert claim.instance_id not in machines or addresses[claim.instance_id] == claim.address
    w.kill()
