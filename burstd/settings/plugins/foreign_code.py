"""Calls code of others, and puts whatever goes wrong in it into one line with file and line number."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from burstd.domain.errors import BurstdError, PolicyBroken
from burstd.settings.plugins.time_limit import TimeLimitExceeded, call_with_time_limit

T = TypeVar("T")


class PolicyTimedOut(PolicyBroken):
    """It took too long and was interrupted."""


_BURSTD = f"{Path(__file__).parents[2]}{os.sep}"
_LONGEST = 400
"""Characters of what an error says."""
MOVED = "this burstd has no such module or name; CHANGELOG.md and docs/policies.md have today's"


def call_plugin_code(
    call: Callable[[], T],
    timeout_s: float,
    home: Path | None = None,
    pass_through: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """What the call returns. ``home``: the file, or the folder of the package, whose lines are named; None: any.

    Raises PolicyBroken for all that the call raises, ends of the process and the keyboard's included, and Overran for a
    time that is over; errors of the kind ``passing`` go through. A Ctrl-C that nobody handles is a person's, and ends
    this process.
    """
    try:
        return call_with_time_limit(timeout_s, call)
    except pass_through:
        raise
    except TimeLimitExceeded as error:
        line = _line(error, home)
        text = f"it took longer than {timeout_s:g} s and was interrupted"
        raise PolicyTimedOut(f"{line}: {text}" if line else text) from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise
        raise PolicyBroken(describe_plugin_error(error, home)) from error


def describe_plugin_error(error: BaseException, home: Path | None = None) -> str:
    """``/etc/burstd/policies/nights.py:12: NameError: name 'foo' is not defined``."""
    if isinstance(error, BurstdError):
        return str(error)
    kind = type(error).__name__
    try:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        said = " ".join(str(said).split())
    except Exception:  # noqa: BLE001  # the error is foreign as well: one that cannot even be shown
        said = "an error that cannot be shown"
    text = f"{kind}: {said[:_LONGEST]}" if said else kind
    text += f"; {MOVED}" if names_missing_in_burstd(error) else ""
    line = _line(error, home)
    return f"{line}: {text}" if line else text


def names_missing_in_burstd(error: BaseException) -> bool:
    """Whether an import of burstd's own module, or of a name in it, failed."""
    return isinstance(error, ImportError) and str(error.name).partition(".")[0] == "burstd"


def _line(error: BaseException, home: Path | None) -> str:
    """The last line of the policy's own files that the error came through; a syntax error names its own."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno and _within(error.filename, home):
        return f"{error.filename}:{error.lineno}"
    frames = [(f.f_code.co_filename, number) for f, number in traceback.walk_tb(error.__traceback__)]
    return next((f"{name}:{number}" for name, number in reversed(frames) if _within(name, home)), "")


def _within(name: str, home: Path | None) -> bool:
    if home is None:
        return not name.startswith(("<", _BURSTD))
    return name == str(home) or name.startswith(f"{home}{os.sep}")
