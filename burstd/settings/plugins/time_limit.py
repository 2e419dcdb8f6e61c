"""Runs foreign code for so long and no longer, by the process's real-time timer and SIGALRM (setitimer(2)).

Only the main thread can be interrupted: Python runs handlers of signals there. In any other thread the call takes as
long as it takes, and is refused afterwards. A call that never comes back to the interpreter (one long operation of a
C library) cannot be ended from within: the watchdog of the service manager ends it, with the process.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

INTERRUPT_INTERVAL_S = 0.05
"""Between two tries to end it."""


class TimeLimitExceeded(BaseException):
    """The time is over. No Exception, so that what handles those lets it pass.

    A bare ``except`` does not: when it lets go of the error, or at the next tick where it keeps it, the next line of
    that code raises it again.
    """

    def __del__(self) -> None:
        _again(sys._getframe(0))  # noqa: SLF001  # there is no other way to the frame


def call_with_time_limit(seconds: float, call: Callable[[], T]) -> T:
    """What the call returns. Raises Overrun, and whatever the call raises."""
    if threading.current_thread() is not threading.main_thread():
        began = time.monotonic()
        found = call()
        if time.monotonic() - began > seconds:
            raise TimeLimitExceeded
        return found
    tracer, handler = sys.gettrace(), signal.signal(signal.SIGALRM, _ticks())
    began = time.monotonic()
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, INTERRUPT_INTERVAL_S)
    try:
        return _inside(call)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(tracer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:
            # Somebody's own alarm goes on.
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001), every)


def _inside(call: Callable[[], T]) -> T:
    """Marks the stack: what is above it may be interrupted, and nothing else."""
    return _called(call)


def _called(call: Callable[[], T]) -> T:
    return call()


_INSIDE: Final[CodeType] = _inside.__code__


def _ticks() -> Callable[[int, FrameType | None], None]:
    raised = False

    def tick(_number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if frame is None or not _foreign(frame):
            return
        if raised:
            _again(frame)
        raised = True
        raise TimeLimitExceeded

    return tick


def _again(frame: FrameType) -> None:
    """Has the next line of foreign code raise Overrun again."""
    foreign = _foreign(frame)
    for one in foreign:
        if _may_break(one):
            one.f_trace = _raise
    if foreign:
        sys.settrace(_raise)


def _raise(frame: FrameType, event: str, _argument: Any) -> Any:
    if event == "exception":
        return _raise  # raised here, it would be the same handler's
    if _foreign(frame) and _may_break(frame):
        raise TimeLimitExceeded
    return None


def _may_break(frame: FrameType) -> bool:
    """Not what is here, nor the import system, which must be able to clean up."""
    return not frame.f_code.co_filename.startswith(("<frozen ", __file__))


def _foreign(frame: FrameType | None) -> list[FrameType]:
    """The frames down to the mark; none where there is no mark below."""
    found: list[FrameType] = []
    while frame is not None:
        if frame.f_code is _INSIDE:
            return found
        found.append(frame)
        frame = frame.f_back
    return []
