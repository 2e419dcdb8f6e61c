"""Objects as files of a folder: what the storage node's program and a shared file system's stager have in common."""

# Each call handles up to thousands of paths; as text they cost a fifth.
# ruff: noqa: PTH100, PTH102, PTH103, PTH104, PTH108, PTH112, PTH116, PTH118, PTH119, PTH120, PTH106

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from burstd.domain.plugins.stager import (
    OBJECT_BYTES,
    NoSuchObject,
    StoreBusy,
    StoredObject,
    StoreRefused,
    StoreSpaceGone,
    UnfinishedUpload,
    object_too_large,
    valid_key,
)

TEMPORARY_FOLDER = ".tmp"
"""Folder of what is being written. A key has no part that begins with a dot."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
_NO_LINK = frozenset({errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
_MILLISECONDS = re.compile(r"[0-9]{1,15}")
_TRIES = 20


class ObjectFolder:
    """Objects as files under ``root``, whose parent must be there (else a file system is not mounted: StoreRefused).

    Files and folders are for their owner only. ``sync``: a put has reached the disk when it returns. For several
    threads and processes at once.

    ``marker`` (a word) tells the folder from all others, however they are called: whoever owns the store marks it, and
    who uses it from elsewhere (``must_exist``) makes nothing and is refused each call where that mark is not.
    """

    def __init__(self, root: str | Path, *, sync: bool = False, marker: str = "", must_exist: bool = False) -> None:
        self._root = os.path.abspath(root)
        self._temporary = os.path.join(self._root, TEMPORARY_FOLDER)
        self._marker = os.path.join(self._root, f".{marker}") if marker else self._temporary
        self._must_exist = must_exist
        self._sync = sync

    def ensure_root(self) -> None:
        """Makes the root where it is missing. Raises StoreRefused where its parent is, or it is not the one meant."""
        with self._translated_errors("be used"):
            self._ensure_root()

    @contextmanager
    def open_for_writing(self, key: str) -> Iterator[int]:
        """A descriptor to write an object to, which is there under its name when the block ends, not if it raises."""
        target = self._path(key)
        with self._translated_errors(f"take the object {key}"):
            unfinished, descriptor = self._create_temporary(key)
            try:
                try:
                    yield descriptor
                    if self._sync:
                        os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                self._rename_into_place(unfinished, target)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(unfinished)
                raise

    def put(self, key: str, body: bytes | memoryview) -> None:
        """As Stager.put."""
        with self.open_for_writing(key) as descriptor:
            write_all(descriptor, memoryview(body).cast("B"))

    @contextmanager
    def open_for_reading(self, key: str) -> Iterator[tuple[int, int]]:
        """A descriptor of an object's content and its size in bytes. Raises NoSuchObject."""
        path = self._path(key)
        with self._translated_errors(f"give the object {key}"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):
                self._ensure_root()
                raise NoSuchObject(f"{self._root} has no object {key}") from None
            try:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode):
                    raise NoSuchObject(f"{self._root} has no object {key}")
                yield descriptor, about.st_size
            finally:
                os.close(descriptor)

    def get(self, key: str) -> bytes:
        """As Stager.get."""
        with (
            self.open_for_reading(key) as (descriptor, size),
            open(descriptor, "rb", buffering=0, closefd=False) as file,
        ):
            if size > OBJECT_BYTES:
                raise object_too_large(key)
            body = file.read(size + 1)
        if len(body) != size:
            raise StoreBusy(f"the object {key} in {self._root} changed its size while it was read; ask again")
        return body

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """As Stager.present."""
        paths = [(key, self._path(key)) for key in keys]
        found = {}
        with self._translated_errors("be looked into"):
            self._ensure_root()
            for key, path in paths:
                with suppress(FileNotFoundError, NotADirectoryError):
                    about = os.lstat(path)
                    if stat.S_ISREG(about.st_mode):
                        found[key] = about.st_size
        return found

    def copy(self, source: str, target: str) -> None:
        """As Stager.copy; a hard link where the file system has them, so that it takes no space."""
        origin, end = self._path(source), self._path(target)
        with self._translated_errors(f"copy the object {source}"):
            self._ensure_root()
            link = self._temporary_path(target)
            try:
                try:
                    os.link(origin, link, follow_symlinks=False)
                    os.utime(link)
                except OSError as error:
                    if error.errno not in _NO_LINK:
                        raise
                    shutil.copyfile(origin, link, follow_symlinks=False)
                self._rename_into_place(link, end)
            except (FileNotFoundError, NotADirectoryError):
                raise NoSuchObject(f"{self._root} has no object {source}") from None
            finally:
                # Renaming one link onto another of the same file leaves both.
                with suppress(FileNotFoundError):
                    os.unlink(link)

    def delete(self, keys: Sequence[str]) -> None:
        """As Stager.delete; folders that are empty then go too."""
        paths = [self._path(key) for key in keys]
        with self._translated_errors("remove objects"):
            self._ensure_root()
            for path in paths:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)
                folder = os.path.dirname(path)
                while folder != self._root and _try_rmdir(folder):
                    folder = os.path.dirname(folder)

    def objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        """Those whose key begins so and comes after ``after``, in order of their keys' parts between slashes."""
        with self._translated_errors("be listed"):
            self._ensure_root()
            yield from self._walk("", prefix, after.split("/") if after else [])

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """As Stager.unfinished: temporary files, whose names say when they were begun and for which key."""
        with self._translated_errors("be listed"):
            self._ensure_root()
            with os.scandir(self._temporary) as found:
                names = sorted(entry.name for entry in found)
        for name in names:
            begun, _, rest = name.partition(".")
            yield UnfinishedUpload(
                name,
                rest.partition(".")[2].replace("~", "/"),
                int(begun) / 1000 if _MILLISECONDS.fullmatch(begun) else 0,
            )

    def abort(self, ids: Sequence[str]) -> None:
        """Removes unfinished ones by their id."""
        with self._translated_errors("remove what is unfinished"):
            for name in ids:
                if name != os.path.basename(name) or name in {"", ".", ".."}:
                    raise StoreRefused(f"{name!r} is nothing unfinished")
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._temporary, name))

    def free_bytes(self) -> int:
        """Bytes free on the file system, for burstd's user."""
        with self._translated_errors("be looked into"):
            self._ensure_root()
            about = os.statvfs(self._root)
        return about.f_bavail * about.f_frsize

    def _path(self, key: str) -> str:
        return os.path.join(self._root, valid_key(key))

    def _ensure_root(self) -> None:
        if self._must_exist:
            try:
                os.stat(self._marker)
            except (FileNotFoundError, NotADirectoryError):
                raise StoreRefused(
                    f"the folder {self._root} is not the store's here: see that what the store's settings name (file "
                    "system, claim, sub_path) is mounted there"
                ) from None
            return
        if os.path.isdir(self._marker):
            return
        for folder in (self._root, self._temporary, self._marker):
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)

    def _temporary_path(self, key: str) -> str:
        name = f"{time.time_ns() // 1_000_000}.{os.urandom(6).hex()}.{key.replace('/', '~')}"
        return os.path.join(self._temporary, name)

    def _create_temporary(self, key: str) -> tuple[str, int]:
        self._ensure_root()
        name = self._temporary_path(key)
        return name, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def _rename_into_place(self, unfinished: str, target: str) -> None:
        """Gives it its final name. Another process may remove the folder, empty so far, between making and use."""
        for turn in range(_TRIES):
            try:
                os.rename(unfinished, target)
            except FileNotFoundError:
                if turn == _TRIES - 1 or not os.path.lexists(unfinished):
                    raise
                with suppress(FileNotFoundError):
                    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            else:
                break
        if self._sync:
            folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _walk(self, above: str, prefix: str, after: Sequence[str]) -> Iterator[StoredObject]:
        """``after``: parts below this folder up to which all is listed."""
        try:
            with os.scandir(os.path.join(self._root, above)) as found:
                entries = sorted((e for e in found if not e.name.startswith(".")), key=lambda e: e.name)
        except FileNotFoundError:
            if not above:
                raise
            return  # emptied and removed while we walked
        for entry in entries:
            if after and entry.name < after[0]:
                continue
            on_the_way = bool(after) and entry.name == after[0]
            key = above + entry.name
            if entry.is_dir(follow_symlinks=False):
                folder_prefix = key + "/"
                if folder_prefix.startswith(prefix) or prefix.startswith(folder_prefix):
                    yield from self._walk(folder_prefix, prefix, after[1:] if on_the_way else ())
            elif key.startswith(prefix) and not on_the_way and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    yield StoredObject(key, about.st_size, about.st_mtime)

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        """What the file system says, in the kinds of StagerError."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in _FULL:
                raise StoreSpaceGone(f"the folder {self._root} cannot {what}: {reason}") from None
            if error.errno == errno.ENOENT and not os.path.isdir(os.path.dirname(self._root)):
                raise StoreRefused(
                    f"the folder {os.path.dirname(self._root)} is not there: make it, or mount its file system"
                ) from None
            if error.errno in _FORBIDDEN:
                raise StoreRefused(f"the folder {self._root} cannot {what}: {reason}") from None
            raise StoreBusy(f"the folder {self._root} cannot {what} now: {reason}") from None


def write_all(descriptor: int, body: memoryview) -> None:
    """Writes all of it, where one write takes only a part."""
    while body:
        body = body[os.write(descriptor, body) :]


def _try_rmdir(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError:
        return False  # not empty, or removed by somebody else
    return True
