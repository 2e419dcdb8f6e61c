"""Objects as the rows of a walk (burstd.transfer.trees.walk): directories come from their keys' slashes."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator

from staging.objects.user_store import Found, Place

Row = list[object]
_DIRECTORY = 0o755


def rows(place: Place, key: str) -> Iterator[Row]:
    """All objects below a key that ends in a slash or is empty, or the one of this key.

    Objects are ``["o", path, size, mtime_ns, tag, identity]``: fetched when they are asked for. Raises OSError.
    """
    if key and not key.endswith("/"):
        yield _row(place, single_object(place, key), key.rpartition("/")[2])
        return
    empty = True
    shape = _Shape()
    for found in place.listed(key):
        if empty:
            yield ["d", "", _DIRECTORY, 0]
            empty = False
        yield from shape.rows(place, found, found.key[len(key) :])
    if empty:
        raise nothing_below(place, key)


def single_object(place: Place, key: str) -> Found:
    """The object of this key. Raises OSError."""
    there = place.head(key)
    if there is not None:
        return there.found
    below = next(place.as_listed(f"{key}/"), None)
    text = "there is no such object" if below is None else "is no object; end it in '/' for all that lies below it"
    raise FileNotFoundError(errno.ENOENT, text, place.url(key))


def nothing_below(place: Place, key: str) -> OSError:
    """Of a key below which there are no objects."""
    return FileNotFoundError(errno.ENOENT, "there is no object below it", place.url(key))


def _row(place: Place, found: Found, path: str) -> Row:
    identity = hashlib.sha256(f"{place.origin}\0{found.key}\0{found.tag}".encode()).hexdigest()
    return ["o", path, found.size, found.mtime_ns, found.tag, identity]


class _Shape:
    """Which directories there are, while keys come in their order, in which those of a directory are together."""

    def __init__(self) -> None:
        self._directories: list[str] = []
        self._files: list[str] = []
        """Objects with whose paths the present one begins."""

    def rows(self, place: Place, found: Found, path: str) -> Iterator[Row]:
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
            yield _row(place, found, path)
