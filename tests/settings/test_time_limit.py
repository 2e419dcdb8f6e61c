"""Foreign code is ended at its limit, however it holds on; nothing of the process's own is disturbed."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

from burstd.settings.plugins.time_limit import TimeLimitExceeded, call_with_time_limit

LIMIT_S = 0.05


def spins() -> None:
    while True:
        pass


def sleeps() -> None:
    time.sleep(1000)


def swallows() -> None:
    while True:
        try:
            time.sleep(1000)
        except:  # noqa: E722, S112
            continue


def swallows_twice() -> None:
    while True:
        try:
            while True:
                with contextlib.suppress(BaseException):
                    time.sleep(1000)
        except BaseException as error:  # noqa: BLE001
            str(error)


def keeps() -> None:
    kept = []
    while True:
        try:
            time.sleep(1000)
        except BaseException as error:  # noqa: BLE001
            kept.append(error)


def never_leaves() -> None:
    while True:
        try:
            time.sleep(1000)
        finally:
            continue  # noqa: B012


def searches() -> None:
    re.match("(a+)+$", "a" * 60 + "b")


@pytest.mark.parametrize("call", [spins, sleeps, swallows, swallows_twice, keeps, never_leaves, searches])
def test_it_is_ended(call: Callable[[], None]) -> None:
    with pytest.raises(TimeLimitExceeded):
        call_with_time_limit(LIMIT_S, call)


def test_what_it_does_in_time_is_its_own_affair() -> None:
    assert call_with_time_limit(10, lambda: "done") == "done"
    with pytest.raises(ZeroDivisionError):
        call_with_time_limit(10, lambda: 1 // 0)


def test_handler_timer_and_tracer_are_as_before() -> None:
    rung: list[int] = []

    def bell(number: int, _: FrameType | None) -> None:
        rung.append(number)

    left = signal.getitimer(signal.ITIMER_REAL)  # of the test runner, perhaps
    before = signal.signal(signal.SIGALRM, bell)
    tracer = sys.gettrace()
    try:
        signal.setitimer(signal.ITIMER_REAL, 500, 7)
        for call in (swallows, lambda: None):
            with contextlib.suppress(TimeLimitExceeded):
                call_with_time_limit(LIMIT_S, call)
            delay, every = signal.getitimer(signal.ITIMER_REAL)
            assert (signal.getsignal(signal.SIGALRM), every, sys.gettrace()) == (bell, 7, tracer)
            assert 400 < delay < 500
        # One that fell due meanwhile is not lost.
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S / 2)
        with pytest.raises(TimeLimitExceeded):
            call_with_time_limit(LIMIT_S, sleeps)
        while not rung:
            signal.pause()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, before)


def test_signals_of_the_process_are_served_while_it_hangs() -> None:
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        threading.Timer(LIMIT_S, signal.raise_signal, (signal.SIGTERM,)).start()
        with pytest.raises(TimeLimitExceeded):
            call_with_time_limit(LIMIT_S * 4, swallows)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [signal.SIGTERM]


def test_another_thread_is_judged_afterwards() -> None:
    ends: list[str] = []

    def late() -> None:
        began = time.monotonic()
        while time.monotonic() - began < 2 * LIMIT_S:
            pass

    def run() -> None:
        for call in (late, lambda: None):
            try:
                call_with_time_limit(LIMIT_S, call)
                ends.append("in time")
            except TimeLimitExceeded:
                ends.append("too late")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ends == ["too late", "in time"]
