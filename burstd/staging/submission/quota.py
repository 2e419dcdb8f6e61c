"""Whether a job's input fits into the quotas, asked when its size is known and its turn has come. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.planner.staging.transfer_schedule import Use, quota
from burstd.staging.controller.job_runs import Life

COUNTED_S = 30.0
"""What was staged no longer ago may not be counted so far."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a job's user and project have in the store, and may. ``there``: of it, bytes from the job's own sources."""

    user: Use
    project: Use
    there: int = 0


Quotas = Callable[[Staging, Sequence[str]], Taken | None]
"""Takes a job and its sources (paths, URLs); None: nothing is limited."""


def unlimited(_row: Staging, _sources: Sequence[str]) -> Taken | None:
    """No quotas."""
    return None


def too_much(
    row: Staging, life: Life, others: Iterable[tuple[Staging, Life]], taken: Taken | None, now: float
) -> tuple[str, bool]:
    """Why a job's input is too much (empty: it fits), and whether that is sure: False, look again in a moment.

    Beside what is in the store counts what is being sent. What comes from the same sources counts once.
    """
    if taken is None or (life.size or 0) <= taken.there:
        return "", True
    coming: list[tuple[Staging, int]] = []
    fresh: list[tuple[Staging, int]] = []
    for other, its in others:
        sending = other.state is S.SENDING
        if other.job_id == row.job_id or not (sending or 0 < now - other.staged < COUNTED_S):
            continue
        if (other.uid, its.sources) == (row.uid, life.sources) and life.sources:
            return "", True
        (coming if sending else fresh).append((other, (its.size or 0) if sending else other.bytes_in))
    more = (life.size or 0) - taken.there
    for counted in (coming, coming + fresh):
        user = sum(size for other, size in counted if other.uid == row.uid)
        project = sum(size for other, size in counted if other.account == row.account and row.account)
        text = quota(
            more,
            replace(taken.user, size_bytes=taken.user.size_bytes + user),
            replace(taken.project, size_bytes=taken.project.size_bytes + project),
        )
        if text:
            return text, counted is coming
    return "", True
