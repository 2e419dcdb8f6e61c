"""Runs that did not start are noticed once, and their cause is on record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.errors import NodeNotReady
from burstd.domain.launch_failure import Blame, LaunchFault
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.reconciler.pollers.launch_failures import FAILED, MAX_LOGS, LaunchFailures
from burstd.reconciler.quarantine import Quarantine
from tests.db.samples import ManualClock
from tests.planner.worlds import NOW, claim, job, make_snapshot, pool, slot_node
from tests.virtual.clock import VirtualClock

if TYPE_CHECKING:
    from burstd.reconciler.context import LoopContext

CPU = pool(slots=8)
FAULT = LaunchFault("slurmstepd does not start there", "see slurmd's log on the node", Blame.UNHEALTHY)
HELD = job("7", reason="JobLaunchFailure", restarts=1, submitted=NOW - 10, number="7")
ENDED = replace(HELD, state=JobState.FAILED, exit_code="0:53", restarts=0, node_list=("cpu2",), id="9_1", number="10")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "burstd.db", ManualClock()) as opened:
        yield opened


class Bench:
    """A poller, and machines whose logs it reads."""

    def __init__(self, store: Store) -> None:
        self.asked: list[tuple[str, str, bool]] = []
        self.logs: dict[str, LaunchFault | Exception] = {}
        self.store = store
        context = SimpleNamespace(
            store=store, quarantine=Quarantine(VirtualClock()), validator=self, workers=self, clock=VirtualClock()
        )
        self.poller = LaunchFailures(cast("LoopContext", context))

    def launch_fault(self, one: Claim, number: str, *, held: bool) -> LaunchFault | None:
        self.asked.append((one.slot, number, held))
        found = self.logs.get(one.slot)
        if isinstance(found, Exception):
            raise found
        return found

    def submit(self, _queue: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    def step(
        self, *jobs: Job, ended: tuple[Job, ...] = (), placed: dict[str, tuple[str, ...]] | None = None
    ) -> Snapshot:
        nodes = tuple(
            replace(slot_node(CPU, name, up=True), last_busy=NOW - 100 * index) for index, name in enumerate(CPU.slots)
        )
        claims = tuple(claim(name, S.IN_SERVICE) for name in CPU.slots)
        snapshot = make_snapshot(*jobs, pools=(CPU,), claims=claims, nodes=nodes)
        assert isinstance(snapshot.slurm, SlurmView)
        snapshot = replace(snapshot, slurm=replace(snapshot.slurm, ended=ended))
        return self.poller.step(self.poller.step(snapshot, placed or {}), placed or {})

    def events(self) -> list[tuple[str, str, object]]:
        return [(e.subject, e.reason, e.data["run"]) for e in self.store.events(limit=99) if e.new == FAILED]


def test_the_log_of_a_job_that_ended_is_read_once_on_its_first_node(store: Store) -> None:
    bench = Bench(store)
    bench.logs["cpu2"] = FAULT
    snapshot = bench.step(ended=(ENDED,))
    assert bench.asked == [("cpu2", "10", False)]
    found = snapshot.runtime_state.launch_failures["9_1"]
    assert (found.run, found.slot, found.fault, found.user) == (0, "cpu2", FAULT, "ada")
    said = "its launch on cpu2 failed: slurmstepd does not start there; see slurmd's log on the node"
    assert bench.events() == [("job:9_1", said, 0)]
    again = Bench(store)
    assert again.step(ended=(ENDED,)).runtime_state.launch_failures["9_1"].fault == FAULT
    assert again.asked == []


def test_of_a_job_that_is_held_the_likeliest_nodes_are_searched(store: Store) -> None:
    bench = Bench(store)
    bench.logs = {"cpu5": FAULT, "cpu1": NodeNotReady("no answer")}
    snapshot = bench.step(HELD, placed={"7": ("cpu5",)})
    assert bench.asked == [("cpu5", "7", True)]
    assert snapshot.runtime_state.launch_failures["7"].slot == "cpu5"
    bench.asked.clear()
    bench.step(replace(HELD, restarts=2))
    assert [slot for slot, _, _ in bench.asked] == ["cpu1", "cpu2", "cpu3", "cpu4"]
    assert len(bench.asked) == MAX_LOGS
    assert bench.events()[-1] == (
        "job:7", "its launch failed: slurmd's log of cpu1 cannot be read: no answer; see slurmctld's log", 1
    )  # fmt: skip


def test_jobs_of_the_sites_own_nodes_are_not_ours(store: Store) -> None:
    bench = Bench(store)
    bench.step(replace(HELD, partitions=("onprem",)), ended=(replace(ENDED, node_list=("op1",)),))
    assert (bench.asked, bench.events()) == ([], [])
