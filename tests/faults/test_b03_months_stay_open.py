"""Months of a record that may be older than what its machines did are closed when that is known; one a turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from burstd.daemon.loop import CLOSE_EVERY_S, DaemonLoop
from burstd.db import Store
from burstd.db.record_mark import DOUBT_KEY
from burstd.runtime.wake import Wake
from tests.db.samples import ManualClock, planned
from tests.db.test_closed_months import WAIT_S, at
from tests.db.test_money import begin, end


def test_months_are_closed_one_a_turn_and_none_while_the_record_is_in_doubt() -> None:
    clock, closed = ManualClock(at(8, 3)), list[int]()
    with Store.open(":memory:", clock) as store:
        begin(store, planned(), clock=clock)
        end(store, "c1", clock)
        clock.time = at(11, 20)
        store.set_metadata(DOUBT_KEY, "an older copy")

        def step() -> float:
            closed.append(len(store.closed_months()))
            clock.time += CLOSE_EVERY_S if len(closed) < 4 else 1
            if len(closed) == 3:
                store.set_metadata(DOUBT_KEY, "")
            if closed[-1] == 3:
                loop.stop()
            return 0.0

        def nothing(*_: object) -> None: ...

        parts = SimpleNamespace(
            reconciler=SimpleNamespace(step=step, alarm="", queue_is_watched=False, head_clock=None),
            store=store,
            clock=SimpleNamespace(now=clock.now, seconds_jumped=lambda: 0.0, checkpoint=nothing),
            wake=Wake(),
            wake_sources=SimpleNamespace(set_up_missing=lambda: True),
            retention_s=lambda: WAIT_S,
            charges_retention_s=lambda: 1000 * WAIT_S,
            close_after_s=lambda: WAIT_S,
            record_mark=SimpleNamespace(update_mark=nothing),
        )
        notifier = SimpleNamespace(watchdog_s=0.0, ready=nothing, feed_watchdog=nothing, stopping=nothing)
        backend, commands = (
            SimpleNamespace(run_queued=lambda _: 0, answer_questions=lambda *_: 0),
            SimpleNamespace(execute=nothing),
        )
        loop = DaemonLoop(
            cast("Any", parts), cast("Any", backend), cast("Any", commands), cast("Any", notifier), lambda _: None
        )
        loop.run(nothing)
    assert closed == [0, 0, 0, 1, 2, 3]
