"""Whoever asks burstd without a pause why his job waits: Slurm is looked at no more often for it."""

from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from burstd.daemon.loop import MIN_PAUSE_S, DaemonLoop
from burstd.runtime.wake import Wake

STEPS = 10


def test_questions_do_not_take_the_pause_between_two_looks() -> None:
    looked: list[float] = []

    def step() -> float:
        looked.append(time.monotonic())
        if len(looked) == STEPS:
            loop.stop()
        return 60.0

    def nothing(*_: object) -> None: ...

    def asked(_do: object) -> int:
        wake()
        return 1

    wake = Wake()
    parts = SimpleNamespace(
        reconciler=SimpleNamespace(step=step, alarm="", queue_is_watched=False, head_clock=None),
        store=SimpleNamespace(purge=nothing),
        clock=SimpleNamespace(now=time.monotonic, seconds_jumped=lambda: 0.0),
        wake=wake,
        wake_sources=SimpleNamespace(set_up_missing=lambda: True),
        retention_s=lambda: 1.0,
        record_mark=SimpleNamespace(update_mark=nothing),
    )
    notifier = SimpleNamespace(watchdog_s=0.0, ready=nothing, feed_watchdog=nothing, status=nothing, stopping=nothing)
    backend, commands = SimpleNamespace(run_queued=asked), SimpleNamespace(execute=nothing)
    loop = DaemonLoop(
        cast("Any", parts), cast("Any", backend), cast("Any", commands), cast("Any", notifier), lambda _: None
    )
    loop.run(nothing)
    assert len(looked) == STEPS
    assert min(after - before for before, after in pairwise(looked)) >= MIN_PAUSE_S
