"""Numbers for people: lengths of time, amounts, dates."""

from __future__ import annotations

from datetime import datetime

NEVER = "never"
_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))


def format_amount(value: float) -> str:
    """Three digits that tell: ``0.42``, ``3.6``, ``27,315``."""
    size = abs(value)
    digits = 1 if size >= 10 else 2
    places = 0 if size >= 100 or value == int(value) else digits
    return f"{value:,.{places}f}"


def format_duration(seconds: float | None) -> str:
    """In the unit that suits it: ``4 s``, ``3.6 min``, ``2.5 h``, ``12 d``."""
    if seconds is None:
        return NEVER
    name, size = unit_for(seconds)
    return f"{in_unit(seconds, size)} {name}"


def unit_for(seconds: float) -> tuple[str, float]:
    """The unit that suits values of about this size: its name, and how many seconds it has."""
    size = abs(seconds)
    return _UNITS[sum(size >= limit for limit in (100, 7200, 72 * 3600))]


def in_unit(seconds: float | None, size: float) -> str:
    """The number only."""
    if seconds is None:
        return NEVER
    value = seconds / size
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 or size == 1 else f"{value:,.1f}"


def format_share(value: float) -> str:
    """``0.421``: ``42 %``."""
    return f"{value * 100:.0f} %"


def format_change(value: float) -> str:
    """``-0.421``: ``\N{MINUS SIGN}42 %``."""
    return f"{_sign(value)}{abs(value) * 100:.0f} %"


def format_duration_change(seconds: float) -> str:
    """``+2.1 min``."""
    return f"{_sign(seconds)}{format_duration(abs(seconds))}"


def _sign(value: float) -> str:
    return "+" if value > 0 else "\N{MINUS SIGN}" if value < 0 else ""


def day_and_time(when: datetime) -> str:
    """``4 Oct 2017 12:00``."""
    return f"{when.day} {when:%b %Y %H:%M}"
