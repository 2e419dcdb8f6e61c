"""What a job has changed in its copy of the working directory, with the rights that this process has."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from burstd.transfer.agent.user_process import JsonObject
from burstd.transfer.content_store.manifest import ManifestEntry, decode_manifest
from burstd.transfer.trees.ignore import IgnoreRules
from burstd.transfer.trees.walk import Walk, WalkItem, WalkRow

_CHUNK = 1 << 20


def changed_rows(workdir: JsonObject, manifest: int) -> Iterator[WalkItem]:
    """The rows of a walk that tell what is new or changed, and the directories on the way to it.

    ``workdir``: ``path``, ``ignore`` (rows of IgnoreRules), ``always`` (paths in it that are never ignored) and
    ``filled_ns``, when it was as ``manifest`` says, by its file system's clock.
    """
    before = {entry.path: entry for entry in decode_manifest(read_chunks(manifest))}
    rules = IgnoreRules(workdir["ignore"], workdir["always"])
    directories: list[WalkRow] = []
    """Those on the way to where the walk is that are not told of."""
    for row, descriptor in Walk(workdir["path"], rules, hard_links=False):
        kind, path = str(row[0]), str(row[1])
        while directories and not path.startswith(f"{directories[-1][1]}/"):
            directories.pop()
        if kind == "d" and path and os.fsencode(path) in before:
            directories.append(row)
        elif _is_changed(row, descriptor, before, workdir["filled_ns"]):
            yield from ((above, -1) for above in directories)
            directories.clear()
            yield row, descriptor
        elif descriptor >= 0:
            os.close(descriptor)


def _is_changed(row: WalkRow, descriptor: int, before: Mapping[bytes, ManifestEntry], filled_ns: int) -> bool:
    entry = before.get(os.fsencode(str(row[1])))
    if entry is None or entry.kind != row[0] or not row[1]:
        return True
    if entry.kind == "l":
        return entry.link_target != os.fsencode(str(row[2]))
    facts = os.fstat(descriptor)
    # Programs can set the time of a file back, but not when it was changed.
    if facts.st_ctime_ns > filled_ns:
        return True
    attributes = (facts.st_size, facts.st_mtime_ns, stat.S_IMODE(facts.st_mode))
    return attributes != (entry.size, entry.mtime_ns, entry.mode)


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """A file from its beginning, without moving its position, which is shared with the other half."""
    at = 0
    while data := os.pread(descriptor, _CHUNK, at):
        yield data
        at += len(data)
