"""B4. A wrong clock of the head falsifies neither time nor bill, and is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.db import Store, StoreReader, replay_claims
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.job import JobState
from burstd.node.errors import ClockNotSet
from burstd.runtime.clock import CLOCK_KEY, ClockCheckpoint, HeadClockMonitor
from tests.crash.conftest import quiet, template
from tests.crash.workers import Delay
from tests.crash.world import World
from tests.db.samples import ManualClock, planned
from tests.doubles.lone_daemon import LoneDaemon
from tests.virtual.job import JobSpec
from tests.virtual.validator import SimValidator

__all__ = ["quiet", "template"]

S = ClaimState
DAY = 86400.0
AHEAD = "import time; real = time.time; time.time = lambda: real() + 40 * 86400.0"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LoneDaemon]:
    made = LoneDaemon(tmp_path)
    yield made
    made.kill()


def machine(store: Store, clock: ManualClock, claim_id: str = "c1") -> None:
    """One that has been open, and billed, for an hour."""
    clock.time -= 3600
    claim = planned(claim_id, "c1")
    store.make_claims(
        [replace(claim, offer=replace(claim.offer, provider="alpha", price=Decimal(10)), created=clock.time)]
    )
    store.transition_claim(claim_id, S.PLANNED, S.LAUNCHING, "asked", launch_called=clock.time)
    store.transition_claim(claim_id, S.LAUNCHING, S.BOOTING, "made", instance_id="i-1", billed_from=clock.time)
    for old, new in ((S.BOOTING, S.VALIDATING), (S.VALIDATING, S.READY), (S.READY, S.IN_SERVICE)):
        store.transition_claim(claim_id, old, new, "on its way")
    clock.time += 3600


def total(daemon: LoneDaemon) -> Decimal:
    with StoreReader.open(daemon.database, ManualClock(time.time())) as reader:
        return sum((line.cost for line in reader.bill("claim", 0.0)), Decimal(0))


@pytest.mark.slow
def test_forty_days_ahead_at_one_restart_leave_time_and_bill_right(daemon: LoneDaemon) -> None:
    daemon.start()
    daemon.stop()
    clock = ManualClock(time.time())
    with Store.open(daemon.database, clock) as store:
        machine(store, clock)
    daemon.start(before=AHEAD)
    daemon.wait_for("40.0 d ahead of the time that burstd has counted")
    assert daemon.stop() == 0
    daemon.start()
    daemon.stop()
    assert "40.0 d" not in daemon.log_text()
    with StoreReader.open(daemon.database, ManualClock(time.time())) as reader:
        assert abs(reader.last_event_time() - time.time()) < 60
    assert Decimal("9.9") < total(daemon) < Decimal("10.5")


@pytest.mark.slow
def test_a_record_ahead_of_the_clock_is_an_alarm_and_put_right_when_it_is_confirmed(daemon: LoneDaemon) -> None:
    clock = ManualClock(time.time() + 40 * DAY)
    with Store.open(daemon.database, clock) as store:
        machine(store, clock)
        store.log_event("daemon", new="stopped")
    daemon.start()
    daemon.wait_for("40.0 d behind the time that burstd has counted")
    control = str(daemon.settings.parent / "run" / "control.sock")
    said = CliRunner().invoke(app, ["--socket", control, "confirm", "clock"])
    assert said.exit_code == 0, said.output
    assert "systemctl restart burstd" in said.output
    daemon.stop()
    daemon.start()
    daemon.stop()
    now = time.time()
    with StoreReader.open(daemon.database, ManualClock(now)) as reader:
        (claim,) = reader.claims()
        assert reader.last_event_time() <= now
        assert all(
            t is None or t <= now for t in (claim.created, claim.since, claim.billed_from, claim.in_service_from)
        )
        assert replay_claims(reader.events(subject="claim:", limit=1000)) == {claim.id: claim}
    assert Decimal("9.9") < total(daemon) < Decimal("10.5")


def test_an_ended_machine_whose_end_was_written_ahead_is_booked_anew(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    clock = ManualClock(now)
    with Store.open(tmp_path / "burstd.db", clock) as store:
        machine(store, clock)
        clock.time = now + 40 * DAY
        for old, new in ((S.IN_SERVICE, S.DRAINING), (S.DRAINING, S.TERMINATING), (S.TERMINATING, S.GONE)):
            store.transition_claim("c1", old, new, "over")
        wrong = sum((s.amount for s in store.spending() if not s.kind), Decimal(0))
        assert wrong > 9000
        clock.time = now
        store.shift_late_times(now, 40 * DAY)
        assert {(s.amount, s.month) for s in store.spending() if not s.kind and s.amount} == {(Decimal(10), "2027-01")}
        (line,) = store.bill("claim", 0.0)
        assert line.cost == Decimal(10)
        assert replay_claims(store.events(subject="claim:", limit=1000)) == {"c1": store.claim("c1")}
    with Store.open(tmp_path / "burstd.db", clock) as store:
        assert sum((s.amount for s in store.spending() if not s.kind), Decimal(0)) == Decimal(10)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ([("a", 3600.0)], ""),
        ([("a", 3600.0), ("a", 3601.0)], ""),
        ([("a", 3600.0), ("b", 3601.0)], "2 machines"),
        ([("a", 3600.0), ("a", 3601.0), ("a", 3599.0)], "3 machines"),
        ([("a", 3600.0), ("b", -3600.0)], ""),
        ([("a", 10.0), ("b", 3600.0), ("a", 3601.0)], "2 machines"),
        ([("a", 3600.0), ("b", 3601.0), ("a", 90.0)], ""),
    ],
)
def test_a_head_is_wrong_where_machines_agree(seen: list[tuple[str, float]], says: str) -> None:
    head = HeadClockMonitor()
    for number, (offer, off) in enumerate(seen):
        head.record_offset(f"c{number}", offer, off)
    assert (says in head.why_wrong()) if says else head.why_wrong() == ""
    head.confirm()
    assert head.why_wrong() == ""


class _WrongClockValidator(SimValidator):
    off_s = 3600.0

    def validate(self, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        done = super().validate(claim, pool, console, reached)
        if self.off_s:
            raise ClockNotSet(f"{claim.address} has a clock that is off", self.off_s)
        return done


@pytest.mark.crash
def test_a_head_whose_clock_is_wrong_buys_no_machine_after_machine(
    tmp_path: Path,
    template: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.crash.world.SimValidator", _WrongClockValidator)
    w = World(tmp_path, template=template)
    jobs = [w.slurm.submit(JobSpec(run_s=60, cpus_per_node=4)) for _ in range(4)]
    w.run(150)
    first = len(w.launched_instances())
    assert "the clock of this head is 60 min behind those of" in w.alarm
    w.run(600)
    assert len(w.launched_instances()) == first
    w.run(3600)
    # An hour after those are gone others are tried, and say the same; the next wait is of two.
    assert first < len(w.launched_instances()) <= 2 * first
    assert "the clock of this head is 60 min behind those of" in w.alarm
    assert "gone for 2.0 h" in w.alarm
    monkeypatch.setattr(_WrongClockValidator, "off_s", 0.0)
    w.calm(4.0)
    assert all(w.states(job) == [JobState.COMPLETED] for job in jobs)
    assert not w.alarm


@pytest.mark.crash
def test_a_wrong_clock_of_the_head_holds_launches_back_and_nothing_else(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template)
    job = w.slurm.submit(JobSpec(run_s=300, cpus_per_node=4))
    w.run(150)
    assert w.states(job) == [JobState.RUNNING]
    assert w.reconciler is not None
    for number in range(3):
        w.reconciler.head_clock.record_offset(f"gone-{number}", "alpha/x", 3600.0)
    late = w.slurm.submit(JobSpec(run_s=60, cpus_per_node=4, exclusive=True))
    w.run(900)
    assert w.states(job) == [JobState.COMPLETED]
    assert "the clock of this head" in w.alarm
    assert not w.claims(), "the idle machine goes"
    assert not w.running_instances()
    w.run(7200)
    assert w.states(late) == [JobState.COMPLETED]
    assert not w.alarm


def test_what_machines_said_of_the_head_s_clock_is_forgotten_with_them() -> None:
    head = HeadClockMonitor()
    for number in range(3):
        head.record_offset(f"c{number}", "a", 3600.0)
    for now in (0.0, 40_000.0):
        head.forget_machines({"c0", "c1", "c2"}, now)
        assert head.why_wrong()
    head.forget_machines({"c2"}, 43_000.0)
    assert head.why_wrong()
    head.forget_machines({"c2"}, 44_000.0)
    assert not head.why_wrong()
    for number in range(3):
        head.record_offset(f"d{number}", "a", 3600.0)
    head.forget_machines({"d0", "d1", "d2"}, 50_000.0)
    head.forget_machines((), 50_000.0 + 7100)
    assert "2.0 h" in head.why_wrong()
    head.forget_machines((), 50_000.0 + 7300)
    assert not head.why_wrong()


@pytest.mark.crash
def test_a_machine_is_billed_from_its_launch_however_late_the_answer_is(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sim")
    w.delays["alpha"] = Delay(before_s=5.0, after_s=30.0)
    w.slurm.submit(JobSpec(run_s=600, cpus_per_node=4))
    w.run(120)
    (claim,) = w.claims()
    (launched,) = (i.launched for i in w.kits["alpha"].provider.instances() if i.id == claim.instance_id)
    assert claim.billed_from == pytest.approx(launched, abs=1.0)


MOVED = """\
import pathlib, time
wall, steady, text = time.time, time.clock_gettime, pathlib.Path.read_text
def moved(): return float(text(pathlib.Path({moved!r})))
time.time = lambda: wall() + moved()
time.clock_gettime = lambda which: steady(which) + (moved() if which == time.CLOCK_BOOTTIME else 0.0)
pathlib.Path.read_text = lambda path, *a, **k: {boot!r} if path.name == 'boot_id' else text(path, *a, **k)
"""
"""Moves the head's clocks by the seconds that a file names, and gives its boot a name."""


@pytest.mark.slow
def test_a_power_cut_after_a_quiet_day_does_not_set_the_time_back(daemon: LoneDaemon, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.write_text("0")
    clock = ManualClock(time.time())
    with Store.open(daemon.database, clock) as store:
        machine(store, clock)
    daemon.start(before=MOVED.format(moved=str(moved), boot="first"))
    moved.write_text(str(1.25 * DAY))
    end = time.monotonic() + 60
    while True:
        assert time.monotonic() < end, "no mark was written"
        with StoreReader.open(daemon.database, ManualClock(time.time())) as reader:
            mark, events = ClockCheckpoint.parse(reader.metadata(CLOCK_KEY)), reader.last_event_time()
        if mark is not None and mark.time > time.time() + DAY:
            break
        time.sleep(0.1)
    assert events < time.time() + 60, "the day was not a quiet one"
    daemon.kill()
    moved.write_text(str(1.25 * DAY + 600))
    daemon.start(before=MOVED.format(moved=str(moved), boot="second"))
    daemon.stop()
    assert "the time that burstd has counted" not in daemon.log_text()
    with StoreReader.open(daemon.database, ManualClock(time.time())) as reader:
        assert reader.last_event_time() == pytest.approx(time.time() + 1.25 * DAY + 600, abs=60)
