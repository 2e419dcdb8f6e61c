"""Walking a source with the rights that this process has: a file, a directory or a glob pattern, in a stable order.

Rows, each a list that JSON carries (paths relative to the source, as os.fsdecode makes them):

``["d", path, mode, mtime_ns]``: a directory, before what is in it; the source itself is ``""``.
``["f", path]``: a regular file; its descriptor, open for reading, comes with it.
``["h", path, earlier]``: a hard link of a file that came earlier in this walk.
``["l", path, target, mode, mtime_ns]``: a symbolic link, never followed.
``["e", path, errno]``: it cannot be read.
``["o", path, size, mtime_ns, tag, identity]``: an object (staging.objects.listing), in place of a file.
``["x", path, what]``: left out, being no data (socket, pipe, device) or gone since it was listed.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Iterator

from burstd.transfer.trees.ignore import IgnoreRules

WalkRow = list[object]
WalkItem = tuple[WalkRow, int]
"""A row and its descriptor, -1 where it has none."""

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_FILE_BYTES = 1 << 60
"""A larger file, which can only be a sparse one, is not read: it would be read for years."""
_MAX_TRACKED_LINKS = 500_000
"""So many files with several names are remembered while they wait for their other names, which bounds memory: what
comes beyond is sent as a file of its own, with the same content."""


def is_pattern(source: str) -> bool:
    """Whether the name has wildcards."""
    return any(c in source for c in "*?[")


def fixed_part(source: str) -> str:
    """The directory in which a source's entries lie: the source itself, of a pattern what is before its wildcards."""
    if not is_pattern(source):
        return source.rstrip("/")
    parts = source.split("/")
    return "/".join(parts[: next(i for i, part in enumerate(parts) if is_pattern(part))])


class Walk:
    """One walk of one source. Raises OSError where the source itself is not to be had.

    The name of the source is followed if it is a symbolic link, as is what leads to it; nothing inside it is: each
    directory is opened from the one above, without following, so that no swap of a directory for a link leads out.
    """

    def __init__(self, source: str, ignore: IgnoreRules | None = None, *, hard_links: bool = True) -> None:
        """``ignore``: what of a directory is left out. ``hard_links`` False: each name of a file is a file."""
        self.source = source
        self.single = False
        """The source is one file."""
        self._ignore = ignore
        self._hard_links = hard_links
        self._links: dict[tuple[int, int], tuple[str, int]] = {}

    def __iter__(self) -> Iterator[WalkItem]:
        try:
            facts = os.stat(self.source)  # noqa: PTH116 - Path would lose trailing slashes
        except OSError as error:
            if error.errno == errno.ENOENT and is_pattern(self.source):
                yield from self._glob()
                return
            raise
        if stat.S_ISDIR(facts.st_mode):
            root = os.open(self.source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            facts = os.fstat(root)
            try:
                yield ["d", "", stat.S_IMODE(facts.st_mode), facts.st_mtime_ns], -1
                yield from self._walk_directory(root, "")
            finally:
                os.close(root)
        elif stat.S_ISREG(facts.st_mode):
            if facts.st_size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self.source)
            self.single = True
            fd = os.open(self.source, _FILE & ~os.O_NOFOLLOW)
            yield ["f", os.path.basename(self.source)], fd  # noqa: PTH119
        else:
            raise OSError(errno.EINVAL, f"is a {_file_type(facts.st_mode)}", self.source)

    def _walk_directory(self, top: int, prefix: str) -> Iterator[WalkItem]:
        """All that is in the directory ``top``, which stays open."""
        stack: list[tuple[int, str, Iterator[str]]] = [(top, prefix, iter(_names(top)))]
        try:
            while stack:
                directory, above, names = stack[-1]
                for item in names:
                    name = item[:-2]
                    path = above + name
                    if self._ignore is not None and self._ignore.ignores(path, directory=item[-1] == "d"):
                        continue
                    if item[-1] == "f":
                        yield self._file_entry(directory, name, path)
                        continue
                    if item[-1] != "d":
                        yield self._other_entry(directory, name, path)
                        continue
                    try:
                        child = os.open(name, _DIRECTORY, dir_fd=directory)
                    except OSError as error:
                        yield _error_row(error, path), -1
                        continue
                    facts = os.fstat(child)
                    stack.append((child, path + "/", iter(())))
                    yield ["d", path, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns], -1
                    try:
                        stack[-1] = (child, path + "/", iter(_names(child)))
                    except OSError as error:
                        yield _error_row(error, path), -1
                    break
                else:
                    stack.pop()
                    if directory != top:
                        os.close(directory)
        finally:
            for directory, _, _ in stack:
                if directory != top:
                    os.close(directory)

    def _file_entry(self, directory: int, name: str, path: str) -> WalkItem:
        try:
            fd = os.open(name, _FILE, dir_fd=directory)
        except OSError as error:
            return _error_row(error, path), -1
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            return ["x", path, _file_type(facts.st_mode)], -1
        if facts.st_size > MAX_FILE_BYTES:
            os.close(fd)
            return ["e", path, errno.EFBIG], -1
        if facts.st_nlink > 1 and self._hard_links:
            earlier = self._earlier_name(facts, path)
            if earlier:
                os.close(fd)
                return ["h", path, earlier], -1
        return ["f", path], fd

    def _earlier_name(self, facts: os.stat_result, path: str) -> str:
        identity = (facts.st_dev, facts.st_ino)
        earlier, left = self._links.pop(identity, ("", facts.st_nlink))
        if left > 1 and len(self._links) < _MAX_TRACKED_LINKS:
            self._links[identity] = (earlier or path, left - 1)
        return earlier

    def _other_entry(self, directory: int, name: str, path: str) -> WalkItem:
        """A link, or something that is no data, or what the directory does not tell the kind of."""
        try:
            facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(facts.st_mode):
                target = os.readlink(name, dir_fd=directory)
                return ["l", path, target, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns], -1
        except OSError as error:
            return _error_row(error, path), -1
        if stat.S_ISREG(facts.st_mode):
            return self._file_entry(directory, name, path)
        return ["x", path, _file_type(facts.st_mode)], -1

    def _glob(self) -> Iterator[WalkItem]:
        """Matches lie under the part of the pattern without wildcards, so that equal base names do not collide.

        That directory's time is left out: it changes with files that the pattern does not name.
        """
        parts = self.source.split("/")
        fixed = next(i for i, part in enumerate(parts) if is_pattern(part))
        base = "/".join(parts[:fixed]) + "/" if fixed else "."
        top = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            matches = sorted({tuple(m.split("/")) for m in matching_paths(top, [p for p in parts[fixed:] if p], "")})
            if not matches:
                raise OSError(errno.ENOENT, "matches nothing", self.source)
            yield ["d", "", stat.S_IMODE(os.fstat(top).st_mode), 0], -1
            yield from self._matched(top, matches)
        finally:
            os.close(top)

    def _matched(self, top: int, matches: list[tuple[str, ...]]) -> Iterator[WalkItem]:
        """The matches, parents before children; a directory that matches is walked whole."""
        open_now: list[tuple[str, int]] = []
        whole: tuple[str, ...] = ()
        try:
            for match in matches:
                if whole and match[: len(whole)] == whole:
                    continue
                while open_now and tuple(name for name, _ in open_now) != match[: len(open_now)]:
                    os.close(open_now.pop()[1])
                while len(open_now) >= len(match):
                    os.close(open_now.pop()[1])
                directory = open_now[-1][1] if open_now else top
                try:
                    for depth in range(len(open_now), len(match) - 1):
                        directory = os.open(match[depth], _DIRECTORY, dir_fd=directory)
                        open_now.append((match[depth], directory))
                        yield ["d", "/".join(match[: depth + 1]), stat.S_IMODE(os.fstat(directory).st_mode), 0], -1
                    facts = os.stat(match[-1], dir_fd=directory, follow_symlinks=False)
                    path = "/".join(match)
                    if not stat.S_ISDIR(facts.st_mode):
                        yield self._other_entry(directory, match[-1], path)
                        continue
                    child = os.open(match[-1], _DIRECTORY, dir_fd=directory)
                except OSError as error:
                    yield _error_row(error, "/".join(match)), -1
                    continue
                whole = match
                try:
                    yield ["d", path, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns], -1
                    yield from self._walk_directory(child, path + "/")
                except OSError as error:
                    yield _error_row(error, path), -1
                finally:
                    os.close(child)
        finally:
            for _, fd in open_now:
                os.close(fd)


def _names(directory: int) -> list[str]:
    """Names in order, each followed by NUL and its kind: half the memory of pairs, for directories with millions."""
    with os.scandir(directory) as entries:
        names = [
            entry.name
            + (
                "\0f"
                if entry.is_file(follow_symlinks=False)
                else "\0d"
                if entry.is_dir(follow_symlinks=False)
                else "\0o"
            )
            for entry in entries
        ]
    names.sort()
    return names


def matching_paths(directory: int, parts: list[str], prefix: str) -> Iterator[str]:
    """Paths below an open directory that these parts of a pattern match. No link is followed."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        if rest:
            yield from matching_paths(directory, rest, prefix)
        for item in _names(directory):
            if not item.startswith("."):
                if not rest:
                    yield prefix + item[:-2]
                if item[-1] == "d":
                    yield from _descend(directory, item[:-2], parts, prefix)
        return
    for item in _names(directory):
        name = item[:-2]
        if (name.startswith(".") and not part.startswith(".")) or not fnmatch.fnmatchcase(name, part):
            continue
        if not rest:
            yield prefix + name
        elif item[-1] == "d":
            yield from _descend(directory, name, rest, prefix)


def _descend(directory: int, name: str, parts: list[str], prefix: str) -> Iterator[str]:
    try:
        child = os.open(name, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        return  # as a shell does: what cannot be looked into matches nothing
    try:
        yield from matching_paths(child, parts, f"{prefix}{name}/")
    except PermissionError:
        return
    finally:
        os.close(child)


def _error_row(error: OSError, path: str) -> WalkRow:
    if error.errno == errno.ENOENT:
        return ["x", path, "gone while it was being read"]
    return ["e", path, error.errno]


def _file_type(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "socket"
    if stat.S_ISFIFO(mode):
        return "pipe"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    return "file of an unknown kind"
