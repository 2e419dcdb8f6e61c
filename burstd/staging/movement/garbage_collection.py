"""What leaves the store: input that nobody needs, output that is home, and what was left by a transfer that died."""

from __future__ import annotations

import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice

import structlog

from burstd.domain.plugins.stager import Stager, StoredObject
from burstd.domain.staging import INPUT_NEEDED, StageState, Staging
from burstd.planner.staging.transfer_schedule import CachedTree, evictable
from burstd.transfer.content_store.index import Index, KnownTree, StoredKey
from burstd.transfer.content_store.manifest import object_key

log = structlog.get_logger(__name__)

ORPHAN_S = 3600.0
"""An object without an owner is let alone for so long, by the store's clock: a put may be on record in a moment."""
UNFINISHED_S = 86400.0
AT_ONCE = 1000
SEEN_S = 90 * 86400.0
"""A file that no job has used for so long is read again."""
TIDY_EVERY_S = 86400.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SLACK_S = 60.0
"""By how much the clock may be set while a transfer is under way."""


@dataclass(frozen=True, slots=True)
class SweepRules:
    """``lifetime_s``: of input that no job uses; ``keep_bytes``: how much of it there may be, None: any."""

    lifetime_s: float
    keep_bytes: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes that users (by uid, by name) and Slurm accounts take up; ``changes``: of the index, when it was counted."""

    changes: int = -1
    uids: Mapping[int, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    accounts: Mapping[str, int] = field(default_factory=dict)


def usage(index: Index) -> Usage:
    """Counts; may take a second. Raises StoreBusy."""
    changes = index.changes
    uids = index.usage_by_uid()
    return Usage(changes, uids, {user_name(uid): size for uid, size in uids.items()}, index.usage_by_account())


def user_name(uid: int) -> str:
    """The number, where there is no such user any more."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one round found and did. Bytes; ``free`` None: the store cannot tell."""

    at: float
    objects: int
    bytes: int
    free: int | None
    evicted: int
    orphans: int


def named(live: Iterable[Staging]) -> frozenset[str]:
    """Digests of the trees that these jobs read, as recorded."""
    trees = (tree for row in live if row.state in INPUT_NEEDED for tree in row.trees.values())
    return frozenset(tree.digest for tree in trees if not tree.place)


def needed(known: Iterable[KnownTree], live: Sequence[Staging], at: float, ahead: float) -> AbstractSet[str]:
    """Digests of the trees that must stay. ``known`` was read after ``live``, which was read at ``at``.

    The record names a job's trees when all of them are in the store: before that, and while this is on its way to the
    record, what was used since its transfer began is taken to be its. ``ahead``: of the system's time over burstd's.
    """
    begun: dict[int, float] = {}
    for row in live:
        if row.state is StageState.SENDING:
            begun[row.uid] = min(begun.get(row.uid, at), row.since + ahead - _SLACK_S)
    return named(live) | {t.tree.digest for t in known if t.used >= begun.get(t.uid, at)}


class Sweep:
    """One store's. Blocks; for several threads. Raises StagerError."""

    def __init__(self, store: str, stager: Stager, index: Index, rules: SweepRules) -> None:
        self._store = store
        self._stager = stager
        self._index = index
        self.rules = rules
        self._tidied = float("-inf")

    def run(self, live: Sequence[Staging], now: float, ahead: float = 0.0) -> Swept:
        """One round. ``live``: all stagings that are not cleared, as of ``now``, in the system's seconds since 1970.

        ``ahead``: of the system's time over burstd's, in seconds.
        """
        known = self._index.trees(self._store)
        in_use = named(live)
        self._index.use_trees(self._store, in_use)
        cached = [CachedTree(t.tree.digest, t.bytes, t.used) for t in known]
        stay = needed(known, live, now, ahead)
        gone = set(evictable(cached, stay, now, self.rules.lifetime_s, self.rules.keep_bytes))
        most = self.rules.keep_bytes
        full = most is not None and self._index.used_bytes(self._store) > most
        evicted = self.evict([t for t in known if t.tree.digest in gone], unused_s=0.0 if full else ORPHAN_S)
        orphans = 0
        # Where the index was lost, what live jobs need cannot be told from what nobody needs.
        if in_use <= {t.tree.digest for t in self._index.trees(self._store)}:
            orphans += self._input_orphans(now)
        orphans += self._output_orphans({row.job_id for row in live}, now)
        dead = [put for put in self._stager.unfinished() if now - put.begun > UNFINISHED_S]
        self._stager.abort(dead)
        count = size = 0
        for stored in self._stager.objects("in/"):
            count, size = count + 1, size + stored.size
        if now - self._tidied > TIDY_EVERY_S:
            self._index.forget_seen(SEEN_S)
            self._tidied = now
        if evicted or orphans or dead:
            log.info("the store was swept", evicted=evicted, orphans=orphans, unfinished=len(dead))
        return Swept(now, count, size, self._stager.free_bytes(), evicted, orphans + len(dead))

    def make_room(self, live: Sequence[Staging], now: float, ahead: float = 0.0) -> int:
        """Removes the longer unused half of what nobody needs, for a put that found no room; how many objects.

        Arguments as of ``run``; the data that the put was of is among ``live`` as it was then.
        """
        known = self._index.trees(self._store)
        stay = needed(known, live, now, ahead)
        cached = [CachedTree(t.tree.digest, t.bytes, t.used) for t in known]
        spare = sum(tree.size_bytes for tree in cached if tree.id not in stay)
        most = sum(tree.size_bytes for tree in cached) - (spare + 1) // 2
        gone = set(evictable(cached, stay, now, self.rules.lifetime_s, most))
        # What transfers have brought since they began stays for their next try.
        begun = min((row.since + ahead for row in live if row.state is StageState.SENDING), default=now)
        evicted = self.evict((t for t in known if t.tree.digest in gone), unused_s=max(now - begun, 0.0))
        log.info("the store is full", evicted=evicted, trees=len(gone), of=len(cached))
        return evicted

    def evict(self, trees: Iterable[KnownTree], *, unused_s: float = 0.0) -> int:
        """Removes trees that were not used since they were read, and the objects that no tree uses; how many objects.

        Objects that were used in the last ``unused_s`` seconds stay: they may be of a transfer that broke off, or the
        output of a job that others follow.
        """
        for tree in trees:
            self._index.forget_tree(tree)
        count = 0
        for taken in self._index.unreferenced(self._store, unused_s=unused_s, limit=AT_ONCE):
            self._remove(taken)
            count += len(taken)
        return count

    def _input_orphans(self, now: float) -> int:
        count = 0
        old = (o for o in self._stager.objects("in/") if now - o.modified > ORPHAN_S and _DIGEST.fullmatch(o.key[-64:]))
        for some in _portions(old):
            taken = self._index.strays(self._store, "in", {o.key[-64:]: o.size for o in some})
            self._remove(taken)
            count += len(taken)
        return count

    def _remove(self, taken: Sequence[StoredKey]) -> None:
        try:
            self._stager.delete([object_key(t.prefix, t.key) for t in taken])
        except BaseException:
            self._index.keep(taken)
            raise
        self._index.forget(taken)

    def _output_orphans(self, live: Collection[str], now: float) -> int:
        count = 0
        old = (o for o in self._stager.objects("out/") if now - o.modified > ORPHAN_S)
        for some in _portions(o for o in old if o.key.split("/")[1] not in live):
            self._stager.delete([o.key for o in some])
            count += len(some)
        return count


def _portions(objects: Iterator[StoredObject]) -> Iterator[list[StoredObject]]:
    while some := list(islice(objects, AT_ONCE)):
        yield some
