"""What one step of the desk costs where thousands of jobs wait, and whose output a job waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from burstd.db import Store, stage_subject
from burstd.domain.snapshot import SlurmView
from burstd.domain.staging import Directives, StageIn, StageOut, Staging, Tree
from burstd.domain.staging import StageState as S
from burstd.planner.staging.transfer_schedule import DecayedThroughput, StorageUse, TransferLimits, TransferRates
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.hooks.stage_server import StageCall
from burstd.staging.controller.controller import StageRules, StagingController
from burstd.staging.controller.job_runs import StagingCycle, StagingRun
from burstd.staging.controller.snapshot_view import data_views
from burstd.staging.controller.tasks import Meter, StageFailed, StagingTask
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.submission.job_chains import OutputDependencies
from burstd.staging.submission.quota import (
    QuotaUsage,
    eviction_text,
    hold_text,
    no_quota,
    over_quota,
    trees_to_evict,
)
from burstd.transfer.content_store.index import IndexedTree
from burstd.transfer.privsep.client import Account
from tests.crash.stage_ground import FakeTransfers
from tests.crash.stage_world import POOLS, StageWorld

pytestmark = pytest.mark.crash


def staging(
    job_id: str, state: S, *, user: str = "ada", source: str = "", to: str = "", created: float = 0.0, resume: str = ""
) -> Staging:
    directives = Directives(
        (StageIn(source, "in"),) if source else (), (StageOut("out", to),) if to else ()
    )  # fmt: skip
    return Staging(job_id, user, 1001, 1001, directives, state, created, created, "store", resume=resume)


def account(user: str) -> Account:
    return Account(user, 1001, 1001, (1001,), f"/home/{user}")


@pytest.mark.parametrize(
    ("source", "other", "waits"),
    [
        ("/p/a", {"to": "/p/a"}, True),
        ("/p/a/b", {"to": "/p/a"}, True),
        ("${HOME}/a", {"to": "/home/ada/a/b/c/"}, True),
        ("/p/ab", {"to": "/p/a"}, False),
        ("/p/a", {"to": "/p/a", "state": S.FETCHED, "ending": True}, True),
        ("/p/a", {"to": "/p/a", "state": S.FETCHED}, False),
        ("/p/a", {"to": "/p/a", "state": S.HELD, "resume": "delivering"}, False),
        ("/p/a", {"to": "/p/a", "user": "bob"}, False),
        ("/p/a", {"to": "/p/a", "created": 5.0}, False),
        ("/p/a", {"to": "/p/a", "created": 6.0}, False),
        ("/p/a", {"to": ""}, False),
    ],
)
def test_input_waits_for_output_of_the_same_user_from_before(source: str, other: dict[str, Any], waits: bool) -> None:
    ending = other.pop("ending", False)
    row = staging("9", S.WAITING, source=source, created=5.0)
    before = staging("1", other.pop("state", S.DELIVERING), **{"created": 4.0, **other})
    chain = OutputDependencies(account)
    chain.update([row, before], lambda _job: ending, 10.0)
    assert chain.awaited_job(row) == ("1" if waits else "")


class CountingStore:
    """A store that counts what it is asked for."""

    def __init__(self, store: Store, calls: Counter[str]) -> None:
        self._store, self._calls = store, calls

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._store, name)


class InlineWorkers:
    """Workers that look and ask Slurm at once, and never come to the end of a transfer."""

    def submit(
        self,
        lane: str,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        quiet: Callable[[Any], bool] | None = None,
        user: int | None = None,
    ) -> None:
        """See Workers."""
        assert quiet is None
        assert user in (None, 1001)
        if lane in ("stage:slurm", "stage:look"):
            done(work())

    def post(self, done: Callable[[], None]) -> None:
        """See Workers."""
        done()

    def run_callbacks(self, _broke: object = None) -> int:
        """See Workers."""
        return 0


class PendingTransfers(FakeTransfers):
    """All jobs wait, for Slurm, but those of ``states``."""

    states: Mapping[str, str] = MappingProxyType({})

    def query_job(self, job_id: str) -> JobFacts | None:
        """See Transfers."""
        state = self.states.get(job_id, "PENDING")
        return JobFacts(
            job_id, job_id, "ada", 1001, 1001, "", ("burst",), state, "0:0", (), "", "", "", 0
        )  # fmt: skip


def test_a_step_reads_the_record_once_and_no_accounts_however_many_wait(tmp_path: Path, template: Path) -> None:
    world = StageWorld(tmp_path, template=template)
    store, calls, asked = world.store, Counter[str](), Counter[str]()

    def who(user: str) -> Account:
        asked[user] += 1
        return account(user)

    desk = StagingController(
        store=cast("Store", CountingStore(store, calls)), workers=InlineWorkers(), clock=world.clock,
        transfers=PendingTransfers(world.locations, world.slurm), pools=lambda: POOLS,
        rules=StageRules(JobFolders("/scratch", b"key"), "store", TransferLimits(4, 2)), find_account=who,
    )  # fmt: skip
    with store.batch():
        store.make_staging(staging("0", S.WAITING, to="/home/ada/x"))
        store.transition_staging("0", S.WAITING, S.STAGED, "")
        store.transition_staging("0", S.STAGED, S.FETCHING, "", nodes=("c1",))
        store.transition_staging("0", S.FETCHING, S.FETCHED, "")
        store.transition_staging("0", S.FETCHED, S.COLLECTING, "")
        store.transition_staging("0", S.COLLECTING, S.DELIVERING, "")
        for n in range(1, 3000):
            store.make_staging(staging(str(n), S.WAITING, source=f"/data/{n}", created=1.0))
    for n in range(3000):
        desk.handle_hook(StageCall("data_out" if not n else "data_in", str(n), 1001, 1001), lambda _reply: None)
    view = SlurmView((), {}, (), world.clock.now())
    for _ in range(4):
        world.clock.advance(1)
        desk.step(view, ())
    assert len([row for row in desk.recorded_stagings() if row.state is S.UPLOADING]) == 2
    desk.data_views()
    calls.clear()
    world.clock.advance(1)
    desk.step(view, ())
    assert len(desk.data_views()) == 3000
    assert calls == {"stagings": 1}
    assert asked == {"ada": 1}
    world.kill()


@pytest.mark.parametrize(("now", "waits"), [("RUNNING", False), ("COMPLETING", True), ("COMPLETED", True)])
def test_input_waits_for_a_job_that_ended_before_slurm_asks_for_its_output(
    tmp_path: Path, template: Path, now: str, waits: bool
) -> None:
    world = StageWorld(tmp_path, template=template)
    store, transfers = world.store, PendingTransfers(world.locations, world.slurm)
    desk = StagingController(
        store=store, workers=InlineWorkers(), clock=world.clock, transfers=transfers, pools=lambda: POOLS,
        rules=StageRules(JobFolders("/scratch", b"key"), "store", TransferLimits(4, 2)), find_account=account,
    )  # fmt: skip
    with store.batch():
        store.make_staging(staging("1", S.WAITING, to="/home/ada/x"))
        store.transition_staging("1", S.WAITING, S.STAGED, "")
        store.transition_staging("1", S.STAGED, S.FETCHING, "", nodes=("c1",))
        store.transition_staging("1", S.FETCHING, S.FETCHED, "")

    def loops() -> Staging:
        for _ in range(4):
            world.clock.advance(1)
            desk.step(SlurmView((), {}, (), world.clock.now()), ())
        return store.stagings()[-1]

    transfers.states = {"1": "RUNNING"}
    loops()
    transfers.states = {"1": now}
    text = "#!/bin/sh\n#BURST stage_in /home/ada/x as x\n"
    desk.handle_hook(StageCall("data_in", "2", 1001, 1001, script="/s/job.2/script", text=text), lambda _: None)
    row = loops()
    assert row.job_id == "2"
    assert ("what job 1 leaves" in row.error) is waits
    assert (row.state is S.UPLOADING) is not waits
    world.kill()


@pytest.mark.parametrize(
    ("state", "error", "moved", "still_s", "known"),
    [
        (S.WAITING, "", 0, 0, True),
        (S.WAITING, "the store does not answer", 0, 0, False),
        (S.UPLOADING, "", 50, 100, True),
        (S.UPLOADING, "", 50, 130, False),
        (S.UPLOADING, "the store does not answer", 50, 0, True),
        (S.UPLOADING, "the store does not answer", 0, 0, False),
    ],
)
def test_no_node_is_started_for_input_that_does_not_move(
    state: S, error: str, moved: int, still_s: float, known: bool
) -> None:
    row, run, now = replace(staging("1", state, source="/data"), error=error), StagingRun("1"), 0.0
    run.cycle.input_bytes = 100
    meter = Meter("in", "in", lambda: now)
    meter.set_counts(done=40 + moved, sent=moved, hits=40)
    run.add_task("in", StagingTask(row, meter))
    run.task_progress("in")
    now = still_s
    rates = TransferRates({("store", "in"): DecayedThroughput(1000.0, 1.0)})
    (view,) = data_views([row], lambda _job: run, rates, 1e9, lambda _row, _run: 0.0).values()
    assert bool(view.ready_at) is known


def test_a_store_that_is_away_while_sending_is_told_and_gives_its_turn_to_others(
    tmp_path: Path, template: Path
) -> None:
    world = StageWorld(tmp_path, template=template)
    job = world.submit("7")
    world.locations.faults["send", job] = StageFailed("the store does not answer", retryable=True, retry_after_s=500)
    world.run(60, lambda: world.state(job) is S.WAITING and bool(world.store.staging(job).error))
    other = world.submit("8")
    world.run(60, world.phase(other, "running"))
    row = world.store.staging(job)
    assert (row.state, row.attempts, row.error) == (S.WAITING, 1, "the store does not answer")
    world.calm()
    world.check_end()
    world.kill()


def staging_of_size(job_id: str, state: S, size: int, source: str, **fields: Any) -> tuple[Staging, StagingCycle]:
    row = replace(staging(job_id, state, source=source), **{"account": "p", **fields})
    return row, StagingCycle(input_bytes=size, sources=(source,))


@pytest.mark.parametrize(
    ("others", "there", "more", "sure"),
    [
        ([], 0, True, True),
        ([staging_of_size("1", S.UPLOADING, 40, "/b")], 0, False, True),
        ([staging_of_size("1", S.UPLOADING, 40, "/a")], 0, True, True),
        ([staging_of_size("1", S.UPLOADING, 40, "/b", uid=2, account="q")], 0, True, True),
        ([staging_of_size("1", S.UPLOADING, 40, "/b", uid=2)], 0, False, True),
        ([staging_of_size("1", S.WAITING, 40, "/b")], 0, True, True),
        ([staging_of_size("1", S.STAGED, 40, "/b", bytes_in=40, staged=990.0)], 0, False, False),
        ([staging_of_size("1", S.STAGED, 40, "/b", bytes_in=40, staged=900.0)], 0, True, True),
        ([staging_of_size("1", S.UPLOADING, 40, "/b")], 40, True, True),
        ([staging_of_size("1", S.UPLOADING, 20, "/b")], 10, True, True),
    ],
)
def test_a_quota_counts_what_is_being_sent_and_the_same_source_once(
    others: list[tuple[Staging, StagingCycle]], there: int, more: bool, sure: bool
) -> None:
    row, life = staging_of_size("9", S.WAITING, 40, "/a")
    taken = QuotaUsage(StorageUse("ada", 50, 100), StorageUse("p", 50, 100), there)
    shortage, is_sure = over_quota(row, life, [(row, life), *others], taken, 1000.0)
    assert (shortage is None, is_sure) == (more, sure)
    if shortage is not None:
        leaving = replace(taken, settled=False)
        assert over_quota(row, life, [(row, life), *others], leaving, 1000.0) == (shortage, False)


def cached(source: str, size: int, used: float, **fields: Any) -> IndexedTree:
    tree = Tree("in", f"{source:0>64}", (), 1, size)
    return replace(IndexedTree("store", tree, 1, "p", source, size, 1.0, used), **fields)


OLD, NEW, FOREIGN = cached("/old", 30, 1.0), cached("/new", 30, 2.0), cached("/foreign", 30, 0.5, account="q")
USED = QuotaUsage(
    StorageUse("ada", 90, 100), StorageUse("p", 90, 200), trees=(FOREIGN, OLD, NEW), needed={NEW.tree.digest: ("3",)}
)


@pytest.mark.parametrize(
    ("size", "usage", "others", "evicted"),
    [
        (20, USED, [], (FOREIGN,)),
        (50, USED, [], (FOREIGN, OLD)),
        (80, USED, [], ()),
        (20, USED, [staging_of_size("1", S.WAITING, 30, "/foreign")], (OLD,)),
        (20, USED, [staging_of_size("1", S.DELIVERING, 30, "/foreign")], (FOREIGN,)),
        (20, USED, [staging_of_size("1", S.WAITING, 30, "/foreign", uid=2)], (FOREIGN,)),
        (20, replace(USED, user=StorageUse("ada", 90, None), project=StorageUse("p", 60, 70)), [], (OLD,)),
    ],
)
def test_what_leaves_the_store_for_a_quota(
    size: int, usage: QuotaUsage, others: list[tuple[Staging, StagingCycle]], evicted: tuple[IndexedTree, ...]
) -> None:
    row, life = staging_of_size("9", S.WAITING, size, "/a")
    shortage, _ = over_quota(row, life, others, usage, 1000.0)
    assert shortage is not None
    assert trees_to_evict(row, shortage, usage, others) == evicted


def test_what_is_told_of_a_quota_that_is_full() -> None:
    row, life = staging_of_size("9", S.WAITING, 80, "/a")
    others = [staging_of_size("1", S.WAITING, 30, "/new"), staging_of_size("2", S.FETCHED, 30, "/foreign")]
    shortage, _ = over_quota(row, life, others, USED, 1000.0)
    assert shortage is not None
    assert eviction_text(shortage, [OLD]) == (
        "the input is 80 B, and user ada may stage 10 B more (90 B of 100 B are in use): /old (30 B) leaves the store, "
        "as no waiting or running job needs it"
    )
    assert hold_text(row, life, shortage, USED, others) == (
        "the input is 80 B, and user ada may stage 10 B more (90 B of 100 B are in use); of ada's data /foreign (30 B) "
        "is needed by job 2, /new (30 B) is needed by jobs 3, 1; run 'burstctl stage retry 9' when these jobs are "
        "over, stage less, or ask the administrator for a larger quota"
    )
    sending = [*others, staging_of_size("4", S.UPLOADING, 40, "/b")]
    assert ", /new (30 B) is needed by jobs 3, 1, 40 B that job 4 sends now; run" in hold_text(
        row, life, shortage, USED, sending
    )
    assert hold_text(row, replace(life, input_bytes=120), shortage, USED, others) == (
        "the input is 120 B, and the staging quota of user ada is 100 B: stage less, or ask the administrator for a "
        "larger quota"
    )


def test_what_no_job_needs_leaves_a_full_quota_before_input_is_sent(tmp_path: Path, template: Path) -> None:
    world = StageWorld(tmp_path, template=template)
    left: list[tuple[int, Sequence[IndexedTree]]] = []
    old = cached("/old", 900, 1.0)

    def quotas(row: Staging, _sources: Sequence[str]) -> QuotaUsage:
        used = 0 if left else 900
        return QuotaUsage(StorageUse(row.user, used, 1500), StorageUse("", 0, None), trees=() if left else (old,))

    world.quotas, world.evict = quotas, lambda uid, trees: left.append((uid, trees))
    world.kill()
    world.start()
    job = world.submit("7")
    world.run(60, world.phase(job, "running"))
    row = world.store.staging(job)
    assert left == [(row.uid, (old,))]
    reasons = [event.reason for event in world.store.events(subject=stage_subject(job))]
    assert reasons[1] == (
        "the input is 1000 B, and user ada may stage 600 B more (900 B of 1.46 KiB are in use): /old (900 B) leaves "
        "the store, as no waiting or running job needs it"
    )
    world.calm()
    world.check_end()
    world.kill()


def test_input_beyond_the_quota_is_held_before_it_is_sent(tmp_path: Path, template: Path) -> None:
    world = StageWorld(tmp_path, template=template)
    world.quotas = lambda row, _sources: QuotaUsage(
        StorageUse(row.user, 0, 1500 if row.user == "ada" else 500), StorageUse("", 0, None)
    )
    world.kill()
    world.start()
    few, many = world.submit("7"), world.submit("8", user="bob")
    world.run(60, world.phase(few, "running"))
    world.run(60, world.phase(many, "held"))
    row = world.store.staging(many)
    assert (row.state, world.count("send", many)) == (S.HELD, 0)
    assert row.error.startswith("the input is 1000 B, and the staging quota of user bob is 500 B: stage less, or ask")
    assert row.is_owners_matter
    world.quotas = no_quota
    world.kill()
    world.start()
    world.calm()
    world.check_end()
    world.kill()
