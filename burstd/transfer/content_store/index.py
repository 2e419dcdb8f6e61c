"""What is known of the stores: which content lies in which object, which file had which content, which tree uses what.

A cache in an SQLite file of its own: where it is lost or damaged, files are read and stores asked again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.index_file import (
    IndexFile,
    clear_store,
    forget_objects,
    pack_pieces,
    signed_inode,
    unpack_pieces,
)

_T = TypeVar("_T")
_BATCH = 400
_DAY_S = 86400.0


class FileIdentity(NamedTuple):
    """A file as the kernel tells it from others; it has other content only where this differs."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class IndexedObject:
    """An object: its name in the tree's prefix, and its size in bytes."""

    store: str
    prefix: str
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class IndexedTree:
    """A tree in a store. ``bytes``: of its objects, manifest included; times in seconds since 1970."""

    store: str
    tree: Tree
    uid: int
    account: str
    source: str
    stored_bytes: int
    created: float
    last_used: float


class ContentIndex:
    """One file, for all threads of one process. ``path``: None keeps it in memory.

    Contents are named by bytes: the SHA-256 of a small file's bytes, a name of the sender's for a large one's pieces.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file = IndexFile(path)
        self._lock = self._file.lock
        self._query = self._file.query
        self._transaction = self._file.transaction
        self._pinned: Counter[tuple[str, str, str]] = Counter()
        self._evicting: set[tuple[str, str, str]] = set()
        self.changes = 0
        """Grows whenever the trees, and so what users take up, become others."""
        self._eviction_ended = threading.Condition(self._lock)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    # What the sender asks.

    def known_contents(self, uid: int, files: Sequence[FileIdentity]) -> dict[tuple[int, int], bytes]:
        """Of these files, those that were read before and have not changed: (dev, ino) -> content.

        By user, because the numbers are what a file system says, and a user may have made his own (fuse).
        """
        found: dict[tuple[int, int], bytes] = {}
        now = time.time()
        used: list[tuple[float, int, int, int]] = []
        asked = {(f.dev, signed_inode(f.ino)): f for f in files}
        for dev in {f.dev for f in files}:
            for part in _batches([ino for on, ino in asked if on == dev]):
                placeholders = ",".join("?" * len(part))
                rows = self._query(
                    f"select ino, size, mtime, ctime, content, used from seen"  # noqa: S608
                    f" where uid = ? and dev = ? and ino in ({placeholders})",
                    [uid, dev, *part],
                )
                for ino, size, mtime, ctime, content, last in rows:
                    f = asked[dev, ino]
                    if (size, mtime, ctime) == (f.size, f.mtime_ns, f.ctime_ns):
                        found[f.dev, f.ino] = content
                        if now - last > _DAY_S:
                            used.append((now, uid, dev, ino))
        if used:
            with self._transaction() as db:
                db.executemany("update seen set used = ? where uid = ? and dev = ? and ino = ?", used)
        return found

    def content_pieces(
        self, store: str, prefix: str, contents: Sequence[bytes]
    ) -> dict[bytes, tuple[ObjectRange, ...]]:
        """Where these contents are in a store, of those whose objects are all there."""
        found: dict[bytes, tuple[ObjectRange, ...]] = {}
        for part in _batches(contents):
            placeholders = ",".join("?" * len(part))
            rows = self._query(
                f"select content, pieces from contents where store = ? and prefix = ? and content in ({placeholders})",  # noqa: S608
                [store, prefix, *part],
            )
            for content, data in rows:
                found[content] = unpack_pieces(data)
        return found

    def present_objects(self, store: str, prefix: str, keys: Sequence[str]) -> dict[str, int]:
        """Of these objects, those that are in the store as far as is known, with their sizes in bytes."""
        found = self._object_sizes(store, prefix, keys, "there and")
        with self._lock:
            return {key: size for key, size in found.items() if (store, prefix, key) not in self._evicting}

    def _object_sizes(self, store: str, prefix: str, keys: Sequence[str], condition: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in _batches(keys):
            placeholders = ",".join("?" * len(part))
            rows = self._query(
                f"select key, size from objects where {condition} store = ? and prefix = ? and key in ({placeholders})",  # noqa: S608
                [store, prefix, *map(bytes.fromhex, part)],
            )
            found.update((key.hex(), size) for key, size in rows)
        return found

    def record_put_begun(self, store: str, prefix: str, key: str, size: int) -> None:
        """An object is about to be put; a record that stays so tells of a put that may not have ended."""
        with self._transaction() as db:
            db.execute(
                "insert into objects (store, prefix, key, size, used, there) values (?, ?, ?, ?, ?, 0)"
                " on conflict do update set used = excluded.used",
                (store, prefix, bytes.fromhex(key), size, time.time()),
            )

    def record_put(
        self,
        store: str,
        prefix: str,
        objects: Mapping[str, int],
        contents: Mapping[bytes, Sequence[ObjectRange]] | None = None,
    ) -> None:
        """Objects (key -> size) are in the store, and with them these contents."""
        now = time.time()
        with self._transaction() as db:
            db.executemany(
                "insert into objects (store, prefix, key, size, used, there) values (?, ?, ?, ?, ?, 1)"
                " on conflict do update set there = 1, used = excluded.used, size = excluded.size",
                [(store, prefix, bytes.fromhex(key), size, now) for key, size in objects.items()],
            )
            if contents:
                _add_contents(db, store, prefix, contents)

    def add_contents(self, store: str, prefix: str, contents: Mapping[bytes, Sequence[ObjectRange]]) -> None:
        """Contents lie in objects that are there."""
        with self._transaction() as db:
            _add_contents(db, store, prefix, contents)

    def record_contents(self, uid: int, files: Iterable[tuple[FileIdentity, bytes]]) -> None:
        """These files of a user have these contents."""
        now = time.time()
        with self._transaction() as db:
            db.executemany(
                "replace into seen values (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (uid, f.dev, signed_inode(f.ino), f.size, f.mtime_ns, f.ctime_ns, content, now)
                    for f, content in files
                ],
            )

    def pin_objects(self, store: str, prefix: str, keys: Iterable[str]) -> bool:
        """Keeps objects from being evicted until ``release``; waits for those that are just going. True: none was."""
        names = [(store, prefix, key) for key in keys]
        with self._eviction_ended:
            evicting = self._evicting.intersection(names)
            if evicting:
                self._eviction_ended.wait_for(lambda: not self._evicting.intersection(names))
            self._pinned.update(names)
            return not evicting

    def unpin_objects(self, store: str, prefix: str, keys: Iterable[str]) -> None:
        """The reverse of ``hold``."""
        with self._lock:
            for key in keys:
                name = (store, prefix, key)
                self._pinned[name] -= 1
                if self._pinned[name] <= 0:
                    del self._pinned[name]

    # Trees.

    def add_tree(
        self, store: str, tree: Tree, keys: Iterable[str], *, uid: int, account: str = "", source: str = ""
    ) -> None:
        """A tree is whole in the store; ``keys``: all of its objects, those of its manifest included."""
        now = time.time()
        manifest = json.dumps([[p.key, p.offset, p.length] for p in tree.manifest])
        with self._transaction() as db:
            (row,) = db.execute(
                "insert into trees (store, prefix, digest, manifest, entries, size, single, uid, account, source,"
                " bytes, made, used) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)"
                " on conflict do update set used = excluded.used, account = excluded.account, source = excluded.source"
                " returning id",
                (
                    *(store, tree.prefix, tree.digest, manifest, tree.entries, tree.size, tree.single),
                    *(uid, account, source, now, now),
                ),
            ).fetchone()
            db.executemany(
                "insert or ignore into tree_objects"
                " select ?, id from objects where store = ? and prefix = ? and key = ?",
                [(row, store, tree.prefix, bytes.fromhex(key)) for key in set(keys)],
            )
            db.execute(
                "update trees set bytes = (select coalesce(sum(o.size), 0) from tree_objects t join objects o"
                " on o.id = t.object where t.tree = trees.id) where id = ?",
                (row,),
            )
            db.execute(
                "update objects set used = ? where id in (select object from tree_objects where tree = ?)", (now, row)
            )
            self.changes += 1

    def trees(self, store: str | None = None) -> list[IndexedTree]:
        """All trees, the least recently used first."""
        rows = self._query(
            "select store, prefix, digest, manifest, entries, size, single, uid, account, source, bytes, made, used"
            " from trees where ? is null or store = ? order by used, id",
            [store, store],
        )
        return [_indexed_tree(row) for row in rows]

    def tree_of_source(self, store: str, source: str) -> tuple[Tree, set[str]] | None:
        """The tree that anybody last brought from a source, with its objects as far as they are known."""
        rows = self._query(
            "select store, prefix, digest, manifest, entries, size, single, uid, account, source, bytes, made, used, id"
            " from trees where store = ? and source = ? order by used desc limit 1",
            [store, source],
        )
        if not rows:
            return None
        keys = self._query(
            "select o.key from tree_objects t join objects o on o.id = t.object where t.tree = ?", [rows[0][-1]]
        )
        return _indexed_tree(rows[0][:-1]).tree, {key.hex() for (key,) in keys}

    def touch_trees(self, store: str, digests: Iterable[str]) -> None:
        """Jobs use them now."""
        now = time.time()
        with self._transaction() as db:
            names = [(now, store, digest) for digest in digests]
            db.executemany("update trees set used = ? where store = ? and digest = ?", names)

    def forget_tree(self, known: IndexedTree) -> bool:
        """Its user needs it no more; its objects that no other tree uses become unreferenced.

        False: it is not there, or was used since ``known`` was read, and stays.
        """
        with self._transaction() as db:
            found = db.execute(
                "select id from trees where store = ? and prefix = ? and digest = ? and uid = ? and used <= ?",
                (known.store, known.tree.prefix, known.tree.digest, known.uid, known.last_used),
            ).fetchone()
            if found is None:
                return False
            db.execute("delete from tree_objects where tree = ?", found)
            db.execute("delete from trees where id = ?", found)
            self.changes += 1
            return True

    def usage_by_uid(self, store: str | None = None) -> dict[int, int]:
        """User -> bytes of objects in the trees that he staged; what several staged counts for each."""
        return {int(who): total for who, total in self._usage("uid", store)}

    def usage_by_account(self, store: str | None = None) -> dict[str, int]:
        """Account -> bytes of objects, likewise."""
        return {str(who): total for who, total in self._usage("account", store)}

    def used_bytes(self, store: str) -> int:
        """Bytes of all objects that are in a store as far as is known."""
        ((total,),) = self._file.query_concurrently(
            "select coalesce(sum(size), 0) from objects where there and store = ?", [store]
        )
        return int(total)

    # Eviction: take, delete from the store, then forget (or keep, where the store failed).

    def take_unreferenced(
        self, store: str, *, unused_s: float = 0.0, limit: int = 1000
    ) -> Iterator[list[IndexedObject]]:
        """Takes objects of no tree and of no transfer, unused for so long: no sender touches them until forgotten.

        Portions, each taken when it is asked for. Objects whose put never ended, and may not be there, are among them.
        """
        idle = "store = ? and used <= ? and not exists (select 1 from tree_objects t where t.object = o.id)"
        known = [store, time.time() - unused_s]
        found = [number for (number,) in self._file.query_concurrently(f"select id from objects o where {idle}", known)]  # noqa: S608
        for part in _batches(found, limit):
            placeholders = ",".join("?" * len(part))
            with self._lock:
                rows = self._query(
                    f"select store, prefix, key, size from objects o where id in ({placeholders}) and {idle}",  # noqa: S608
                    [*part, *known],
                )
                taken = self._begin_eviction(
                    IndexedObject(where, prefix, key.hex(), size) for where, prefix, key, size in rows
                )
            if taken:
                yield taken

    def take_untracked(self, store: str, prefix: str, objects: Mapping[str, int]) -> list[IndexedObject]:
        """Takes, of objects found in the store (key -> size), those of which nothing is known here and nobody sends."""
        with self._lock:
            known = self._object_sizes(store, prefix, list(objects), "")
            return self._begin_eviction(
                IndexedObject(store, prefix, key, size) for key, size in objects.items() if key not in known
            )

    def _begin_eviction(self, objects: Iterable[IndexedObject]) -> list[IndexedObject]:
        names = {(o.store, o.prefix, o.key): o for o in objects}
        taken = [o for name, o in names.items() if name not in self._pinned and name not in self._evicting]
        self._evicting.update((o.store, o.prefix, o.key) for o in taken)
        return taken

    def finish_eviction(self, objects: Iterable[IndexedObject]) -> None:
        """These objects are in the store no more, and no content or tree can be had from them."""
        self._forget_objects([(o.store, o.prefix, bytes.fromhex(o.key)) for o in objects])

    def forget_lost_objects(self, store: str, prefix: str, keys: Iterable[str]) -> None:
        """The same of objects that the store has lost."""
        self._forget_objects([(store, prefix, bytes.fromhex(key)) for key in keys])

    def _forget_objects(self, names: Sequence[tuple[str, str, bytes]]) -> None:
        with self._transaction() as db:
            forget_objects(db, names)
            self.changes += 1
        self._end_eviction(names)

    def forget_store(self, store: str) -> bool:
        """All that is known of a store whose objects are gone, but objects that a sender holds; False: nothing was."""
        if not self._query("select 1 from objects where store = ? union all select 1 from trees where store "
        "= ? limit 1",
                          [store, store]):  # fmt: skip
            return False
        with self._transaction() as db:
            pinned = [(where, prefix, bytes.fromhex(key)) for where, prefix, key in self._pinned if where == store]
            clear_store(db, store, pinned)
            self.changes += 1
        return True

    def cancel_eviction(self, objects: Iterable[IndexedObject]) -> None:
        """Objects that were taken for eviction and not deleted."""
        self._end_eviction([(o.store, o.prefix, bytes.fromhex(o.key)) for o in objects])

    def forget_unused_files(self, unused_s: float) -> int:
        """Drops what is known of files that no job has used for so long; how many."""
        before = time.time() - unused_s
        old = self._file.query_concurrently("select uid, dev, ino from seen where used < ?", [before])
        for part in _batches(old, 5000):
            with self._transaction() as db:
                db.executemany(
                    "delete from seen where uid = ? and dev = ? and ino = ? and used < ?",
                    [(*name, before) for name in part],
                )
        return len(old)

    def _end_eviction(self, names: Iterable[tuple[str, str, bytes]]) -> None:
        with self._eviction_ended:
            self._evicting.difference_update((store, prefix, key.hex()) for store, prefix, key in names)
            self._eviction_ended.notify_all()

    def _usage(self, column: str, store: str | None) -> list[tuple[Any, int]]:
        return [
            (who, int(total))
            for who, total in self._file.query_concurrently(
                f"select who, sum(size) from (select distinct t.{column} as who, o.id, o.size as size from trees t"  # noqa: S608
                " join tree_objects x on x.tree = t.id join objects o on o.id = x.object"
                " where ? is null or t.store = ?) group by who",
                [store, store],
            )
        ]


def _add_contents(
    db: sqlite3.Connection, store: str, prefix: str, contents: Mapping[bytes, Sequence[ObjectRange]]
) -> None:
    ids = {
        key: db.execute(
            "select id from objects where store = ? and prefix = ? and key = ?", (store, prefix, bytes.fromhex(key))
        ).fetchone()[0]
        for key in {p.key for pieces in contents.values() for p in pieces if p.key}
    }
    db.executemany(
        "replace into contents values (?, ?, ?, ?)",
        [(store, prefix, content, pack_pieces(pieces)) for content, pieces in contents.items()],
    )
    db.executemany(
        "insert or ignore into holds values (?, ?)",
        [(ids[p.key], content) for content, pieces in contents.items() for p in pieces if p.key],
    )


def _batches(items: Sequence[_T], size: int = _BATCH) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _indexed_tree(row: tuple[Any, ...]) -> IndexedTree:
    store, prefix, digest, manifest, entries, size, single, uid, account, source, total, made, used = row
    pieces = tuple(ObjectRange(*p) for p in json.loads(manifest))
    tree = Tree(prefix, digest, pieces, entries, size, bool(single))
    return IndexedTree(store, tree, uid, account, source, total, made, used)
