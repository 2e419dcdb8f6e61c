"""How an agent gets and puts objects: a folder that the node sees, URLs, or a storage node by ssh."""

# ruff: noqa: PTH102, PTH116

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from burstd.data.folder import ObjectFolder, write_all
from burstd.model.stager import StoreBusy, StoreRefused, too_large

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Puts a question to whoever runs the agent, and returns the answer."""


class Transport(Protocol):
    """A store as the agent sees it. For several threads at once; raises StagerError kinds (NoSuchObject among them)."""

    def expect(self, keys: Iterable[str]) -> None:
        """Says which keys will be got next, so that what is needed for that is asked for in one go."""
        ...

    def fetch(self, key: str, room: memoryview) -> int:
        """An object's content into ``room``; returns its length. Raises StoreRefused where it is larger."""
        ...

    def get(self, key: str) -> bytes:
        """An object's content."""
        ...

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        ...

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Those that are there, with their sizes in bytes."""
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...


def open_reach(reach: Mapping[str, Any], ask: Ask) -> Transport:
    """The transport of ``{"kind": "dir" | "http" | "ssh", "facts": {...}}`` (burstd.model.stager.Reach)."""
    kind, facts = reach["kind"], reach.get("facts", {})
    if kind == "dir":
        return FolderTransport(facts["path"], facts.get("mark", ""))
    if kind == "http":
        from burstd.data.by_http import HttpTransport  # noqa: PLC0415 - slow to import, seldom needed

        return HttpTransport(ask)
    if kind == "ssh":
        from burstd.data.by_ssh import SshTransport  # noqa: PLC0415 - see above

        return SshTransport(facts)
    raise StoreRefused(f"the node's agent knows no way {kind!r} to a store: burstd and its stager differ in version")


class FolderTransport:
    """Objects in a folder. What root writes there is its owner's, who may be burstd's user on the head.

    ``mark``: what it must bear (ObjectFolder); empty: it is made where it is missing.
    """

    def __init__(self, path: str, mark: str = "") -> None:
        self._path = path
        self._folder = ObjectFolder(path, mark=mark, found=bool(mark))

    def expect(self, keys: Iterable[str]) -> None:
        """Nothing to prepare."""

    def fetch(self, key: str, room: memoryview) -> int:
        """See Transport."""
        with self._folder.reading(key) as (descriptor, size):
            if size > len(room):
                raise too_large(key)
            got = 0
            while got < size:
                count = os.preadv(descriptor, [room[got:size]], got)
                if not count:
                    break
                got += count
        if got != size:
            raise StoreBusy(f"the object {key} in {self._path} changed its size while it was read; ask again")
        return got

    def get(self, key: str) -> bytes:
        """See Transport."""
        return self._folder.get(key)

    def put(self, key: str, body: bytes | memoryview) -> None:
        """See Transport."""
        self._folder.check()
        owner = os.stat(self._path)
        if os.geteuid() != 0 or owner.st_uid == 0:
            self._folder.put(key, body)
            return
        above = self._path
        for part in key.split("/")[:-1]:
            above = f"{above}/{part}"
            try:
                os.mkdir(above, 0o700)
                os.chown(above, owner.st_uid, owner.st_gid, follow_symlinks=False)
            except FileExistsError:
                continue
        with self._folder.writing(key) as descriptor:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
            write_all(descriptor, memoryview(body).cast("B"))

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """See Transport."""
        return self._folder.present(keys)

    def close(self) -> None:
        """Nothing is held."""
