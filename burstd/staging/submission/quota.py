"""Whether a job's input fits into the quotas, and what leaves the store so that it does. Pure.

Asked when the size of the input is known and its turn has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from burstd.domain.staging import INPUT_NEEDED, Staging
from burstd.domain.staging import StageState as S
from burstd.domain.units import size_text
from burstd.planner.staging.transfer_schedule import (
    CachedTree,
    QuotaShortage,
    StorageUse,
    beyond_quota,
    evictable,
    quota_shortage,
)
from burstd.staging.controller.job_runs import StagingCycle
from burstd.transfer.content_store.index import IndexedTree
from burstd.transfer.privsep.client import printable

COUNT_DELAY_S = 30.0
"""What was staged no longer ago may not be counted so far."""


_SHOWN_TREES = 3


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a job's user and project have in the store, and may. ``own_sources_bytes``: of it, from the job's own
    sources."""

    user: StorageUse
    project: StorageUse
    own_sources_bytes: int = 0
    trees: tuple[IndexedTree, ...] = ()
    """Input of the user in the store, but what the job would send again."""
    needed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Digests of trees that stay, with the user's jobs that read them."""
    settled: bool = True
    """False: input of the user is leaving the store."""


FindQuotaUsage = Callable[[Staging, Sequence[str]], QuotaUsage | None]
"""Takes a job and its sources (paths, URLs); None: nothing is limited."""
EvictTrees = Callable[[int, Sequence[IndexedTree]], None]
"""Begins to remove input of a user (uid) from the store."""
LiveCycles = Sequence[tuple[Staging, StagingCycle]]


def no_quota(_row: Staging, _sources: Sequence[str]) -> QuotaUsage | None:
    """No quotas."""
    return None


def keep_all(_uid: int, _trees: Sequence[IndexedTree]) -> None:
    """Nothing leaves the store."""


def over_quota(
    row: Staging, cycle: StagingCycle, others: LiveCycles, quota_usage: QuotaUsage | None, now: float
) -> tuple[QuotaShortage | None, bool]:
    """Which quota a job's input does not fit into, and whether that is sure: False, look again in a moment.

    Beside what is in the store counts what is being sent. What comes from the same sources counts once.
    """
    if quota_usage is None or (cycle.input_bytes or 0) <= quota_usage.own_sources_bytes:
        return None, True
    coming: list[tuple[Staging, int]] = []
    recently_staged: list[tuple[Staging, int]] = []
    for other, other_cycle in others:
        sending = other.state is S.UPLOADING
        if other.job_id == row.job_id or not (sending or 0 < now - other.staged < COUNT_DELAY_S):
            continue
        if (other.uid, other_cycle.sources) == (row.uid, cycle.sources) and cycle.sources:
            return None, True
        (coming if sending else recently_staged).append(
            (other, (other_cycle.input_bytes or 0) if sending else other.bytes_in)
        )
    additional_bytes = (cycle.input_bytes or 0) - quota_usage.own_sources_bytes
    for counted in (coming, coming + recently_staged):
        user = sum(size for other, size in counted if other.uid == row.uid)
        project = sum(size for other, size in counted if other.account == row.account and row.account)
        shortage = quota_shortage(
            additional_bytes,
            replace(quota_usage.user, size_bytes=quota_usage.user.size_bytes + user),
            replace(quota_usage.project, size_bytes=quota_usage.project.size_bytes + project),
        )
        if shortage is not None:
            return shortage, counted is coming and quota_usage.settled
    return None, True


def trees_to_evict(
    row: Staging, shortage: QuotaShortage, usage: QuotaUsage, others: LiveCycles
) -> tuple[IndexedTree, ...]:
    """What of the user's own leaves the store so that the job's input fits, least recently used first.

    Nothing where all of it would not be enough. ``others``: jobs whose data is on record; what a waiting one of the
    same user is about to read stays.
    """
    known = _counted(row, shortage, usage)
    jobs = _needing_jobs(row, usage, others)
    free = [CachedTree(t.tree.digest, t.stored_bytes, t.last_used) for t in known if t.tree.digest not in jobs]
    total = sum(tree.size_bytes for tree in free)
    if total < shortage.missing_bytes:
        return ()
    gone = set(evictable(free, frozenset(), 0.0, float("inf"), total - shortage.missing_bytes))
    return tuple(t for t in known if t.tree.digest in gone)


def eviction_text(shortage: QuotaShortage, trees: Sequence[IndexedTree]) -> str:
    """What leaves the store and why, for the log."""
    listed = _listed([f"{_source(t)} ({size_text(t.stored_bytes)})" for t in trees])
    leaves = "leaves" if len(trees) == 1 else "leave"
    return f"{shortage}: {listed} {leaves} the store, as no waiting or running job needs {_them(trees)}"


def hold_text(row: Staging, cycle: StagingCycle, shortage: QuotaShortage, usage: QuotaUsage, others: LiveCycles) -> str:
    """Why the input has to wait for a person, which jobs need the user's data, and what to do."""
    if never := beyond_quota(cycle.input_bytes or 0, usage.user, usage.project):
        return never
    jobs = _needing_jobs(row, usage, others)
    needed = [t for t in _counted(row, shortage, usage) if t.tree.digest in jobs]
    parts = [
        f"{_source(t)} ({size_text(t.stored_bytes)}) is needed by {_jobs(jobs[t.tree.digest])}"
        for t in sorted(needed, key=lambda t: (-t.stored_bytes, t.tree.digest))
    ]
    parts += [
        f"{size_text(coming.input_bytes or 0)} that job {other.name} sends now"
        for other, coming in others
        if other.state is S.UPLOADING and other.uid == row.uid and _counts_for(row, shortage, other.account)
    ]
    why = f"; of {row.user}'s data {_listed(parts)}" if parts else ""
    other = "; the rest is of other users" if shortage.kind == "project" else ""
    when = "when these jobs are over" if parts else "later"
    return (
        f"{shortage}{why}{other}; run 'burstctl stage retry {row.name}' {when}, stage less, or ask the administrator "
        "for a larger quota"
    )


def _counts_for(row: Staging, shortage: QuotaShortage, account: str) -> bool:
    """Whether data of the job's user and this account counts for the quota."""
    return shortage.kind == "user" or account == row.account


def _counted(row: Staging, shortage: QuotaShortage, usage: QuotaUsage) -> list[IndexedTree]:
    """Of the user's trees those that count for this quota."""
    return [t for t in usage.trees if _counts_for(row, shortage, t.account)]


def _needing_jobs(row: Staging, usage: QuotaUsage, others: LiveCycles) -> dict[str, tuple[str, ...]]:
    """Digest of a tree -> the jobs that need it."""
    found = dict(usage.needed)
    for other, cycle in others:
        if other.job_id == row.job_id or other.uid != row.uid or other.state not in INPUT_NEEDED:
            continue
        for known in usage.trees:
            if known.source and known.source in cycle.sources:
                jobs = found.get(known.tree.digest, ())
                found[known.tree.digest] = jobs if other.name in jobs else (*jobs, other.name)
    return found


def _source(known: IndexedTree) -> str:
    return printable(known.source) if known.source else f"input {known.tree.digest[:12]}"


def _jobs(jobs: Sequence[str]) -> str:
    if not jobs:
        return "a transfer"
    return f"job{'s' if len(jobs) > 1 else ''} {_listed(jobs)}"


def _listed(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _SHOWN_TREES} more" if len(parts) > _SHOWN_TREES else ""
    return ", ".join(parts[:_SHOWN_TREES]) + more


def _them(trees: Sequence[IndexedTree]) -> str:
    return "it" if len(trees) == 1 else "them"
