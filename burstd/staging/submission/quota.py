"""Whether a job's input fits into the quotas, asked when its size is known and its turn has come. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.planner.staging.transfer_schedule import StorageUse, quota_fault
from burstd.staging.controller.job_runs import StagingCycle

COUNT_DELAY_S = 30.0
"""What was staged no longer ago may not be counted so far."""


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a job's user and project have in the store, and may. ``there``: of it, bytes from the job's own sources."""

    user: StorageUse
    project: StorageUse
    own_sources_bytes: int = 0


FindQuotaUsage = Callable[[Staging, Sequence[str]], QuotaUsage | None]
"""Takes a job and its sources (paths, URLs); None: nothing is limited."""


def no_quota(_row: Staging, _sources: Sequence[str]) -> QuotaUsage | None:
    """No quotas."""
    return None


def over_quota(
    row: Staging,
    cycle: StagingCycle,
    others: Iterable[tuple[Staging, StagingCycle]],
    quota_usage: QuotaUsage | None,
    now: float,
) -> tuple[str, bool]:
    """Why a job's input is too much (empty: it fits), and whether that is sure: False, look again in a moment.

    Beside what is in the store counts what is being sent. What comes from the same sources counts once.
    """
    if quota_usage is None or (cycle.input_bytes or 0) <= quota_usage.own_sources_bytes:
        return "", True
    coming: list[tuple[Staging, int]] = []
    recently_staged: list[tuple[Staging, int]] = []
    for other, other_cycle in others:
        sending = other.state is S.UPLOADING
        if other.job_id == row.job_id or not (sending or 0 < now - other.staged < COUNT_DELAY_S):
            continue
        if (other.uid, other_cycle.sources) == (row.uid, cycle.sources) and cycle.sources:
            return "", True
        (coming if sending else recently_staged).append(
            (other, (other_cycle.input_bytes or 0) if sending else other.bytes_in)
        )
    additional_bytes = (cycle.input_bytes or 0) - quota_usage.own_sources_bytes
    for counted in (coming, coming + recently_staged):
        user = sum(size for other, size in counted if other.uid == row.uid)
        project = sum(size for other, size in counted if other.account == row.account and row.account)
        text = quota_fault(
            additional_bytes,
            replace(quota_usage.user, size_bytes=quota_usage.user.size_bytes + user),
            replace(quota_usage.project, size_bytes=quota_usage.project.size_bytes + project),
        )
        if text:
            return text, counted is coming
    return "", True
