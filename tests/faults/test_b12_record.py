"""B12. A record disk that is full in any phase, a damaged or newer record, settings that change under live machines."""

from __future__ import annotations

import os
import random
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import policies.schedule as policies_schedule
import tests.crash.world as crash_world
from burstd.db import Store, back_up_database, restore_database
from burstd.domain.claim import ClaimState
from burstd.domain.plugins.provider import Idempotency
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Pin
from tests.crash.clouds import SimKit
from tests.crash.conftest import quiet, template, tmp_path
from tests.crash.world import World
from tests.db.samples import ManualClock, planned
from tests.doubles.lone_daemon import LoneDaemon
from tests.lab.patience import patience_s
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.slow


__all__ = ["quiet", "template", "tmp_path"]

S = ClaimState
EX_UNAVAILABLE = 69
KILLS = int(os.environ.get("BURSTD_TEST_KILLS", "8"))
"""1,000 on demand: some minutes."""
SLOTS = 100


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    return World(tmp_path, template=template)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LoneDaemon]:
    made = LoneDaemon(tmp_path)
    yield made
    made.kill()


def until(w: World, condition: Callable[[], bool], within_s: float) -> None:
    end = w.clock.now() + within_s
    while not condition():
        assert w.clock.now() < end, w.report()
        w.turn(1.0)
        w.check()


def ends_well(w: World, *jobs: str) -> None:
    w.heal()
    w.calm(2.0)
    for job in jobs:
        assert set(w.states(job)) == {JobState.COMPLETED}, w.states(job)
    w.check_replay()
    w.check_bill()


PHASES = (S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING, S.TERMINATING)


def reach(w: World, phase: ClaimState) -> str:
    """A job, and the first moment at which its claim is, or has been, in the phase."""
    job = w.slurm.submit(JobSpec(run_s=60, time_limit_s=20 * 3600, cpus_per_node=4))

    def there() -> bool:
        return any(e.new == phase for c in w.all_claims() for e in w.store.claim_events(c.id))

    until(w, there, 600)
    return job


@pytest.mark.crash
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.value)
def test_a_full_disk_in_any_phase_costs_time_only(world: World, phase: ClaimState) -> None:
    w = world
    job = reach(w, phase)
    made, calls = len(w.launched_instances()), len(w.calls)
    w.disk.writes_left = 0
    w.slurm.submit(JobSpec(run_s=60, cpus_per_node=4))
    w.run(200)
    assert w.disk.was_full
    assert "the record cannot be written" in w.alarm
    assert "free some" in w.alarm
    assert not [c for c in w.calls[calls:] if c.endswith(".launch")] or phase in (S.PLANNED, S.LAUNCHING)
    assert len(w.launched_instances()) <= made + 1, "nothing is launched that is not on record"
    w.kill()
    ends_well(w, job)
    assert not w.alarm


@pytest.mark.crash
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.value)
def test_an_end_in_any_phase_is_taken_up_where_it_was(world: World, phase: ClaimState) -> None:
    """SIGTERM: the loop ends after its step, calls under way are left without an answer."""
    job = reach(world, phase)
    world.kill()
    world.clock.advance(30)
    ends_well(world, job)
    assert len({one.id for one in world.launched_instances()}) <= 2


@pytest.mark.crash
def test_slots_that_are_renamed_while_machines_live_keep_their_jobs_then_go(world: World) -> None:
    w = world
    job = w.slurm.submit(JobSpec(run_s=600, time_limit_s=20 * 3600, cpus_per_node=4))
    until(w, lambda: w.states(job) == [JobState.RUNNING], 120)
    slot = w.slurm.job(job).nodes[0]
    assert w.reconciler is not None
    rules = w.reconciler.config
    cpu = rules.pools["cpu"]
    renamed = replace(cpu, slots=tuple(f"new-{name}" if name == slot else name for name in cpu.slots))
    w.reconciler.reload(replace(rules, pools={**rules.pools, "cpu": renamed}))
    later = w.slurm.submit(JobSpec(run_s=60, cpus_per_node=4))
    w.run(300)
    assert w.states(job) == [JobState.RUNNING]
    until(w, lambda: not [c for c in w.claims() if c.slot == slot], 1200)
    assert w.slurm.job(job).restarts == 0
    ends_well(w, job, later)


@pytest.mark.crash
def test_a_pin_of_a_pool_that_goes_leaves_no_machine(world: World) -> None:
    w = world
    w.store.set_scale_override(Pin("gpu", 1, "floor", None, "user:root", w.clock.now()))
    until(w, lambda: any(c.pool == "gpu" and c.state is S.IN_SERVICE for c in w.claims()), 200)
    assert w.reconciler is not None
    rules = w.reconciler.config
    w.reconciler.reload(replace(rules, pools={"cpu": rules.pools["cpu"]}))
    until(w, lambda: not w.claims(), 600)
    w.reconciler.reload(rules)
    w.store.remove_scale_overrides("gpu", "user:root")
    ends_well(w)


@pytest.mark.crash
def test_a_policy_that_is_removed_while_it_keeps_machines_lets_them_go(world: World) -> None:
    w = world
    assert w.reconciler is not None
    (idle,) = w.reconciler.config.policies
    settings = policies_schedule.ScheduleSettings.model_validate(
        {"windows": {"warm": {"cron": "* * * * *", "length": "1h", "pools": ["cpu"], "min_nodes": 2}}}
    )
    w.set_policies([idle, policies_schedule.plugin.make(settings)])
    until(w, lambda: len([c for c in w.claims() if c.state is S.IN_SERVICE]) == 2, 200)
    w.run(600)
    assert len(w.running_instances()) == 2, "the policy keeps them"
    w.set_policies([idle])
    until(w, lambda: not w.claims(), 300)
    ends_well(w)


@pytest.mark.crash
@pytest.mark.parametrize("kills", [KILLS])
def test_kills_with_a_hundred_slots(
    tmp_path: Path,
    template: Path,
    monkeypatch: pytest.MonkeyPatch,
    kills: int,
) -> None:
    names = tuple(f"c{i}" for i in range(1, SLOTS + 1))
    monkeypatch.setattr(crash_world, "CPU_SLOTS", names)
    monkeypatch.setattr(crash_world, "SLOTS", frozenset(names + crash_world.GPU_SLOTS))
    w = LargeWorld(tmp_path, template=template, alpha="sim")
    chance = random.Random(11)  # noqa: S311 - a repeatable order
    jobs: list[str] = []
    for _ in range(kills):
        if len(jobs) < 3 * SLOTS:
            spec = JobSpec(run_s=chance.choice((30, 120, 600)), time_limit_s=20 * 3600, cpus_per_node=4)
            jobs += [w.slurm.submit(spec) for _ in range(chance.randint(1, 12))]
        w.start()
        w.crash_points.arm(chance.randint(1, 400))
        w.run(chance.uniform(1.0, 40.0))
        w.crash_points.disarm()
        w.kill()
        w.check()
    ends_well(w, *jobs)


class LargeWorld(World):
    """Clouds with room for all slots."""

    def _sim_kit(
        self, name: str, way: Idempotency, lag_s: float, _few: tuple[int, int] = (4, 3),
        prices: tuple[str, str] = ("1.5", "5.0"), *, batches: bool = False,
    ) -> SimKit:  # fmt: skip
        return super()._sim_kit(name, way, lag_s, (SLOTS, 3), prices, batches=batches)


def test_a_damaged_page_ends_the_start_with_place_and_remedy_and_a_restore_mends_it(daemon: LoneDaemon) -> None:
    clock = ManualClock(time.time())
    with Store.open(daemon.database, clock) as store:
        store.make_claims([planned(f"c{i}", f"n{i}") for i in range(200)])
    copy = daemon.state / "copy.db"
    back_up_database(daemon.database, copy)
    content = bytearray(daemon.database.read_bytes())
    content[4096 * 9 : 4096 * 12] = os.urandom(4096 * 3)
    daemon.database.write_bytes(content)
    for _ in range(2):
        code, said = daemon.run()
        assert code == EX_UNAVAILABLE
        assert str(daemon.database) in said
        assert "burstctl restore" in said
        assert "Traceback" not in said
        assert daemon.database.read_bytes() == content, "it is kept for .recover"
    restore_database(daemon.database, copy)
    daemon.start()
    assert daemon.stop() == 0


def test_a_page_that_is_damaged_under_a_running_burstd_is_an_alarm_and_no_end(daemon: LoneDaemon) -> None:
    with Store.open(daemon.database, ManualClock(time.time())) as store:
        store.make_claims([planned(f"c{i}", f"n{i}") for i in range(200)])
    daemon.start()
    daemon.wait_for("machines of ")
    with sqlite3.connect(daemon.database) as other:
        # Of an index that every loop reads: its content is moved into the file first, then the file is written over.
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = other.execute("SELECT rootpage FROM sqlite_master WHERE name='ix_claim_launch_called'").fetchone()
    with daemon.database.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(bytes([255]) * 4096)
    daemon.wait_for("is damaged")
    daemon.stop()
    assert "Traceback" not in daemon.log_text()
    assert daemon.run()[0] == EX_UNAVAILABLE


def test_a_record_of_a_newer_burstd_is_refused_with_the_remedy(daemon: LoneDaemon) -> None:
    Store.open(daemon.database, ManualClock()).close()
    with sqlite3.connect(daemon.database) as other:
        other.execute("UPDATE alembic_version SET version_num='9999'")
    code, said = daemon.run()
    assert code == EX_UNAVAILABLE
    assert "written by a newer burstd" in said
    assert "install that version again, or restore the backup" in said


def test_sigterm_ends_it_although_a_cloud_never_answers(daemon: LoneDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        text = daemon.settings.read_text().replace("127.0.0.1:9", f"127.0.0.1:{deaf.getsockname()[1]}")
        daemon.settings.write_text(text)
        daemon.start()
        deaf.settimeout(30)
        deaf.accept()
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < patience_s(15)
