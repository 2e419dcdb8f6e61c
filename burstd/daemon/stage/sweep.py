"""What leaves the store: input that nobody needs, output that is home, and what was left by a transfer that died."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from burstd.core.staging import CachedTree, evictable
from burstd.data.index import Index, KnownTree, StoredKey
from burstd.data.manifest import object_key
from burstd.model.data import INPUT_NEEDED, Staging
from burstd.model.stager import Stager, StoredObject

log = structlog.get_logger(__name__)

ORPHAN_S = 3600.0
"""An object without an owner is let alone for so long, by the store's clock: a put may be on record in a moment."""
UNFINISHED_S = 86400.0
AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class SweepRules:
    """``lifetime_s``: of input that no job uses; ``keep_bytes``: how much of it there may be, None: any."""

    lifetime_s: float
    keep_bytes: int | None


@dataclass(frozen=True, slots=True)
class Swept:
    """What one round found and did. Bytes; ``free`` None: the store cannot tell."""

    at: float
    objects: int
    bytes: int
    free: int | None
    evicted: int
    orphans: int


class Sweep:
    """One store's. Blocks; for one thread at a time. Raises StagerError."""

    def __init__(self, store: str, stager: Stager, index: Index, rules: SweepRules) -> None:
        self._store = store
        self._stager = stager
        self._index = index
        self._rules = rules

    def run(self, live: Sequence[Staging], now: float) -> Swept:
        """One round. ``live``: all stagings that are not cleared; ``now`` in seconds since 1970."""
        known = self._index.trees(self._store)
        needed = {tree.digest for row in live if row.state in INPUT_NEEDED for tree in row.trees.values()}
        cached = [CachedTree(t.tree.digest, t.bytes, t.used) for t in known]
        gone = set(evictable(cached, needed, now, self._rules.lifetime_s, self._rules.keep_bytes))
        most = self._rules.keep_bytes
        full = most is not None and self._index.used_bytes(self._store) > most
        evicted = self.evict([t for t in known if t.tree.digest in gone], at_once=full)
        orphans = 0
        # Where the index was lost, what live jobs need cannot be told from what nobody needs.
        if all(self._index.objects_of(self._store, tree) for row in live for tree in row.trees.values()):
            orphans += self._input_orphans(now)
        orphans += self._output_orphans({row.job_id for row in live}, now)
        dead = [put for put in self._stager.unfinished() if now - put.begun > UNFINISHED_S]
        self._stager.abort(dead)
        count = size = 0
        for stored in self._stager.objects("in/"):
            count, size = count + 1, size + stored.size
        if evicted or orphans or dead:
            log.info("the store was swept", evicted=evicted, orphans=orphans, unfinished=len(dead))
        return Swept(now, count, size, self._stager.free_bytes(), evicted, orphans + len(dead))

    def evict(self, trees: Iterable[KnownTree], *, at_once: bool = True) -> int:
        """Removes trees and the objects that no tree uses; how many objects.

        Not ``at_once``: what was used in the last hour stays, for it may be of a transfer that broke off, or the output
        of a job that others follow.
        """
        for tree in trees:
            self._index.forget_tree(self._store, tree.tree)
        count = 0
        unused_s = 0.0 if at_once else ORPHAN_S
        while taken := self._index.unreferenced(self._store, unused_s=unused_s, limit=AT_ONCE):
            self._remove(taken)
            count += len(taken)
        return count

    def _input_orphans(self, now: float) -> int:
        count = 0
        old = (o for o in self._stager.objects("in/") if now - o.modified > ORPHAN_S)
        for some in _portions(old):
            taken = self._index.strays(self._store, "in", {o.key.rpartition("/")[2]: o.size for o in some})
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
