"""What staging as a whole does where its index cannot be used, which holds up nothing but staging."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from burstd.db import NotLeading, Store
from burstd.domain.command import Evict
from burstd.domain.plugins.stager import StagerPlugin, StoreBusy
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import ObjectRange, StageState, Tree
from burstd.node.agent import NodeAgent
from burstd.runtime.clock import SteadyClock
from burstd.runtime.workers import ThreadWorkers
from burstd.settings import PluginRegistry, parse_settings, resolve_plugins
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.stage_server import StageCall
from burstd.staging.controller import service as service_module
from burstd.staging.controller.service import StagingContext, StagingService
from burstd.staging.controller.tasks import InputSize, StageFailed, StagingTask, UploadedInput
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.privsep.client import CHANGING_REQUESTS, Account, UserWorker
from staging.shared import SharedSettings
from tests.crash.stage_world import POOLS
from tests.db.test_stagings import waiting
from tests.transfer.memory import MemoryStager

KEY = "ab" * 32
TREE = Tree("in", KEY, (ObjectRange(KEY, 0, 5),), 1, 5)
DISK = 'kind = "shared"\npath = "{folder}"\n'
LAUNCHED = (
    'kind = "ssh"\npath = "/srv/burst"\nlaunch = [{{ provider = "sky", instance_types = ["c2.*"], image = "node" }}]\n'
    '[providers.sky]\nkind = "sandbox"\nurl = "http://127.0.0.1:9"\ntoken_file = "/t"\n'
)


@pytest.mark.parametrize("store", [DISK, LAUNCHED], ids=["shared", "launched"])
def test_an_index_that_cannot_be_used_is_an_alarm(tmp_path: Path, store: str) -> None:
    path = tmp_path / "stage-index.db"
    (tmp_path / "store").mkdir()
    settings = parse_settings(
        f'cluster = "x"\n[daemon]\nstate_dir = "{tmp_path}"\nruntime_dir = "{tmp_path}"\n'
        f'[staging]\nstore = "near"\n[staging.stores.near]\n{store.format(folder=tmp_path / "store")}'
    )
    index = ContentIndex(path)
    index.record_put("near", "in", {KEY: 5, "cd" * 32: 7})
    index.add_tree("near", TREE, [KEY], uid=4242, account="phys")
    index.close()
    chosen = resolve_plugins(settings, PluginRegistry.installed(), check_files=False).stores["near"]
    clock, wake = SteadyClock(), threading.Event()
    with ExitStack() as stack:
        record = stack.enter_context(Store.open(tmp_path / "burstd.db", clock))
        workers = ThreadWorkers(wake.set, 4)
        stack.callback(workers.close)
        nobody = cast("SlurmCommands", None), cast("NodeAgent", None)  # no job has data, so nobody is asked
        around = StagingContext(record, workers, clock, *nobody, dict, lambda: None, lambda *_: False)
        service = StagingService(settings, chosen, around, stack)
        # Another program at work on the file, or a disk without room, is told as an OperationalError like this one.
        with closing(sqlite3.connect(path)) as db:
            db.execute("alter table trees rename to away")
        unheard = Unavailable("not asked", 0.0)
        service.step(unheard, ())
        drained = 0
        while drained < 2:
            assert wake.wait(20)
            wake.clear()
            drained += workers.run_callbacks()
        assert any("cannot be used" in text for text in service.alarms()), service.alarms()
        said = service.execute_command(Evict("unneeded", "", "ada"))
        assert not said.done
        assert "cannot be used" in said.text
        with closing(sqlite3.connect(path)) as db:
            db.execute("alter table away rename to trees")
        others = service.execute_command(Evict("unneeded", "", "user:bob", owner="bob"))
        assert (others.text, others.changed) == ("0 trees leave the store", False)
        own = service.execute_command(Evict("user", "4242", "user:4242", owner="4242"))
        assert own.text == "1 trees leave the store"
        while any("cannot be used" in text for text in service.alarms()):
            assert wake.wait(20)
            wake.clear()
            workers.run_callbacks()
            service.step(unheard, ())
        for job_id, attempts in (("7", 0), ("8", 3)):
            record.make_staging(replace(waiting(), job_id=job_id))
            record.transition_staging(
                job_id, StageState.WAITING, StageState.HELD, "gone", error="gone", resume="waiting", attempts=attempts
            )
        service.step(unheard, ())
        assert [text for text in service.alarms() if "is held" in text] == [
            "the data of job 8 (ann) is held: gone; repair this and run 'burstctl stage retry 8'"
        ], "what its owner has to mend needs no administrator"
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select count(*) from trees").fetchall() == [(0,)]
        there = 2 if store is DISK else 0  # a store that has no node yet has nothing
        assert db.execute("select count(*) from objects").fetchall() == [(there,)], "what came lately may be of others"


class SleepingStager(MemoryStager):
    """A store that is woken by who asks it; counts how often it was looked through."""

    awake = False
    times_listed = 0

    def free_bytes(self) -> int | None:
        self.times_listed += 1
        return None


class SettableClock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    wall = now


def test_a_store_that_sleeps_is_looked_through_once_a_day(tmp_path: Path) -> None:
    stager, clock, wake = SleepingStager(), SettableClock(), threading.Event()
    settings = parse_settings(
        f'cluster = "x"\n[daemon]\nstate_dir = "{tmp_path}"\nruntime_dir = "{tmp_path}"\n'
        f'[staging]\nstore = "near"\n[staging.stores.near]\n{DISK.format(folder=tmp_path)}'
    )
    chosen = resolve_plugins(settings, PluginRegistry.installed(), check_files=False).stores["near"]
    chosen = replace(chosen, plugin=StagerPlugin("pod", SharedSettings, lambda *_: stager))
    with ExitStack() as stack:
        record = stack.enter_context(Store.open(tmp_path / "burstd.db", clock))
        workers = ThreadWorkers(wake.set, 4)
        stack.callback(workers.close)
        nobody = cast("SlurmCommands", None), cast("NodeAgent", None)
        service = StagingService(
            settings,
            chosen,
            StagingContext(record, workers, clock, *nobody, dict, lambda: None, lambda *_: False),
            stack,
        )

        def looked(later_s: float, *, awake: bool = False) -> int:
            clock.at += later_s
            stager.awake = awake
            service.step(Unavailable("not asked", 0.0), ())
            while service._sweeps.next_due() == float("inf"):
                assert wake.wait(20)
                wake.clear()
                workers.run_callbacks()
            return stager.times_listed

        assert looked(0) == 1
        assert looked(700) == 1
        assert looked(700, awake=True) == 2
        assert [looked(700) for _ in range(3)] == [2, 2, 2]
        assert looked(86400) == 3


class FullStoreTransfers:
    """Transfers to a store that is ``full``; of job 7."""

    full = True

    def query_job(self, job_id: str) -> JobFacts:
        """See Transfers."""
        return JobFacts(job_id, job_id, "bob", 3001, 3001, "", ("burst",), "PENDING", "0:0", (), "/home/bob", "", "")

    def measure_sources(self, _task: StagingTask) -> InputSize:
        """See Transfers."""
        return InputSize(5, 1, True)

    def upload_input(self, _task: StagingTask) -> UploadedInput:
        """See Transfers."""
        if self.full:
            raise StageFailed("near: no space left on device", retryable=True, full=True)
        return UploadedInput({"x": TREE}, 5, 5, 1.0)

    def nudge_scheduler(self, _job_id: str) -> None:
        """See Transfers."""


def test_a_store_without_room_loses_what_nobody_needs_and_where_that_is_nothing_it_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stager, transfers, clock, wake = MemoryStager("near"), FullStoreTransfers(), SettableClock(), threading.Event()
    settings = parse_settings(
        f'cluster = "x"\n[daemon]\nstate_dir = "{tmp_path}"\nruntime_dir = "{tmp_path}"\n'
        f'[staging]\nstore = "near"\n[staging.stores.near]\n{DISK.format(folder=tmp_path)}'
    )
    chosen = resolve_plugins(settings, PluginRegistry.installed(), check_files=False).stores["near"]
    chosen = replace(chosen, plugin=StagerPlugin("shared", SharedSettings, lambda *_: stager))
    monkeypatch.setattr("burstd.staging.controller.service.HeadTransfers", lambda **_: transfers)
    stager.put(object_key("in", KEY), b"cache")
    index = ContentIndex(tmp_path / "stage-index.db")
    index.record_put("near", "in", {KEY: 5})
    index.add_tree("near", TREE, [KEY], uid=4242)
    index.close()
    with closing(sqlite3.connect(tmp_path / "stage-index.db")) as db:
        db.execute("update objects set used = used - 1000")
        db.commit()
    clock.at = time.time() + 100
    with ExitStack() as stack:
        record = stack.enter_context(Store.open(tmp_path / "burstd.db", clock))
        workers = ThreadWorkers(wake.set, 4)
        stack.callback(workers.close)
        nobody = cast("SlurmCommands", None), cast("NodeAgent", None)
        around = StagingContext(record, workers, clock, *nobody, lambda: POOLS, lambda: None, lambda *_: False)
        service = StagingService(settings, chosen, around, stack)
        text = "#!/bin/sh\n#BURST stage_in /x as x\n"
        call = StageCall("data_in", "7", 3001, 3001, script="/s/job.7/script", text=text)

        def until(what: Callable[[], bool]) -> None:
            end = time.monotonic() + 20
            while not what():
                assert time.monotonic() < end, (service.alarms(), record.stagings())
                clock.at += 1
                service.controller.handle_hook(call, lambda _: None)  # a client that does not ask again is dead
                service.step(SlurmView((), {}, (), clock.at), ())
                wake.wait(0.02)
                wake.clear()
                workers.run_callbacks()

        def alarm() -> bool:
            return any("no space for job 7" in text for text in service.alarms())

        until(lambda: not stager.stored)
        assert not alarm(), "there was something to evict"
        until(alarm)
        transfers.full = False
        until(lambda: not alarm())
        assert not record.stagings()[0].error


ASKING_REQUESTS = {
    "set_deadline", "set_cancel_event", "handshake", "close", "walk", "fetch_objects", "measure_source",
    "destination_space", "open_files", "file_facts",
}  # fmt: skip


def test_each_request_to_a_user_worker_is_one_that_asks_or_one_that_changes() -> None:
    assert {name for name in dir(UserWorker) if not name.startswith("_")} == {*CHANGING_REQUESTS, *ASKING_REQUESTS}


def test_a_head_that_is_not_sure_that_it_leads_changes_no_files_and_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been stopped in a delivery, or in clearing up after a run that was followed by another."""
    (tmp_path / "store").mkdir()
    settings = parse_settings(
        f'cluster = "x"\n[daemon]\nstate_dir = "{tmp_path}"\nruntime_dir = "{tmp_path}"\n'
        f'[staging]\nstore = "near"\n[staging.stores.near]\n{DISK.format(folder=tmp_path / "store")}'
    )
    chosen = resolve_plugins(settings, PluginRegistry.installed(), check_files=False).stores["near"]
    clock, mine, its = SteadyClock(), *socket.socketpair()
    monkeypatch.setattr(service_module, "user_worker_for", lambda *_, **__: UserWorker(mine))

    def unsure() -> None:
        raise NotLeading("the server does not answer")

    with ExitStack() as stack:
        record = stack.enter_context(Store.open(tmp_path / "burstd.db", clock))
        workers = ThreadWorkers(lambda: None, 1)
        stack.callback(workers.close)
        nobody = cast("SlurmCommands", None), cast("NodeAgent", None)
        context = StagingContext(record, workers, clock, *nobody, dict, lambda: None, lambda *_: False, sure=unsure)
        service = StagingService(settings, chosen, context, stack)
        with pytest.raises(StoreBusy, match="not asked: the server does not answer"):
            service._stager.delete(["out/1/n1/x"])
        with (
            service._transfers._open_worker(Account("ada", 4242, 4242, (), "/")) as worker,
            pytest.raises(StoreBusy, match="not asked: the server does not answer"),
        ):
            worker.move("/a", "x", "/b", "x", job="1")
        assert its.recv(1) == b""
    its.close()
