"""What a tree needs, some thousand entries at a time: each object is asked for once in a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from burstd.transfer.agent.user_process import STOPPED, AgentFault, Line, Message, Slots
from burstd.transfer.content_store.manifest import Entry

_KEYS_AT_ONCE = 1000


class Unfinished:
    """A file of several objects, or with holes: how many of its objects are still to come."""

    __slots__ = ("entry", "left")

    def __init__(self, entry: Entry, left: int) -> None:
        self.entry = entry
        self.left = left


Target = tuple[Unfinished | None, Entry, int, int, int]
"""The file if it has more to come, its entry, offset in the file, offset in the object, length."""


class Window:
    """Some thousand entries of which each object is needed once, in whatever order they name it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.targets: dict[str, list[Target]] = {}
        self.hard: list[Entry] = []


class Objects:
    """What a tree is filled from: objects in slots, which the other half fetches, verifies and hands over."""

    def __init__(self, line: Line, slots: Slots, journal: Iterable[bytes]) -> None:
        self._line = line
        self._slots = slots
        self._early: list[Message] = []
        self._applied: dict[int, set[str]] = {}
        for row in journal:
            number, _, key = row.decode().strip().partition(" ")
            if len(key) == 64:
                self._applied.setdefault(int(number), set()).add(key)

    def applied(self, number: int) -> set[str]:
        """Those of a window that an earlier try has written already."""
        return self._applied.pop(number, set())

    def ask(self, window: Window, keys: list[str]) -> None:
        """Says what a window will need."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self._line.send({"need": keys[start : start + _KEYS_AT_ONCE], "window": window.number})

    def give(self, window: Window, keys: list[str], write: Callable[[str, memoryview], int]) -> None:
        """Has each object written as it comes, in whatever order."""
        left = len(keys)
        waiting, self._early = self._early, []
        while left:
            message = waiting.pop() if waiting else self._line.receive()[0]
            if "stop" in message:
                raise AgentFault(STOPPED, "stopped")
            if message["window"] != window.number:
                self._early.append(message)
                continue
            slot = message["slot"]
            size = write(message["have"], self._slots.view(slot, message["length"]))
            self._line.send({"free": slot, "key": message["have"], "window": window.number, "bytes": size})
            left -= 1
