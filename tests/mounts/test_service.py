"""The mount service: what it tells the planner, burstctl and the logs of jobs."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.mounts import MountedTree
from burstd.domain.snapshot import SlurmView
from burstd.mounts.service import MountContext, MountService
from burstd.mounts.streams import Stream
from burstd.mounts.unstarted import UnstartedJobs
from burstd.settings import Settings, parse_settings
from burstd.transfer.privsep.errors import Account, UserWorkerError, account
from tests.crash.workers import QueuedWorkers
from tests.mounts.test_controller import CPU, FakeStreams, run_all
from tests.planner.worlds import NOW, claim, job
from tests.virtual.clock import VirtualClock

ME = getpass.getuser()


class World:
    """A service in a folder; ``faults`` is what Slurm lacks, None: it does not answer."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.clock = VirtualClock(NOW)
        self.workers = QueuedWorkers(self.clock, {})
        self.streams = FakeStreams()
        self.faults: Sequence[str] | None = ()
        unstarted = UnstartedJobs(self.workers, self.clock, lambda: 0.0, lambda *_: True)
        context = MountContext(
            self.streams, self.workers, self.clock, lambda: {"cpu": CPU}, os.geteuid, unstarted,
            lambda: 22, self.read_faults,
        )  # fmt: skip
        self.service = MountService(self.settings("home = { path = '{home}' }"), context, stack)

    def settings(self, *trees: str) -> Settings:
        folders = f"[daemon]\nruntime_dir = '{self.folder}'\nspool_dir = '{self.folder}'\n"
        return parse_settings(f"cluster = 'x'\n{folders}[mounts.trees]\n" + "\n".join(trees))

    def read_faults(self) -> Sequence[str]:
        if self.faults is None:
            raise SchedulerUnavailable("no answer")
        return self.faults

    def step(self, seconds: float = 31.0) -> None:
        self.clock._now += seconds
        jobs = (job("1", user=ME), job("2", user="nobody-at-all"))
        self.service.step(SlurmView(jobs, {}, (), read_at=self.clock.now()), [])
        run_all(self.workers)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_what_slurm_lacks_is_an_alarm_until_it_has_it(world: World) -> None:
    fault = "PrologSlurmctld: jobs start before the trees of [mounts] are there: set PrologSlurmctld"
    world.faults = [fault]
    world.step()
    assert world.service.alarms() == [fault]
    world.faults = None
    world.step()
    assert world.service.alarms() == [fault], "what is not known is not put right"
    world.faults = ()
    world.step(90)
    assert world.service.alarms() == []
    world.faults = [fault]
    world.step()
    assert world.service.alarms() == [], "it is looked at every ten minutes"
    world.service.reload(world.settings("work = { path = '/work' }").mounts)
    world.step()
    assert world.service.alarms() == [fault], "and after a reload"
    world.service.reload(world.settings().mounts)
    world.step()
    assert world.service.alarms() == [], "without trees nothing is needed"


def test_homes_of_users_who_wait_are_known(world: World) -> None:
    world.step()
    assert world.service.view().homes == {ME: account(ME).home}
    assert [rule.name for rule in world.service.view().rules] == ["home"]


def test_homes_are_asked_for_again_where_the_account_database_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(user: str) -> Account:
        raise UserWorkerError(user, 0, f"{user} cannot be looked up")

    with monkeypatch.context() as patched:
        patched.setattr("burstd.mounts.service.account", no_answer)
        world.step()
    assert world.service.view().homes == {}
    world.step()
    assert world.service.view().homes == {ME: account(ME).home}


def test_a_path_is_judged_by_the_trees_that_stand(world: World) -> None:
    here = claim("cpu1", ClaimState.IN_SERVICE)
    home = account(ME).home
    assert world.service.shows_path(here, f"{home}/x", ME)
    assert not world.service.shows_path(here, "/old/x", ME)
    world.streams.up[here.id, os.geteuid()] = Stream(ME, (MountedTree("/old"),))
    assert world.service.shows_path(here, "/old/x", ME)
    assert not world.service.shows_path(here, f"{home}/x", ME)
