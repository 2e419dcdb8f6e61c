"""Whoever asks burstd without a pause: Slurm is looked at no more often for commands, and not at all for questions."""

from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from burstd.daemon.loop import MIN_PAUSE_S, DaemonLoop
from burstd.runtime.wake import Wake

STEPS = 10


def run_loop(wake: Wake, backend: SimpleNamespace, steps: int) -> list[float]:
    """When it looked at Slurm."""
    looked: list[float] = []
    loop: DaemonLoop

    def step() -> float:
        looked.append(time.monotonic())
        if len(looked) == steps:
            loop.stop()
        return 60.0

    def nothing(*_: object) -> None: ...

    parts = SimpleNamespace(
        reconciler=SimpleNamespace(step=step, alarm="", queue_is_watched=False, head_clock=None),
        store=SimpleNamespace(purge=nothing),
        clock=SimpleNamespace(now=time.monotonic, seconds_jumped=lambda: 0.0),
        wake=wake,
        wake_sources=SimpleNamespace(set_up_missing=lambda: True),
        retention_s=lambda: 1.0,
        charges_retention_s=lambda: 1.0,
        record_mark=SimpleNamespace(update_mark=nothing),
    )
    notifier = SimpleNamespace(watchdog_s=0.0, ready=nothing, feed_watchdog=nothing, status=nothing, stopping=nothing)
    commands = SimpleNamespace(execute=nothing)
    loop = DaemonLoop(
        cast("Any", parts), cast("Any", backend), cast("Any", commands), cast("Any", notifier), lambda _: None
    )
    backend.stop = loop.stop
    loop.run(nothing)
    return looked


def test_commands_do_not_take_the_pause_between_two_looks() -> None:
    wake = Wake()

    def asked(_do: object) -> int:
        wake()
        return 1

    looked = run_loop(wake, SimpleNamespace(run_queued=asked, answer_questions=lambda *_: 0), STEPS)
    assert len(looked) == STEPS
    assert min(after - before for before, after in pairwise(looked)) >= MIN_PAUSE_S


def test_slurm_is_not_looked_at_for_questions() -> None:
    wake = Wake()
    answered = 0

    def answer(*_: object) -> int:
        nonlocal answered
        answered += 1
        wake.wake_to_answer()
        if answered == 100:
            backend.stop()
            wake()
        return 1

    backend = SimpleNamespace(run_queued=lambda _: 0, answer_questions=answer)
    assert len(run_loop(wake, backend, STEPS)) == 1
    assert answered == 100
