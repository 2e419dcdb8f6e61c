"""Admission: what of a tree that a node collected may be written at home.

The rule. A node may write what a line of its job names, and nothing else:

- files, directories and symbolic links in the line's destination, in the order of a walk: each once, in a directory
  of the same tree. Where the line names one file, that file under the line's name for it; standard output and error are
  such files. Whatever name the node gives to it counts for nothing.
- a hard link is one more name of a file of the same tree.
- a symbolic link leads to a path in the same destination: whatever is written through it later, by another line,
  another job or the user, stays where this line lets the node write. Others are left out and reported.
- permission bits, and not setuid, setgid or sticky.
- as many entries and bytes as were said when the tree was collected; every number in its range (manifest.decode).

Owner and group are those of the process that writes. The node's word is taken for nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from burstd.domain.staging import Tree
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry


def admitted_entries(
    entries: Iterable[ManifestEntry],
    tree: Tree,
    *,
    single_file_name: bool,
    left_out: Callable[[str], None] = lambda _sentence: None,
) -> Iterator[ManifestEntry]:
    """The entries that may be written.

    ``single_file_name``: the line names the file itself, and no directory that it goes into.

    ``left_out`` hears of symbolic links that lead elsewhere. Raises ManifestDamaged: the node lied.
    """
    size = 0
    position = _TreePosition()
    for count, entry in enumerate(entries, 1):
        size += 0 if entry.hardlink_to else entry.size
        if count > tree.entries or size > tree.size:
            raise ManifestDamaged(f"a node sends more than the {tree.entries} entries and {tree.size} bytes it told of")
        if tree.single and (count > 1 or entry.kind == "d" or entry.hardlink_to or b"/" in entry.path):
            raise ManifestDamaged(f"a node sends {entry.path[:200]!r} in place of one file")
        depth = position.enter(entry, single=tree.single)
        if entry.kind == "l" and (single_file_name or not _inside(entry.link_target, depth)):
            left_out(
                f"{os.fsdecode(entry.path)} was left out: it is a link that leads to {os.fsdecode(entry.link_target)}"
            )
            continue
        yield entry


def input_entries(entries: Iterable[ManifestEntry], *, single: bool) -> Iterator[ManifestEntry]:
    """The entries of an input, which may be written on a node: burstd made the list. Raises ManifestDamaged."""
    count = 0
    for entry in entries:
        count += 1
        for path in (entry.path, entry.hardlink_to):
            if path and not {b"", b".", b".."}.isdisjoint(path.split(b"/")):
                raise ManifestDamaged(f"a manifest has an entry that leads out of its tree: {path!r}")
        if not entry.path and (entry.kind != "d" or single):
            raise ManifestDamaged("a manifest has an entry without a name")
        if single and entry.kind == "d":
            raise ManifestDamaged("the tree of a single file has a directory")
        yield entry
    if single and count != 1:
        raise ManifestDamaged(f"the tree of a single file has {count} entries")


class _TreePosition:
    """Where in the tree a walk is. Names come in order, so that none comes twice."""

    def __init__(self) -> None:
        self._open_directories: list[str] = []
        """The directories that are open, the outermost first."""
        self._last_names: list[str] = []
        """The last name in the root and in each of those."""
        self._files: set[int] = set()
        """Files that a hard link may name, as hashes of their paths that nobody outside this process can foretell."""

    def enter(self, entry: ManifestEntry, *, single: bool) -> int:
        """How many directories are between the root and the entry. Raises ManifestDamaged."""
        path = os.fsdecode(entry.path)
        if not self._last_names:
            self._last_names.append("")
            if not single:
                if entry.kind != "d" or path:
                    raise ManifestDamaged("a tree of a node does not begin with its root")
                return 0
        parts = path.split("/")
        depth, name = len(parts) - 1, parts[-1]
        if name in ("", ".", "..") or parts[:-1] != self._open_directories[:depth]:
            raise ManifestDamaged(f"a node sends {entry.path[:200]!r}, which lies in no directory of its tree")
        del self._open_directories[depth:], self._last_names[depth + 1 :]
        if name <= self._last_names[depth]:
            raise ManifestDamaged(f"a node sends {entry.path[:200]!r} twice, or not in the order of a walk")
        self._last_names[depth] = name
        if entry.kind == "d":
            self._open_directories.append(name)
            self._last_names.append("")
        elif entry.hardlink_to and hash(entry.hardlink_to) not in self._files:
            raise ManifestDamaged(f"a node sends {entry.path[:200]!r} as a name of what is no file of its tree")
        elif entry.kind == "f":
            self._files.add(hash(entry.path))
        return depth


def _inside(target: bytes, depth: int) -> bool:
    """Whether a link so deep in a destination leads to a path in it.

    Only at its beginning, where directories lie above it that are no links, may ``..`` stand.
    """
    parts = target.split(b"/")
    ups = next((n for n, part in enumerate(parts) if part != b".."), len(parts))
    return not target.startswith(b"/") and b".." not in parts[ups:] and ups <= depth
