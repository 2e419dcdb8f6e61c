"""Logs, of burstd and of the libraries it uses: lines for the journal or JSON, on standard error, without secrets."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal, TextIO

import structlog

from burstd.runtime.secret_forms import HIDDEN, SECRET_NAMES, without_secrets

MAX_LINES = 10
WINDOW_S = 60.0
_MAX_KEYS = 10_000

# sd-daemon(3): what stands before a line of a service's standard error is its priority in the journal.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_CONTROL = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))}


def set_up(
    style: Literal["text", "json"] = "text",
    level: str = "info",
    *,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Sends every log of this process to ``stream`` (standard error). May be called again with other arguments."""
    out = sys.stderr if stream is None else stream
    journal = goes_to_journal(out, environ)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
    ]
    if not journal:  # which stamps each line itself
        shared.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
    ends: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        TracebackLimit(),
    ]
    if style == "json":
        ends += [structlog.processors.dict_tracebacks, redact, structlog.processors.JSONRenderer(default=str)]
    else:
        ends += [structlog.processors.format_exc_info, redact, _LineRenderer(journal=journal)]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=ends, foreign_pre_chain=shared))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # They tell every request, every ssh packet and every timer; a person asks for that by their names.
    for chatty in ("paramiko", "httpx", "httpcore", "apscheduler", "alembic", "urllib3", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            UserRateLimit(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def goes_to_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """True where the stream is the one that systemd connected to the journal (JOURNAL_STREAM is ``device:inode``)."""
    try:
        there = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{there.st_dev}:{there.st_ino}"


def redact(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Masks values whose name says that they are secret, and secrets of known forms inside any text."""
    for name, value in event.items():
        event[name] = redacted(name, value)
    return event


def redacted(name: str, value: Any) -> Any:
    """A value of this name, masked where it is or holds a secret."""
    if SECRET_NAMES.search(name) and value not in (None, "") and not isinstance(value, bool):
        return HIDDEN
    match value:
        case str():
            return without_secrets(value)
        case Mapping():
            return {k: redacted(str(k), v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [redacted("", v) for v in value]
        case bytes():
            return f"<{len(value)} bytes>"
        case None | bool() | int() | float():
            return value
    return redacted("", str(value))


class UserRateLimit:
    """Drops what is logged of one user (``uid``, ``user``) more than MOST times in EVERY_S, by the words of the event.

    The first line of the next EVERY_S says how many were dropped, as ``left_out``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}
        """Since when a line is counted, and how often it came."""

    def __call__(self, _: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """As a processor of structlog."""
        who = event.get("uid", event.get("user"))
        if who is None:
            return event
        key, now = (str(event.get("event")), str(who)), self._clock()
        with self._lock:
            since, count = self._counts.pop(key, (now, 0))
            if now - since >= WINDOW_S:
                if count > MAX_LINES:
                    event["left_out"] = count - MAX_LINES
                since, count = now, 0
            # The latest is the last; who has not been heard of for long is forgotten.
            self._counts[key] = (since, count + 1)
            if len(self._counts) > _MAX_KEYS:
                del self._counts[next(iter(self._counts))]
        if count >= MAX_LINES:
            raise structlog.DropEvent
        return event


class TracebackLimit:
    """Leaves one traceback of each kind of error (its type, and where it was raised) in EVERY_S; others are a line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._shown: dict[tuple[str, str, int], float] = {}
        """When each was shown last."""

    def __call__(self, _: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """As a processor of structlog, before what writes ``exc_info`` out."""
        error = event.get("exc_info")
        error = sys.exc_info()[1] if error is True else error[1] if isinstance(error, tuple) else error
        if not isinstance(error, BaseException):
            return event
        kind, now = (type(error).__name__, *_raised_at(error)), self._clock()
        with self._lock:
            shown = self._shown.get(kind)
            if shown is None or now - shown >= WINDOW_S:
                self._shown.pop(kind, None)
                self._shown[kind] = now
                if len(self._shown) > _MAX_KEYS:
                    del self._shown[next(iter(self._shown))]
                return event
        del event["exc_info"]
        event.setdefault("error", f"{type(error).__name__}: {error}")
        return event


def _raised_at(error: BaseException) -> tuple[str, int]:
    """File and line."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return ("", 0) if at is None else (at.tb_frame.f_code.co_filename, at.tb_lineno)


class _LineRenderer:
    """``2026-01-01T00:00:00Z info burstd.daemon: what happened key=value``, a traceback below it.

    For the journal every line begins with its priority, also those of a traceback.
    """

    def __init__(self, *, journal: bool) -> None:
        self._journal = journal

    def __call__(self, _: object, method: str, event: MutableMapping[str, Any]) -> str:
        extra_lines = [str(event.pop(name)) for name in ("exception", "stack") if event.get(name)]
        level = str(event.pop("level", method))
        head = [event.pop("timestamp", ""), level, f"{event.pop('logger', 'burstd')}:", event.pop("event", "")]
        pairs = [f"{key}={_quoted(value)}" for key, value in event.items()]
        # What others say stays in its line: it must not look like a line of ours.
        first = " ".join(str(part) for part in [*head, *pairs] if part).translate(_CONTROL)
        lines = [first, *(part for text in extra_lines for part in text.splitlines())]
        priority = f"<{_PRIORITIES.get(level, 6)}>" if self._journal else ""
        return "\n".join(priority + part for part in lines)


def _quoted(value: Any) -> str:
    text = str(value)
    return repr(text) if not text or re.search(r"[\s\"'=]", text) else text
