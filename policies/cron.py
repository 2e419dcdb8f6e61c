"""Cron expressions as crontab has them: minute, hour, day, month, weekday."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from math import inf
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

DAY_S = 86400.0
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WEEKDAYS = re.compile(r"(?:(\*)|([a-z]+|[0-9])(?:-([a-z]+|[0-9]))?)(?:/([0-9]+))?")


@lru_cache(maxsize=1024)
def cron_times(text: str, timezone: str, day: int) -> tuple[float, ...]:
    """When an expression comes round in one day, counted from 1970 in UTC. Simulated years ask for each one often."""
    trigger = _trigger(text, time_zone(timezone))
    moment, end = day * DAY_S, (day + 1) * DAY_S
    found: list[float] = []
    while (moment := _next(trigger, moment)) < end:
        found.append(moment)
        moment += 1
    return tuple(found)


def check_cron(text: str) -> None:
    """Raises ValueError with what is wrong with an expression."""
    if _next(_trigger(text, UTC), 0.0) == inf:
        raise ValueError("never comes round: there is no such day")


@lru_cache(maxsize=16)
def time_zone(name: str) -> tzinfo:
    """The time zone of a name; raises ValueError where this machine does not know it."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(
            "must be a time zone that this machine knows, such as Europe/Berlin (Debian: package tzdata)"
        ) from error


def _next(trigger: CronTrigger, moment: float) -> float:
    """The first time, in whole seconds, that is not before a moment; infinite: there is none."""
    found = trigger.get_next_fire_time(None, datetime.fromtimestamp(moment, trigger.timezone))
    return found.timestamp() if found is not None else inf


@lru_cache(maxsize=256)
def _trigger(text: str, of: tzinfo) -> CronTrigger:
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"must have five fields: minute, hour, day, month, weekday; it has {len(fields)}")
    if fields[2] != "*" and fields[4] != "*":
        # In crontab either lets it come round, in APScheduler both must: nobody should have to guess.
        raise ValueError("must not name both a day of the month and a weekday; make two windows")
    fields[4] = _weekdays(fields[4].lower())
    try:
        return CronTrigger.from_crontab(" ".join(fields), timezone=of)
    except (ValueError, TypeError) as error:
        raise ValueError(f"is no cron expression: {error}") from error


def _weekdays(field: str) -> str:
    """The weekdays by name: crontab counts from Sunday (0 or 7), APScheduler from Monday, and it drops some steps."""
    if field == "*":
        return field
    found: set[str] = set()
    for part in field.split(","):
        match = _WEEKDAYS.fullmatch(part)
        step = int(match[4] or 1) if match else 0
        if match is None or not step or (match[4] and not match[1] and not match[3]):
            raise ValueError(f"is no cron expression: {part!r} is no weekday, such as mon, 1, mon-fri, 1-5/2 or */2")
        first, last = (0, 6) if match[1] else (_number(match[2]), _number(match[3] or match[2]))
        if last < first and (last == 0 or (match[3] or "").isalpha()):
            last += 7
        if last < first:
            raise ValueError(f"is no cron expression: the weekdays {part} end before they begin")
        found |= {_DAYS[day % 7] for day in range(first, last + 1, step)}
    return ",".join(day for day in _DAYS if day in found)


def _number(day: str) -> int:
    if day in _DAYS:
        return _DAYS.index(day)
    if day.isdigit() and int(day) <= 7:
        return int(day)
    raise ValueError(f"is no cron expression: {day!r} is no weekday: sun to sat, or 0 to 7")
