"""Room within a user's quota: what of his is in the store, and how input that no job of his needs leaves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from burstd.db import Store
from burstd.domain.clock import Clock
from burstd.domain.plugins.stager import StagerError
from burstd.domain.staging import Staging
from burstd.planner.staging.transfer_schedule import StorageUse
from burstd.runtime.workers import Workers
from burstd.staging.movement.garbage_collection import (
    ORPHAN_GRACE_S,
    GarbageCollector,
    UsageCounts,
    count_usage,
    needed_digests,
    needing_jobs,
)
from burstd.staging.movement.output_reuse import INPUT_PREFIX
from burstd.staging.submission.quota import QuotaUsage
from burstd.transfer.content_store.index import ContentIndex, IndexedTree

log = structlog.get_logger(__name__)


class QuotaRoom:
    """One store's; used in the deciding thread."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        workers: Workers,
        index: ContentIndex,
        collector: GarbageCollector,
        limits: Callable[[str, int, str], tuple[StorageUse, StorageUse]],
        counted: Callable[[UsageCounts], None],
    ) -> None:
        """``limits``: what a user (name, uid) and a project have staged and may. ``counted`` takes new counts."""
        self._store = store
        self._clock = clock
        self._workers = workers
        self._index = index
        self._collector = collector
        self._limits = limits
        self._counted = counted
        self._evicting: set[int] = set()
        """Users whose input is leaving the store."""

    def usage(self, row: Staging, sources: Sequence[str]) -> QuotaUsage | None:
        """What counts for the quotas of a job with these sources; None: nothing is limited, or nobody knows."""
        user, project = self._limits(row.user, row.uid, row.account)
        if user.limit_bytes is None and project.limit_bytes is None:
            return None
        wall, live = self._clock.wall(), self._store.stagings()
        try:
            known = [tree for tree in self._index.trees(row.store) if tree.uid == row.uid]
        except StagerError as error:
            log.warning("a quota was not looked at", job=row.job_id, error=str(error))
            return None
        resent: dict[str, IndexedTree] = {}
        for tree in known:
            if tree.source in sources and (tree.source not in resent or tree.tree.size > resent[tree.source].tree.size):
                resent[tree.source] = tree
        jobs = needing_jobs(one for one in live if one.uid == row.uid)
        needed = needed_digests(known, live, wall, wall - self._clock.now())
        return QuotaUsage(
            user, project, sum(tree.tree.size for tree in resent.values()),
            tuple(t for t in known if t.tree.prefix == INPUT_PREFIX and t not in resent.values()),
            {digest: jobs.get(digest, ()) for digest in needed},
            settled=row.uid not in self._evicting,
        )  # fmt: skip

    def evict(self, uid: int, trees: Sequence[IndexedTree]) -> None:
        """Begins to remove input of a user; what is used meanwhile stays. It is sent again when it is asked for."""
        self._evicting.add(uid)

        def remove() -> UsageCounts:
            self._collector.evict(trees, unused_s=ORPHAN_GRACE_S)
            return count_usage(self._index)

        def done(result: UsageCounts | Exception) -> None:
            self._evicting.discard(uid)
            if isinstance(result, Exception):
                # The next sweep removes what is left of it.
                log.warning("input that left a quota is still in the store", uid=uid, error=str(result))
            else:
                self._counted(result)

        self._workers.submit("stage:sweep", remove, done)
