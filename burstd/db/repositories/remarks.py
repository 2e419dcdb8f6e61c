"""Which remarks are news. Pure: what was said last is given, what is to be written comes back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from burstd.domain.plugins.policy import Remark

RENUMBER_S = 60.0
"""Remarks that differ in numbers only ('waits for 31 s') are written again no more often than this."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Said:
    """The last remarks about one subject, each with since when it is so, and when they were last written."""

    remarks: tuple[tuple[Remark, float], ...]
    written: float


@dataclass(frozen=True, slots=True)
class News:
    """What is to be written: the subjects that changed, and the remarks that are new, each with the old verdict."""

    changed: dict[str, Said]
    fresh: tuple[tuple[Remark, str], ...]


def news(remarks: Sequence[Remark], last: dict[str, Said], now: float) -> News:
    """Compares the remarks of one decision with the last ones; subjects that are not mentioned stay as they were.

    What differs in numbers only is no news, and is written at most once in RENUMBER_S: thousands of waiting jobs
    would fill the log with their ages.
    """
    by_subject: dict[str, list[Remark]] = {}
    for remark in remarks:
        by_subject.setdefault(remark.subject, []).append(remark)
    changed: dict[str, Said] = {}
    fresh: list[tuple[Remark, str]] = []
    for subject, said in by_subject.items():
        before = last.get(subject)
        if before is None:
            changed[subject] = Said(tuple((r, now) for r in said), now)
            fresh += [(r, "") for r in said]
            continue
        if [r for r, _ in before.remarks] == said:
            continue
        since = {_gist(r): s for r, s in before.remarks}
        new = [r for r in said if _gist(r) not in since]
        same = not new and len({_gist(r) for r in said}) == len(since)
        if same and now - before.written < RENUMBER_S:
            continue
        verdicts = {r.by: r.verdict for r, _ in before.remarks}
        changed[subject] = Said(tuple((r, since.get(_gist(r), now)) for r in said), now)
        fresh += [(r, verdicts.get(r.by, "")) for r in new]
    return News(changed, tuple(fresh))


def _gist(remark: Remark) -> tuple[str, str, str]:
    return remark.by, remark.verdict, _DIGITS.sub("0", remark.reason)
