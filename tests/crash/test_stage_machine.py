"""Any order of jobs, hooks, crashes and faults: output is home or known to be lost, and in the end nothing is left.

``BURSTD_HYPOTHESIS=long`` looks much further than the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from burstd.staging.controller.tasks import StageFailed
from tests.crash.stage_ground import SLOTS
from tests.crash.stage_world import WORKER_QUEUES, StageWorld
from tests.crash.workers import Delay
from tests.crash.world import memory_folder

pytestmark = pytest.mark.crash

_SHORT = settings(
    derandomize=True, max_examples=60, stateful_step_count=30, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink),
)  # fmt: skip
_LONG = settings(_SHORT, derandomize=False, max_examples=1500, stateful_step_count=60)

seconds = st.sampled_from([0.1, 1.0, 3.0, 10.0, 25.0, 60.0])
kinds = st.sampled_from(["look", "send", "place", "link", "collect", "bring", "clear"])
FAULTS: dict[str, Callable[[], Exception]] = {
    "again": lambda: StageFailed("the store does not answer", retryable=True),
    "later": lambda: StageFailed("the store is busy", retryable=True, retry_after_s=30.0),
    "for good": lambda: StageFailed("nobody may read /data/b", retryable=False),
    "broken": lambda: RuntimeError("a bug"),
}


class StageCrashes(RuleBasedStateMachine):
    """The rules are what users, Slurm, transfers, machines, the disk and kill -9 do."""

    template: Path

    @initialize(slow=st.booleans())
    def begin(self, slow: bool) -> None:
        self.folder = ExitStack()
        self.world = StageWorld(self.folder.enter_context(memory_folder()), template=self.template)
        if slow:
            self.world.delays.update({lane: Delay(2.0) for lane in WORKER_QUEUES})
        self.numbers = 0

    # Users.

    @precondition(lambda self: len(self.world.slurm.jobs) < 6)
    @rule(
        nodes=st.sampled_from([1, 1, 2, 3]), run_s=st.sampled_from([2.0, 30.0]), user=st.sampled_from(["ada", "bob"]),
        partition=st.sampled_from(["burst", "burst", "burst", "onprem"]), task=st.booleans(),
        end_as=st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT"]),
    )  # fmt: skip
    def submit(self, nodes: int, run_s: float, user: str, partition: str, task: bool, end_as: str) -> None:
        self.numbers += 1
        self.world.submit(
            str(self.numbers), nodes=nodes if partition == "burst" else 1, run_s=run_s, user=user, partition=partition,
            queue_id=f"900_{self.numbers}" if task else "", end_as=end_as,
            lines=("#BURST scratch shared\n" if nodes > 1 else "") + ("#BURST workdir\n" if user == "bob" else ""),
        )  # fmt: skip

    @precondition(lambda self: self.world.slurm.jobs)
    @rule(which=st.integers(0, 5), what=st.sampled_from(["cancel", "hurry", "requeue", "release"]))
    def change_a_job(self, which: int, what: str) -> None:
        slurm = self.world.slurm
        job = list(slurm.jobs)[which % len(slurm.jobs)]
        match what:
            case "requeue":
                slurm.requeue(job)
            case "release":
                slurm.release(job)
            case _:
                slurm.cancel(job, hurry=what == "hurry")

    @precondition(lambda self: self.world.controller is not None and self.world.store.stagings())
    @rule(which=st.integers(0, 5))
    def retry(self, which: int) -> None:
        rows = self.world.store.stagings()
        if self.world.disk.writes_left is None and self.world.controller is not None:
            self.world.controller.retry(rows[which % len(rows)].job_id, "root")

    # burstd and time.

    @rule(s=seconds)
    def run(self, s: float) -> None:
        self.world.run(s)

    @rule(s=seconds)
    def run_on(self, s: float) -> None:
        self.world.run(s)

    @rule(which=st.integers(0, 5))
    def loop_and_some_work(self, which: int) -> None:
        self.world.step()
        self.world.work(which)

    @rule(places=st.integers(1, 25), s=seconds, back=st.booleans())
    def crash(self, places: int, s: float, back: bool) -> None:
        self.world.crash_points.arm(places)
        self.world.run(s)
        if back:
            self.world.start()

    @rule(away=st.sampled_from([None, 0.0, 3.0, 100.0]))
    def kill(self, away: float | None) -> None:
        self.world.kill()
        if away is not None:
            self.world.clock.advance(away)
            self.world.start()

    @rule()
    def start(self) -> None:
        self.world.start()

    # What goes wrong.

    @rule(kind=kinds, fault=st.sampled_from(sorted(FAULTS)), which=st.sampled_from(["", "1", "2", "3"]))
    def transfer_fails(self, kind: str, fault: str, which: str) -> None:
        self.world.locations.faults[kind, which] = FAULTS[fault]()

    @rule(
        lane=st.sampled_from(WORKER_QUEUES), before=st.sampled_from([0.0, 2.0, 20.0]), after=st.sampled_from([0.0, 2.0])
    )
    def slow(self, lane: str, before: float, after: float) -> None:
        self.world.delays[lane] = Delay(before, after)

    @rule(slot=st.sampled_from(SLOTS), requeue=st.booleans(), soon=st.booleans())
    def node_dies(self, slot: str, requeue: bool, soon: bool) -> None:
        self.world.break_node(slot, requeue=requeue, noticed_s=0.5 if soon else 20.0, again_s=0.5 if soon else 60.0)

    @rule(recent=st.booleans(), other_nodes=st.booleans())
    def slurm_restarts(self, recent: bool, other_nodes: bool) -> None:
        self.world.slurm.restart(recent=recent, other_nodes=other_nodes)

    @rule(silent=st.booleans())
    def slurm_is_silent(self, silent: bool) -> None:
        self.world.slurm.silent = silent

    @precondition(lambda self: self.world.slurm.jobs)
    @rule(which=st.integers(0, 5), user=st.sampled_from(["", "ada", "bob"]))
    def slurm_loses_a_job(self, which: int, user: str) -> None:
        slurm = self.world.slurm
        job = list(slurm.jobs)[which % len(slurm.jobs)]
        slurm.lose(job)
        if user:
            self.world.submit(job, user=user)

    @rule(left=st.sampled_from([None, None, 0, 1, 3]))
    def disk(self, left: int | None) -> None:
        self.world.disk.writes_left = left

    # What must hold.

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.heal()
            self.world.calm()
            self.world.check_end()
        finally:
            self.world.kill()
            self.folder.close()


def test_any_order_of_hooks_crashes_and_faults(template: Path) -> None:
    StageCrashes.template = template
    chosen = _LONG if os.environ.get("BURSTD_HYPOTHESIS") == "long" else _SHORT
    run_state_machine_as_test(StageCrashes, settings=chosen)
