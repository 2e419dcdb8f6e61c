"""The history of the site: samples of a minute, merged into longer ones as they age."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from math import ceil

import structlog
from sqlalchemy import Connection, delete, func, insert, select

from burstd.db.tables import SITE_HISTORY, decode_figures
from burstd.domain.site_history import (
    RESOLUTIONS,
    Figures,
    Part,
    Resolution,
    Sample,
    merge_samples,
    step_start,
)

log = structlog.get_logger(__name__)

MAX_ROWS = 750
"""So many samples of a part are read for one answer at most, 744 hours of a month among them, ..."""
MAX_POINTS = 500
"""... and merged into so many points."""

_T = SITE_HISTORY.c


class SeriesFilter:
    """Which figures of samples are read."""

    def __init__(self, wanted: Callable[[str, str], bool]) -> None:
        """``wanted``: of a subject and a measure."""
        self._wanted = wanted
        self.places = lru_cache(maxsize=1024)(self._places)
        """See ``decode_figures``. Most samples have the same subjects."""

    def _places(self, subjects: tuple[str, ...], measure: str) -> Sequence[tuple[int, str]]:
        return [(n, subject) for n, subject in enumerate(subjects) if self._wanted(subject, measure)]


def record(connection: Connection, now: float, parts: Mapping[Part, Figures]) -> None:
    """Writes a sample of this minute for each part; merges it with one that is there since before a restart."""
    step_s = RESOLUTIONS[0].step_s
    for part, figures in parts.items():
        _write(connection, part, step_s, [Sample(step_start(now, step_s), 1, figures)])


def thin(connection: Connection, now: float) -> int:
    """Makes the longer samples whose time is over, and forgets shorter ones whose time has come.

    Returns how many samples were left out because they cannot be read.
    """
    unread = 0
    for part in Part:
        for finer, coarser in pairwise(RESOLUTIONS):
            done, until = _end(connection, part, coarser), step_start(now, coarser.step_s)
            rows, damaged = _read(connection, part, finer.step_s, done, until)
            unread += damaged
            _write(connection, part, coarser.step_s, _merged(rows, coarser.step_s))
    for resolution in RESOLUTIONS[:-1]:
        # The parts are named for the key, which begins with them: without them the whole table would be read.
        old = (_T.part.in_(list(Part)), _T.step_s == resolution.step_s, _T.time < now - resolution.keep_s)
        connection.execute(delete(SITE_HISTORY).where(*old))
    return unread


def read(
    connection: Connection,
    parts: Collection[Part],
    since: float,
    until: float,
    now: float,
    series: SeriesFilter | None = None,
) -> tuple[float, int, dict[Part, list[Sample]]]:
    """Samples of one length in [since, until), oldest first; empty steps are left out.

    Before them ``since``, or when history begins where that is later, and the length in seconds.

    The length is a multiple of the shortest that is kept since then and has MAX_ROWS samples at most, and gives
    MAX_POINTS at most; the last samples are merged from shorter ones where the longer ones are not made yet.
    """
    first = connection.execute(select(func.min(_T.time)).where(_T.part.in_(parts))).scalar()
    since = since if first is None or first >= until else max(since, first)
    chosen = next(
        (i for i, r in enumerate(RESOLUTIONS[:-1])
         if (until - since) / r.step_s <= MAX_ROWS and since >= now - r.keep_s), len(RESOLUTIONS) - 1,
    )  # fmt: skip
    step_s = RESOLUTIONS[chosen].step_s
    step_s *= max(1, ceil((until - since) / step_s / MAX_POINTS))
    found: dict[Part, list[Sample]] = {}
    for part in parts:
        rows: list[Sample] = []
        begin = since
        for resolution in reversed(RESOLUTIONS[: chosen + 1]):
            rows += _read(connection, part, resolution.step_s, begin, until, series)[0]
            begin = max(begin, _end(connection, part, resolution))
        found[part] = _merged(rows, step_s)
    return since, step_s, found


def last_before(connection: Connection, part: Part, time: float) -> Sample | None:
    """The last sample that is over by then."""
    ends: list[tuple[int, int]] = []
    for step_s in (resolution.step_s for resolution in RESOLUTIONS):
        there = (_T.part == part, _T.step_s == step_s, _T.time <= time - step_s)
        last = connection.execute(select(func.max(_T.time)).where(*there)).scalar()
        ends += [] if last is None else [(int(last) + step_s, step_s)]
    if not ends:
        return None
    end, step_s = max(ends)
    return next(iter(_read(connection, part, step_s, end - step_s, end)[0]), None)


def purge(connection: Connection, before: float) -> None:
    """Forgets what is older."""
    connection.execute(delete(SITE_HISTORY).where(_T.time < before))


def shift_late_times(connection: Connection, true_time: float, ahead_s: float) -> None:
    """Shifts samples after ``true_time`` back by ``ahead_s`` seconds, and merges them with what is there.

    Longer ones that were made of them are forgotten where the shorter ones are there: the next thinning makes them
    anew, with what follows.
    """
    for finer, coarser in pairwise(RESOLUTIONS):
        begin = step_start(true_time, coarser.step_s)
        if begin >= true_time + ahead_s - finer.keep_s:
            connection.execute(delete(SITE_HISTORY).where(_T.step_s == coarser.step_s, _T.time >= begin))
    late = connection.execute(select(SITE_HISTORY).where(_T.time > true_time).order_by(_T.time)).all()
    connection.execute(delete(SITE_HISTORY).where(_T.time > true_time))
    for row in late:
        for sample in _samples([(step_start(row.time - ahead_s, row.step_s), row.samples, row.figures)]):
            _write(connection, row.part, row.step_s, [sample])


def _end(connection: Connection, part: Part, resolution: Resolution) -> int:
    """The end of the last sample of this length; 0: there is none."""
    query = select(func.max(_T.time)).where(_T.part == part, _T.step_s == resolution.step_s)
    last = connection.execute(query).scalar()
    return 0 if last is None else int(last) + resolution.step_s


def _read(
    connection: Connection,
    part: Part,
    step_s: int,
    since: float,
    until: float,
    series: SeriesFilter | None = None,
) -> tuple[list[Sample], int]:
    """The samples, and how many there are that cannot be read."""
    there = (_T.part == part, _T.step_s == step_s, _T.time >= since, _T.time < until)
    query = select(_T.time, _T.samples, _T.figures).where(*there).order_by(_T.time)
    rows = [tuple(row) for row in connection.execute(query)]
    found = _samples(rows, series)
    return found, len(rows) - len(found)


def _samples(rows: Iterable[tuple[int, int, bytes]], series: SeriesFilter | None = None) -> list[Sample]:
    """Those that can be read: a damaged one is a gap, and keeps nobody from the others."""
    found = []
    places = series.places if series is not None else None
    for time, samples, stored in rows:
        try:
            found.append(Sample(time, samples, decode_figures(stored, places)))
        except ValueError as error:
            log.error("a sample of the site's history cannot be read", time=time, error=str(error))
    return found


def _merged(rows: Iterable[Sample], step_s: int) -> list[Sample]:
    return [
        merge_samples(time, list(some)) for time, some in groupby(rows, lambda sample: step_start(sample.time, step_s))
    ]


def _write(connection: Connection, part: Part, step_s: int, samples: Iterable[Sample]) -> None:
    for sample in samples:
        known, _ = _read(connection, part, step_s, sample.time, sample.time + 1)
        merged = merge_samples(sample.time, [*known, sample])
        same = (_T.part == part, _T.step_s == step_s, _T.time == sample.time)
        connection.execute(delete(SITE_HISTORY).where(*same))
        row = {
            "part": part,
            "step_s": step_s,
            "time": sample.time,
            "samples": merged.samples,
            "figures": merged.figures,
        }
        connection.execute(insert(SITE_HISTORY).values(row))
