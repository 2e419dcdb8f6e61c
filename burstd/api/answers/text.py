"""Amounts, sizes, times and lengths of time as people write and read them, at a terminal and on the page."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burstd.api.answers.base import Money
    from burstd.api.answers.forecast import MonthForecastView
    from burstd.api.answers.jobs import JobEndView
    from burstd.api.answers.plan import BillPartView, ConvertedTotalView

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[smhdw])")
_MONEY_PLACES = 6
"""Amounts are kept to a millionth of the currency."""


def money_text(money: Money | None, places: int = 2) -> str:
    """``15.30 EUR``, ``0.0042 EUR``: small sums with two digits that are not zero; empty where there is none."""
    if money is None:
        return ""
    if money.amount:
        places = min(max(places, 1 - money.amount.adjusted()), _MONEY_PLACES)
    return f"{money.amount:.{places}f} {money.currency}"


def bill_parts_text(parts: Sequence[BillPartView]) -> str:
    """``work 1.20 EUR, idle (keep alive) 0.30 EUR``."""
    return ", ".join(f"{_bill_part_name(part)} {money_text(part.cost)}" for part in parts if part.cost.amount)


def _bill_part_name(part: BillPartView) -> str:
    notes = (part.cause.replace("_", " "), f"corrects {part.corrects}" if part.corrects else "")
    return f"{part.kind} ({note})" if (note := ", ".join(filter(None, notes))) else part.kind


def money_sums_text(amounts: Sequence[Money], places: int = 2) -> str:
    """Amounts in several currencies; ``0`` where there is none."""
    return " + ".join(money_text(a, places) for a in amounts) or "0"


def site_cost_text(amounts: Sequence[Money]) -> str:
    """Of nodes of the site: ``1.30 EUR by [site.cost], no part of the bill``."""
    return f"{money_sums_text(amounts)} by [site.cost], no part of the bill"


def converted_text(converted: ConvertedTotalView) -> str:
    """A sum over currencies: ``12.30 EUR in all at rates of 2026-11-01 (1 USD = 0.86 EUR)``."""
    total, rates = converted.total, converted.rates.items()
    at = ", ".join(f"1 {currency} = {worth} {total.currency}" for currency, worth in rates)
    return f"{money_text(total)} in all at rates of {converted.date} ({at})"


def forecast_text(forecast: MonthForecastView) -> str:
    """What a forecast adds up, its range, and how often such ranges held."""
    parts = [
        f"{money_text(forecast.spent)} spent",
        f"{money_text(forecast.committed)} to come from running machines and volumes",
    ]
    if forecast.expected is None:
        short = f"too little history to expect more: {forecast.days} of {plural(forecast.days_needed, 'day')}"
        return f"{', '.join(parts)}; {short}"
    capped = ", cut by the budget" if forecast.capped else ""
    text = f"{', '.join(parts)}, {money_text(forecast.expected)} expected{capped}"
    if forecast.low is None:
        return f"{text}; too few past windows for a range"
    held = (
        f"held in {forecast.held} of {forecast.tried} past windows" if forecast.tried else "not tried on past windows"
    )
    return f"{text}; {money_text(forecast.low)} to {money_text(forecast.high)} by past errors ({held})"


def plural(number: int, word: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def abbreviated_list(words: Sequence[str], max_names: int = 5) -> str:
    """The first words of a list, and how many more there are."""
    more = f" +{len(words) - max_names}" if len(words) > max_names else ""
    return ", ".join(words[:max_names]) + more


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``15m``, ``2h``, ``1h30m``, ``3d``, ``1w``. Raises ValueError with a sentence."""
    bare = text.replace(" ", "").lower()
    parts = _DURATION_PART.findall(bare)
    if not parts or "".join(number + unit for number, unit in parts) != bare:
        raise ValueError(f"{text!r} is no length of time; write 90s, 15m, 2h, 1h30m, 3d or 1w")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_time(text: str, now: float | None = None, zone: tzinfo | None = None) -> float:
    """Seconds since 1970 of a date, a time, or a length of time ago. Raises ValueError with a sentence.

    Where the text has no zone it is of ``zone``; None: local time.
    """
    try:
        return (time.time() if now is None else now) - parse_duration(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 2h (ago), 2026-09-21 or 2026-09-21T14:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def parse_month(text: str) -> tuple[float, float]:
    """Beginning and end (UTC) of ``2026-10``, in seconds since 1970. Raises ValueError with a sentence."""
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
        return first.timestamp(), (first + timedelta(days=31)).replace(day=1).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no month; write 2026-10") from None


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


def elapsed_text(since: datetime, now: datetime) -> str:
    """``12 s``: from then until now, counted in the daemon's time."""
    return duration_text((now - since).total_seconds())


def ago(since: datetime | None, now: datetime, unknown: str = "never") -> str:
    """``12 s ago``."""
    return unknown if since is None else f"{elapsed_text(since, now)} ago"


def job_end_text(end: JobEndView, now: datetime) -> str:
    """``FAILED 5 min ago, exit code 1:0``."""
    time = f" {ago(end.time, now)}" if end.time is not None else ""
    return f"{end.state}{time}{f', exit code {end.exit_code}' if end.exit_code else ''}"


def remaining_text(until: datetime, now: datetime) -> str:
    """``2 h 5 min``: from now until then."""
    return elapsed_text(now, until)


def local_time_text(time: datetime, now: datetime) -> str:
    """Local time of day, with the date where it is another day's: ``14:13:08``, ``20 Sep 14:13:08``."""
    then, today = time.astimezone(), now.astimezone()
    if then.date() == today.date():
        return f"{then:%H:%M:%S}"
    return f"{then:%d %b %H:%M:%S}" if then.year == today.year else f"{then:%d %b %Y %H:%M:%S}"


def utc_date_text(time: datetime) -> str:
    """Date and time, to a minute: ``2026-10-31 14:00 UTC``."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
