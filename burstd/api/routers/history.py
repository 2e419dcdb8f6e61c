"""What the site asked for, had and paid over time: ``burstctl history``.

Everybody sees the state of the site, as ``burstctl status`` shows it. What a project or an account asked for, used,
waited and paid over time is its use, as in ``burstctl bill``: it is for administrators and for users with jobs in it.
What the site has spent is for administrators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.base import utc_time
from burstd.api.answers.history import HistoryView, MoneySeriesView, SeriesView
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, Timestamp
from burstd.api.routers.status import visible_accounts
from burstd.db.repositories.site_history import SeriesFilter
from burstd.domain.site_history import (
    DAY_S,
    MICROS,
    SPENT,
    STARTED,
    WAIT_MAX_S,
    WAIT_S,
    WAITS_BELOW,
    Figure,
    Part,
    Sample,
    gauge_values,
    is_gauge,
    step_start,
    wait_percentile,
)

DEFAULT_S = 7 * DAY_S
MAX_SERIES = 2000
MAX_PATTERNS = 10
_OF_SITE = ("site/*", "pool/*", "provider/*")
_PERCENTILES = {"wait_median_s": 50, "wait_p90_s": 90}
_SUBJECTS = {Part.SITE: ("site", "pool"), Part.MACHINES: ("site", "pool", "provider"),
             Part.PROJECTS: ("project", "account")}  # fmt: skip
_Pattern = Annotated[str, Query(max_length=200)]
_Values = list[float | None]

router = APIRouter(prefix="/v1")


@router.get("/history")
def get_history(
    caller: CallerDep,
    backend: BackendDep,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    series: Annotated[list[_Pattern] | None, Query(max_length=MAX_PATTERNS)] = None,
) -> HistoryView:
    """The series whose names fit one of the patterns of ``series`` (``project/*/wait_s``); default: site and pools.

    ``since`` and ``until`` in seconds since 1970; default: the last seven days. At most some 500 values a series.
    """
    now = backend.now()
    end = min(now, now if until is None else until)
    begin = end - DEFAULT_S if since is None else since
    if begin >= end:
        raise ApiError(
            422, f"The history would end ({utc_time(end):%F %T}) before it begins ({utc_time(begin):%F %T})."
        )
    patterns, may_see = series or _OF_SITE, visible_series(caller, backend)
    parts = [part for part, kinds in _SUBJECTS.items() if any(_may_name(p, kinds) for p in patterns)]

    @cache
    def shown(subject: str, measure: str) -> bool:
        return may_see(subject, measure) and any(fnmatchcase(f"{subject}/{measure}", pattern) for pattern in patterns)

    @cache
    def needed(subject: str, stored: str) -> bool:
        return any(shown(subject, measure) for measure in _needed_for(stored))

    some = SeriesFilter(needed)
    begin, step_s, read = backend.reader.site_history(parts, begin, end, some)
    times = range(step_start(begin, step_s), step_start(end, step_s) + 1, step_s)
    found: list[SeriesView] = []
    money: list[MoneySeriesView] = []
    for samples, before in read.values():
        stored = {
            (subject, measure)
            for sample in samples
            for subject, measures in sample.figures.items()
            for measure in measures
        }
        chosen = {(subject, m) for subject, measure in stored for m in _made_of(measure) if shown(subject, m)}
        if len(found) + len(money) + len(chosen) > MAX_SERIES:
            raise ApiError(422, f"These are more than {MAX_SERIES} series; name some, as in 'project/a/*'.")
        by_time = {sample.time: sample for sample in samples}
        rows = [by_time.get(time) for time in times]
        for subject, measure in sorted(chosen):
            values, peaks = _values(subject, measure, rows, before)
            name, currency = f"{subject}/{measure}", measure.partition(".")[2]
            if currency:
                money.append(
                    MoneySeriesView(
                        name=name, subject=subject, measure=measure, currency=currency,
                        values=_amounts(values), peaks=_amounts(peaks),
                    )
                )  # fmt: skip
            else:
                found.append(SeriesView(name=name, subject=subject, measure=measure, values=values, peaks=peaks))
    return HistoryView(
        now=now, since=times[0], until=end, step_s=step_s, times=list(times),
        series=sorted(found, key=lambda one: one.name), money=sorted(money, key=lambda one: one.name),
    )  # fmt: skip


def _may_name(pattern: str, kinds: Sequence[str]) -> bool:
    """Whether a pattern may fit a series of these kinds of subjects."""
    first, slash, _ = pattern.partition("/")
    return not slash or "*" in first or any(fnmatchcase(kind, first) for kind in kinds)


def _made_of(stored: str) -> Sequence[str]:
    """The measures of the answer that are there where this one is on record."""
    if stored == WAIT_MAX_S:
        return ()
    return tuple(_PERCENTILES) if stored.startswith(WAITS_BELOW) else (stored,)


def _needed_for(stored: str) -> Sequence[str]:
    """The measures of the answer that cannot be worked out without this one."""
    if stored == WAIT_MAX_S:
        return (WAIT_S, *_PERCENTILES)
    return (STARTED, WAIT_S) if stored == STARTED else _made_of(stored)


def visible_series(caller: Caller, backend: Backend) -> Callable[[str, str], bool]:
    """A function from a subject and a measure to whether the caller may see the series."""
    if caller.admin:
        return lambda _subject, _measure: True
    accounts = visible_accounts(caller, backend)
    own = {f"account/{account}" for account in accounts}
    own |= {f"project/{p.name}" for p in backend.projects_in_force().values() if p.account in accounts}

    def may_see(subject: str, measure: str) -> bool:
        kind = subject.partition("/")[0]
        if kind in ("project", "account"):
            return subject in own
        return not measure.startswith(f"{SPENT}.")

    return may_see


def _values(
    subject: str, measure: str, rows: Sequence[Sample | None], before: Sample | None
) -> tuple[_Values, _Values]:
    """The values of a series and its peaks; None where a step has no sample, or nothing that a mean could be of."""

    def figure(row: Sample, name: str = measure) -> Figure:
        return row.figures.get(subject, {}).get(name, 0)

    if measure in _PERCENTILES:
        percent = _PERCENTILES[measure]
        found = [None if row is None else wait_percentile(row.figures.get(subject, {}), percent) for row in rows]
        return [None if value is None else round(value, 3) for value in found], []
    if is_gauge(measure):
        gauges = [None if row is None else (*gauge_values(figure(row)), row.samples) for row in rows]
        return (
            [None if g is None else round(g[0] / g[2], 3) for g in gauges],
            [None if g is None else g[1] for g in gauges],
        )
    if measure == STARTED:
        return [None if row is None else _number(figure(row)) for row in rows], []
    if measure == WAIT_S:
        waits = [None if row is None or not figure(row, STARTED) else row for row in rows]
        return (
            [None if row is None else round(_number(figure(row)) / _number(figure(row, STARTED)), 3) for row in waits],
            [None if row is None else _number(figure(row, WAIT_MAX_S)) for row in waits],
        )
    spent: _Values = []
    for row in rows:
        spent.append(None if row is None or before is None else _number(figure(row)) - _number(figure(before)))
        before = row or before
    return spent, []


def _number(figure: Figure) -> float:
    return gauge_values(figure)[0]


def _amounts(values: _Values) -> list[Decimal | None]:
    """Millionths as amounts."""
    return [None if value is None else Decimal(round(value)) / MICROS for value in values]
