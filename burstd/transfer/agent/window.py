"""What a tree needs, some thousand entries at a time: each object is asked for once in a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from burstd.transfer.agent.user_process import FAULT_STOPPED, AgentFault, JsonObject, PacketChannel, SharedBuffers
from burstd.transfer.content_store.manifest import ManifestEntry

_KEYS_AT_ONCE = 1000


class PartialFile:
    """A file of several objects, or with holes: how many of its objects are still to come."""

    __slots__ = ("entry", "remaining")

    def __init__(self, entry: ManifestEntry, left: int) -> None:
        self.entry = entry
        self.remaining = left


WriteTarget = tuple[PartialFile | None, ManifestEntry, int, int, int]
"""The file if it has more to come, its entry, offset in the file, offset in the object, length."""


class EntryWindow:
    """Some thousand entries of which each object is needed once, in whatever order they name it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.targets: dict[str, list[WriteTarget]] = {}
        self.hardlinks: list[ManifestEntry] = []


class WindowObjects:
    """What a tree is filled from: objects in slots, which the other half fetches, verifies and passes on."""

    def __init__(self, channel: PacketChannel, buffers: SharedBuffers, journal: Iterable[bytes]) -> None:
        self._channel = channel
        self._buffers = buffers
        self._early: list[JsonObject] = []
        self._written: dict[int, set[str]] = {}
        for row in journal:
            number, _, key = row.decode().strip().partition(" ")
            if len(key) == 64:
                self._written.setdefault(int(number), set()).add(key)

    def written_keys(self, number: int) -> set[str]:
        """Those of a window that an earlier try has written already."""
        return self._written.pop(number, set())

    def request_objects(self, window: EntryWindow, keys: list[str]) -> None:
        """Says what a window will need."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self._channel.send({"need": keys[start : start + _KEYS_AT_ONCE], "window": window.number})

    def write_arriving(self, window: EntryWindow, keys: list[str], write: Callable[[str, memoryview], int]) -> None:
        """Has each object written as it comes, in whatever order."""
        left = len(keys)
        waiting, self._early = self._early, []
        while left:
            message = waiting.pop() if waiting else self._channel.receive()[0]
            if "stop" in message:
                raise AgentFault(FAULT_STOPPED, "stopped")
            if message["window"] != window.number:
                self._early.append(message)
                continue
            buffer = message["slot"]
            size = write(message["have"], self._buffers.view(buffer, message["length"]))
            self._channel.send({"free": buffer, "key": message["have"], "window": window.number, "bytes": size})
            left -= 1
