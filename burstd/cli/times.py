"""Times and lengths of time, as people write and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[smhdw])")


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``15m``, ``2h``, ``1h30m``, ``3d``, ``1w``. Raises ValueError with a sentence."""
    bare = text.replace(" ", "").lower()
    parts = _DURATION_PART.findall(bare)
    if not parts or "".join(number + unit for number, unit in parts) != bare:
        raise ValueError(f"{text!r} is no length of time; write 90s, 15m, 2h, 1h30m, 3d or 1w")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_time(text: str, now: float) -> float:
    """Seconds since 1970 of a date, a time, or a length of time before ``now``. Raises ValueError with a sentence.

    Without a zone it is local time.
    """
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 2h (ago), 2026-09-21 or 2026-09-21T14:00") from None
    return found.timestamp()


def epoch_seconds(iso: str) -> float:
    """Seconds since 1970 of a time in an answer."""
    return datetime.fromisoformat(iso).timestamp()


def duration_text(span: float) -> str:
    """A length of time in at most two units: ``12 s``, ``5 min``, ``2 h 5 min``, ``3 d 4 h``."""
    rounded = round(max(0.0, span))
    if rounded < 120:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min"
    if rounded < 86400:
        hours, minutes = divmod(rounded // 60, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(rounded // 3600, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def rough_duration_text(span: float, before: str = "in ") -> str:
    """``at once``, ``in about 4 min``, ``in about 3 h``: as exact as a forecast is. Without ``before`` a length."""
    if before and span < 1:
        return "at once"
    unit, size = next((u for u in (("d", 86400), ("h", 3600), ("min", 60)) if span >= 2 * u[1]), ("min", 60))
    return f"{before}about {max(1, round(span / size))} {unit}"


def elapsed_text(iso: str, now: str) -> str:
    """``12 s``: from then until now, counted in the daemon's time."""
    return duration_text(epoch_seconds(now) - epoch_seconds(iso))


def ago(iso: str | None, now: str) -> str:
    """``12 s ago``."""
    return "never" if iso is None else f"{elapsed_text(iso, now)} ago"


def remaining_text(iso: str, now: str) -> str:
    """``2 h 5 min``: from now until then."""
    return duration_text(epoch_seconds(iso) - epoch_seconds(now))


def local_time_text(iso: str, now: str) -> str:
    """Local time of day, with the date where it is another day's: ``14:13:08``, ``20 Sep 14:13:08``."""
    then, today = datetime.fromisoformat(iso).astimezone(), datetime.fromisoformat(now).astimezone()
    if then.date() == today.date():
        return f"{then:%H:%M:%S}"
    return f"{then:%d %b %H:%M:%S}" if then.year == today.year else f"{then:%d %b %Y %H:%M:%S}"


def local_date_text(iso: str) -> str:
    """Local date and time, to a minute."""
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"


def epoch_now() -> float:
    """Seconds since 1970."""
    return datetime.now(UTC).timestamp()
