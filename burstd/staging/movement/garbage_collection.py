"""What leaves the store: input that nobody needs, output that is home, and what was left by a transfer that died."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice

import structlog

from burstd.domain.plugins.stager import Stager, StoredObject
from burstd.domain.staging import INPUT_NEEDED, WORKDIR_INPUT, StageState, Staging
from burstd.planner.staging.transfer_schedule import CachedTree, evictable
from burstd.transfer.content_store.index import ContentIndex, IndexedObject, IndexedTree
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.privsep.errors import user_name_of

log = structlog.get_logger(__name__)

ORPHAN_GRACE_S = 3600.0
"""An object without an owner is let alone for so long, by the store's clock: a put may be on record in a moment."""
UNFINISHED_PUT_GRACE_S = 86400.0
DELETE_BATCH = 1000
CHECKPOINT_PREFIX = "checkpoint"
"""Followed by the job's number: objects of its checkpoints, of all nodes and runs."""
SEEN_FILE_LIFETIME_S = 90 * 86400.0
"""A file that no job has used for so long is read again."""
INDEX_PRUNE_INTERVAL_S = 86400.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CLOCK_SLACK_S = 60.0
"""By how much the clock may be set while a transfer is under way."""


@dataclass(frozen=True, slots=True)
class GarbageCollectionRules:
    """``lifetime_s``: of input that no job uses; ``keep_bytes``: how much of it there may be, None: any."""

    lifetime_s: float
    cache_limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """Bytes that users (by uid, by name) and Slurm accounts take up; ``changes``: of the index, when it was counted."""

    changes: int = -1
    uids: Mapping[int, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    accounts: Mapping[str, int] = field(default_factory=dict)


def count_usage(index: ContentIndex) -> UsageCounts:
    """Counts; may take a second. Raises StoreBusy."""
    changes = index.changes
    uids = index.usage_by_uid()
    return UsageCounts(changes, uids, {user_name_of(uid): size for uid, size in uids.items()}, index.usage_by_account())


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one round found and did. Bytes; ``free`` None: the store cannot tell."""

    at: float
    objects: int
    bytes: int
    free: int | None
    evicted: int
    orphans: int


def needing_jobs(live: Iterable[Staging]) -> dict[str, tuple[str, ...]]:
    """By the digest of each tree, as recorded, the jobs that read it.

    What a job has changed in its working directory is compared with what was sent, until it is home.
    """
    found: dict[str, tuple[str, ...]] = {}
    for row in live:
        for name, tree in row.trees.items():
            read = row.state in INPUT_NEEDED or (name == WORKDIR_INPUT and row.state is not StageState.DELIVERED)
            if read and not tree.node_path:
                found[tree.digest] = (*found.get(tree.digest, ()), row.name)
    return found


def needed_digests(
    known: Iterable[IndexedTree], live: Sequence[Staging], read_at: float, clock_offset: float
) -> AbstractSet[str]:
    """Digests of the trees that must stay. ``known`` was read after ``live``, which was read at ``at``.

    The record names a job's trees when all of them are in the store: before that, and while this is on its way to the
    record, what was used since its transfer began is taken to be its. ``ahead``: of the system's time over burstd's.
    """
    begun: dict[int, float] = {}
    for row in live:
        if row.state is StageState.UPLOADING:
            begun[row.uid] = min(begun.get(row.uid, read_at), row.since + clock_offset - _CLOCK_SLACK_S)
    return needing_jobs(live).keys() | {t.tree.digest for t in known if t.last_used >= begun.get(t.uid, read_at)}


class GarbageCollector:
    """One store's. Blocks; for several threads. Raises StagerError."""

    def __init__(self, store: str, stager: Stager, index: ContentIndex, rules: GarbageCollectionRules) -> None:
        self._store = store
        self._stager = stager
        self._index = index
        self.rules = rules
        self._index_pruned_at = float("-inf")

    def sweep(
        self,
        live: Sequence[Staging],
        now: float,
        clock_offset: float = 0.0,
        job_is_over: Callable[[str], bool] = lambda _job_id: False,
    ) -> SweepResult:
        """One round. ``live``: all stagings that are not cleared, as of ``now``, in the system's seconds since 1970.

        ``ahead``: of the system's time over burstd's, in seconds. ``job_is_over``: whether Slurm says so of a job.
        """
        known = self._index.trees(self._store)
        in_use = needing_jobs(live).keys()
        self._index.touch_trees(self._store, in_use)
        cached = [CachedTree(t.tree.digest, t.stored_bytes, t.last_used) for t in known]
        needed_trees = needed_digests(known, live, now, clock_offset)
        gone = set(evictable(cached, needed_trees, now, self.rules.lifetime_s, self.rules.cache_limit_bytes))
        cache_limit = self.rules.cache_limit_bytes
        full = cache_limit is not None and self._index.used_bytes(self._store) > cache_limit
        evicted = self.evict([t for t in known if t.tree.digest in gone], unused_s=0.0 if full else ORPHAN_GRACE_S)
        orphans = 0
        # Where the index was lost, what live jobs need looks the same as what nobody needs.
        if in_use <= {t.tree.digest for t in self._index.trees(self._store)}:
            orphans += self._input_orphans(now)
        orphans += self._output_orphans({row.job_id for row in live}, now)
        orphans += self._checkpoint_orphans({row.job_id for row in live}, now, job_is_over)
        dead = [put for put in self._stager.unfinished() if now - put.started > UNFINISHED_PUT_GRACE_S]
        self._stager.abort(dead)
        count = size = 0
        for stored in self._stager.objects("in/"):
            count, size = count + 1, size + stored.size
        if now - self._index_pruned_at > INDEX_PRUNE_INTERVAL_S:
            self._index.forget_unused_files(SEEN_FILE_LIFETIME_S)
            self._index_pruned_at = now
        if evicted or orphans or dead:
            log.info("the store was swept", evicted=evicted, orphans=orphans, unfinished=len(dead))
        return SweepResult(now, count, size, self._stager.free_bytes(), evicted, orphans + len(dead))

    def free_space(self, live: Sequence[Staging], now: float, clock_offset: float = 0.0) -> int:
        """Removes the longer unused half of what nobody needs, for a put that found no space; how many objects.

        Arguments as of ``run``; the data that the put was of is among ``live`` as it was then.
        """
        known = self._index.trees(self._store)
        needed_trees = needed_digests(known, live, now, clock_offset)
        cached = [CachedTree(t.tree.digest, t.stored_bytes, t.last_used) for t in known]
        spare = sum(tree.size_bytes for tree in cached if tree.id not in needed_trees)
        cache_limit = sum(tree.size_bytes for tree in cached) - (spare + 1) // 2
        gone = set(evictable(cached, needed_trees, now, self.rules.lifetime_s, cache_limit))
        # What transfers have brought since they began stays for their next try.
        begun = min((row.since + clock_offset for row in live if row.state is StageState.UPLOADING), default=now)
        evicted = self.evict((t for t in known if t.tree.digest in gone), unused_s=max(now - begun, 0.0))
        log.info("the store is full", evicted=evicted, trees=len(gone), of=len(cached))
        return evicted

    def evict(self, trees: Iterable[IndexedTree], *, unused_s: float = 0.0) -> int:
        """Removes trees that were not used since they were read, and the objects that no tree uses; how many objects.

        Objects that were used in the last ``unused_s`` seconds stay: they may be of a transfer that broke off, or the
        output of a job that others follow.
        """
        for tree in trees:
            self._index.forget_tree(tree)
        count = 0
        for evicting in self._index.take_unreferenced(self._store, unused_s=unused_s, limit=DELETE_BATCH):
            self._remove_objects(evicting)
            count += len(evicting)
        return count

    def _input_orphans(self, now: float) -> int:
        count = 0
        old = (
            o
            for o in self._stager.objects("in/")
            if now - o.modified > ORPHAN_GRACE_S and _DIGEST.fullmatch(o.key[-64:])
        )
        for some in _batches(old):
            evicting = self._index.take_untracked(self._store, "in", {o.key[-64:]: o.size for o in some})
            self._remove_objects(evicting)
            count += len(evicting)
        return count

    def _remove_objects(self, evicting: Sequence[IndexedObject]) -> None:
        try:
            self._stager.delete([object_key(t.prefix, t.key) for t in evicting])
        except BaseException:
            self._index.cancel_eviction(evicting)
            raise
        self._index.finish_eviction(evicting)

    def _output_orphans(self, live: Collection[str], now: float) -> int:
        count = 0
        old = (o for o in self._stager.objects("out/") if now - o.modified > ORPHAN_GRACE_S)
        for some in _batches(o for o in old if o.key.split("/")[1] not in live):
            self._stager.delete([o.key for o in some])
            count += len(some)
        return count

    def _checkpoint_orphans(self, live: Collection[str], now: float, job_is_over: Callable[[str], bool]) -> int:
        """Of jobs that are over; a requeued one has no data on record before it starts again."""
        count = 0
        over: dict[str, bool] = {}

        def is_over(job_id: str) -> bool:
            if job_id not in over:
                over[job_id] = job_id not in live and job_is_over(job_id)
            return over[job_id]

        old = (o for o in self._stager.objects(f"{CHECKPOINT_PREFIX}/") if now - o.modified > ORPHAN_GRACE_S)
        for some in _batches(o for o in old if is_over(o.key.split("/")[1])):
            self._stager.delete([o.key for o in some])
            count += len(some)
        return count


def _batches(objects: Iterator[StoredObject]) -> Iterator[list[StoredObject]]:
    while some := list(islice(objects, DELETE_BATCH)):
        yield some
