"""What policies remarked about jobs, pools and machines: written where it differs from the last time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select
from sqlmodel import Session

from burstd.db.codec import value_from_row
from burstd.db.database import chunks
from burstd.db.repositories.journal import REMARK_KEY, USER_KEY, NewEvent, log_events
from burstd.db.tables import REMARK
from burstd.domain.plugins.policy import Remark

NUMBERS_ONLY_INTERVAL_S = 60.0
"""Remarks that differ in numbers only ('waits for 31 s') are written again no more often than this."""
SUBJECTS_AT_ONCE = 10_000
"""A loop writes no more: remarks about a hundred thousand jobs that come together would hold it up for seconds."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class RemarksOnSubject:
    """The last remarks about one subject, each with since when it is so, and when they were last written."""

    remarks: tuple[tuple[Remark, float], ...]
    written: float


@dataclass(frozen=True, slots=True)
class RemarkDifference:
    """What one decision says otherwise than the last: remarks by subject, and the new ones with their old verdict."""

    changed: Mapping[str, RemarksOnSubject]
    new: Sequence[tuple[Remark, str]]


class RemarkLog:
    """The last remarks about each subject, kept in memory once they were read."""

    def __init__(self) -> None:
        self._last: dict[str, RemarksOnSubject] | None = None

    def forget(self) -> None:
        """What is kept in memory may not be in the database any more."""
        self._last = None

    def difference(
        self, reading: Callable[[], AbstractContextManager[Connection]], remarks: Sequence[Remark], now: float
    ) -> RemarkDifference:
        """How the remarks of one decision differ from the last ones, which are read where they are not in memory."""
        if self._last is None:
            with reading() as connection:
                self._last = _last_remarks(connection)
        return _compare(remarks, self._last, now)

    def record(
        self,
        session: Session,
        difference: RemarkDifference,
        user_of: Callable[[str], str],
        now: float,
        without_event: Collection[str],
    ) -> None:
        """Writes the difference; what is new is an event too, but where a policy of ``without_event`` says it."""
        changed = difference.changed
        for some in chunks(list(changed)):
            session.connection().execute(delete(REMARK).where(REMARK.c.subject.in_(some)))
        rows = [
            {"subject": subject, "position": i, "by": r.by, "verdict": r.verdict, "reason": r.reason,
             "since": since, "written": said.written}
            for subject, said in changed.items()
            for i, (r, since) in enumerate(said.remarks)
        ]  # fmt: skip
        if rows:
            session.connection().execute(insert(REMARK), rows)
        log_events(
            session,
            now,
            *(
                NewEvent(r.subject, old, r.verdict, r.reason, r.by, _data(user_of(r.subject)))
                for r, old in difference.new
                if r.by not in without_event
            ),
        )
        if self._last is not None:
            self._last.update(changed)


def _data(user: str) -> dict[str, Any]:
    return {REMARK_KEY: True, USER_KEY: user} if user else {REMARK_KEY: True}


def _last_remarks(connection: Connection) -> dict[str, RemarksOnSubject]:
    said: dict[str, RemarksOnSubject] = {}
    query = select(REMARK).order_by(REMARK.c.subject, REMARK.c.position)
    for row in connection.execute(query).mappings():
        before = said[row["subject"]].remarks if row["subject"] in said else ()
        remarks = (*before, (value_from_row(Remark, row), row["since"]))
        said[row["subject"]] = RemarksOnSubject(remarks, row["written"])
    return said


def _compare(remarks: Sequence[Remark], last: Mapping[str, RemarksOnSubject], now: float) -> RemarkDifference:
    """The difference, of SUBJECTS_AT_ONCE at most, the others next time; subjects without a remark stay as they are.

    Remarks that differ in numbers only are not new, and are written at most once in NUMBERS_ONLY_INTERVAL_S:
    thousands of waiting jobs would fill the log with their ages.
    """
    by_subject: dict[str, list[Remark]] = {}
    for remark in remarks:
        by_subject.setdefault(remark.subject, []).append(remark)
    changed: dict[str, RemarksOnSubject] = {}
    new_remarks: list[tuple[Remark, str]] = []
    for subject, current in by_subject.items():
        if len(changed) == SUBJECTS_AT_ONCE:
            break
        before = last.get(subject)
        if before is None:
            changed[subject] = RemarksOnSubject(tuple((r, now) for r in current), now)
            new_remarks += [(r, "") for r in current]
            continue
        if [r for r, _ in before.remarks] == current:
            continue
        since = {_without_numbers(r): s for r, s in before.remarks}
        new = [r for r in current if _without_numbers(r) not in since]
        same = not new and len({_without_numbers(r) for r in current}) == len(since)
        if same and now - before.written < NUMBERS_ONLY_INTERVAL_S:
            continue
        verdicts = {r.by: r.verdict for r, _ in before.remarks}
        changed[subject] = RemarksOnSubject(tuple((r, since.get(_without_numbers(r), now)) for r in current), now)
        new_remarks += [(r, verdicts.get(r.by, "")) for r in new]
    return RemarkDifference(changed, new_remarks)


def _without_numbers(remark: Remark) -> tuple[str, str, str]:
    return remark.by, remark.verdict, _DIGITS.sub("0", remark.reason)
