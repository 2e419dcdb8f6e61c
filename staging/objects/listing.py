"""Objects as the rows of a walk (burstd.transfer.trees.walk): directories come from their keys' slashes."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator

from staging.objects.user_store import UserObject, UserStore

ObjectRow = list[object]
_DIRECTORY = 0o755


def object_rows(store: UserStore, key: str) -> Iterator[ObjectRow]:
    """All objects under a key that ends in a slash or is empty, or the one of this key.

    Objects are ``["o", path, size, mtime_ns, tag, identity]``: fetched when they are asked for. Raises OSError.
    """
    if key and not key.endswith("/"):
        yield _object_row(store, find_object(store, key), key.rpartition("/")[2])
        return
    empty = True
    shape = _DirectoryTracker()
    for found in store.list_sorted(key):
        if empty:
            yield ["d", "", _DIRECTORY, 0]
            empty = False
        yield from shape.rows(store, found, found.key[len(key) :])
    if empty:
        raise no_objects_error(store, key)


def find_object(store: UserStore, key: str) -> UserObject:
    """The object of this key. Raises OSError."""
    there = store.head(key)
    if there is not None:
        return there.object
    under = next(store.list_unsorted(f"{key}/"), None)
    text = "there is no such object" if under is None else "is not an object; end it in '/' for all objects under it"
    raise FileNotFoundError(errno.ENOENT, text, store.url(key))


def no_objects_error(store: UserStore, key: str) -> OSError:
    """Of a key under which there are no objects."""
    return FileNotFoundError(errno.ENOENT, "there is no object under it", store.url(key))


def _object_row(store: UserStore, found: UserObject, path: str) -> ObjectRow:
    identity = hashlib.sha256(f"{store.origin}\0{found.key}\0{found.tag}".encode()).hexdigest()
    return ["o", path, found.size, found.mtime_ns, found.tag, identity]


class _DirectoryTracker:
    """Which directories there are, while keys come in their order, in which those of a directory are together."""

    def __init__(self) -> None:
        self._directories: list[str] = []
        self._files: list[str] = []
        """Objects with whose paths the present one begins."""

    def rows(self, store: UserStore, found: UserObject, path: str) -> Iterator[ObjectRow]:
        """The rows of one object, those of new directories before it."""
        names = path.split("/")
        marker = not names[-1]
        if marker:  # what some programs put to have a directory
            names.pop()
            if found.size:
                yield ["x", path, "its key ends in a slash, which no file's name does"]
                return
        if not names and marker:
            return
        if any(name in {"", ".", ".."} or "\0" in name or len(name.encode()) > 255 for name in names):
            yield ["x", path, "its key cannot be a path"]
            return
        self._files = [file for file in self._files if path.startswith(file)]
        taken = next((file for file in self._files if path.startswith(f"{file}/")), None)
        if taken is not None:
            yield ["x", path, f"{taken} is an object itself, and cannot be a file and a directory"]
            return
        above = names if marker else names[:-1]
        same = 0
        while same < min(len(above), len(self._directories)) and above[same] == self._directories[same]:
            same += 1
        for depth in range(same, len(above)):
            yield ["d", "/".join(above[: depth + 1]), _DIRECTORY, 0]
        self._directories = above
        if not marker:
            self._files.append(path)
            yield _object_row(store, found, path)
