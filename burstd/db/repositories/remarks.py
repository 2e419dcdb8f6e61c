"""Which remarks are news. Pure: what was said last is given, what is to be written comes back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from burstd.domain.plugins.policy import Remark

NUMBERS_ONLY_INTERVAL_S = 60.0
"""Remarks that differ in numbers only ('waits for 31 s') are written again no more often than this."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class RemarksOnSubject:
    """The last remarks about one subject, each with since when it is so, and when they were last written."""

    remarks: tuple[tuple[Remark, float], ...]
    written: float


@dataclass(frozen=True, slots=True)
class RemarkChanges:
    """What is to be written: the subjects that changed, and the remarks that are new, each with the old verdict."""

    changed_subjects: dict[str, RemarksOnSubject]
    new_remarks: tuple[tuple[Remark, str], ...]


def remark_changes(remarks: Sequence[Remark], last: dict[str, RemarksOnSubject], now: float) -> RemarkChanges:
    """Compares the remarks of one decision with the last ones; subjects that are not mentioned stay as they were.

    What differs in numbers only is no news, and is written at most once in RENUMBER_S: thousands of waiting jobs
    would fill the log with their ages.
    """
    by_subject: dict[str, list[Remark]] = {}
    for remark in remarks:
        by_subject.setdefault(remark.subject, []).append(remark)
    changed: dict[str, RemarksOnSubject] = {}
    new_remarks: list[tuple[Remark, str]] = []
    for subject, current in by_subject.items():
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
    return RemarkChanges(changed, tuple(new_remarks))


def _without_numbers(remark: Remark) -> tuple[str, str, str]:
    return remark.by, remark.verdict, _DIGITS.sub("0", remark.reason)
