"""Small files together in one object."""

from __future__ import annotations

import threading

from burstd.domain.plugins.stager import OBJECT_BYTES

MAX_PACKED_FILE_BYTES = 1 << 20
"""Files up to this size are packed."""
MAX_PACK_CONTENTS = 16_384
"""In one pack at most, so that what is remembered of a pack is bounded for files of a few bytes too."""


class Pack:
    """An object that is being filled, then put. ``contents``: SHA-256 of each content -> (offset, length)."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.contents: dict[bytes, tuple[int, int]] = {}
        self.key = ""
        """Of the object, when it is in the store."""
        self.error: BaseException | None = None
        self.finished = threading.Event()
        """It is in the store, or ``error`` says why not."""

    def has_room(self, length: int) -> bool:
        """Whether so many bytes more fit."""
        return self.size + length <= OBJECT_BYTES and len(self.contents) < MAX_PACK_CONTENTS

    def add(self, content: bytes, data: bytes) -> None:
        """Adds a content."""
        self.contents[content] = (self.size, len(data))
        self.parts.append(data)
        self.size += len(data)

    def take_body(self) -> bytes:
        """All of it; the parts are let go."""
        whole = b"".join(self.parts)
        self.parts.clear()
        return whole

    def finish(self, key: str, error: BaseException | None = None) -> None:
        """It is put, or will never be."""
        self.key = key
        self.error = error
        self.parts.clear()
        self.finished.set()
