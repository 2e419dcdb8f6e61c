"""Ground for tests with users' files: folders that a user of any number can reach, and trees read back."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.manifest import ManifestEntry, decode_manifest, object_key
from tests.transfer.memory import MemoryStager

USER = 61001
OTHER = 61002
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
DiskEntry = tuple[str, int, int, object]
"""Kind, mode, time, and content or target."""


@contextmanager
def user_folder(uid: int = USER, where: str | None = None) -> Iterator[Path]:
    """A folder of a user's own."""
    folder = Path(tempfile.mkdtemp(prefix="burst-test-", dir=where))
    os.chown(folder, uid, uid)
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def give_to_user(folder: Path, uid: int = USER) -> None:
    """Gives all below a folder to a user."""
    os.lchown(folder, uid, uid)
    for path in paths_below(folder):
        os.lchown(path, uid, uid)


def paths_below(folder: Path) -> Iterator[Path]:
    """All that is in a folder; links are not followed."""
    for path in folder.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from paths_below(path)


def on_disk(folder: Path) -> dict[bytes, DiskEntry]:
    """What is in a folder, itself included as an empty path."""
    found: dict[bytes, DiskEntry] = {}
    for path in (folder, *paths_below(folder)):
        facts = path.lstat()
        kind, what = "d", b""
        if stat.S_ISLNK(facts.st_mode):
            kind, what = "l", os.fsencode(path.readlink())
        elif stat.S_ISREG(facts.st_mode):
            kind, what = "f", path.read_bytes()
        name = b"" if path == folder else os.fsencode(path.relative_to(folder))
        found[name] = (kind, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns, what)
    return found


def content(stager: MemoryStager, prefix: str, pieces: tuple[ObjectRange, ...]) -> bytes:
    """The bytes that pieces name; each object is what its name says."""
    parts = []
    for piece in pieces:
        if not piece.key:
            parts.append(bytes(piece.length))
            continue
        body = stager.get(object_key(prefix, piece.key))
        assert hashlib.sha256(body).hexdigest() == piece.key
        parts.append(body[piece.offset : piece.offset + piece.length])
        assert len(parts[-1]) == piece.length
    return b"".join(parts)


def entries(stager: MemoryStager, tree: Tree) -> list[ManifestEntry]:
    """The entries of a tree, from the store."""
    bodies = [content(stager, tree.prefix, (piece,)) for piece in tree.manifest]
    assert hashlib.sha256(b"".join(bodies)).hexdigest() == tree.digest
    return list(decode_manifest(bodies))


def in_store(stager: MemoryStager, tree: Tree) -> dict[bytes, DiskEntry]:
    """What a tree holds, from the store."""
    found: dict[bytes, DiskEntry] = {}
    for e in entries(stager, tree):
        what: object = e.link_target
        if e.kind == "f":
            what = found[e.hardlink_to][3] if e.hardlink_to else content(stager, tree.prefix, e.pieces)
            assert isinstance(what, bytes)
            assert len(what) == e.size
            assert e.digest in ("", hashlib.sha256(what).hexdigest())
        found[e.path] = (e.kind, e.mode, e.mtime_ns, what)
    return found
