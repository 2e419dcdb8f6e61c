"""A mark beside the record that tells a record which was lost, emptied or put back from one that is the latest."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import structlog

from burstd.db import RESTORED_KEY, Store

log = structlog.get_logger(__name__)

RECORD_ID_KEY = "record"
"""Key under which the store keeps the record's id."""
DOUBT_KEY = "doubt"
"""Key under which the store keeps why the record may be older than the world; empty: it is not."""
_WHAT_NOW = (
    "burstd adopts the machines that it does not know, and launches, closes and ends nothing until every cloud has"
    " been listed ('burstctl confirm record' ends the wait); pins, holds and jobs' data that were set since are lost"
)


class RecordMark:
    """``state_dir/record.mark``: the record's id, and the number of its last event."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._last = -1
        self._last_event_at_start = store.last_event_seq()

    def doubt_record(self) -> str:
        """Compares the record with the mark, and keeps in the record why it is in doubt.

        Returns that; empty: it is not. To be called once, at the start; compared is what was there when this was made.
        """
        here, last = self._store.metadata(RECORD_ID_KEY), self._last_event_at_start
        marked, seen = self._read()
        why = ""
        if marked and here != marked:
            why = (
                f"the record {self._store.location} is not the one that was used before: it was lost, emptied or moved"
            )
        elif marked and last < seen:
            why = f"the record {self._store.location} is an older copy: it ends at event {last}, and had come to {seen}"
        elif source := self._store.metadata(RESTORED_KEY):
            # Without a mark, on another head, nothing else tells.
            why = f"the record {self._store.location} was put back from {source}"
        with self._store.batch():
            self._store.set_metadata(RESTORED_KEY, "")
            if not here:
                self._store.set_metadata(RECORD_ID_KEY, uuid.uuid4().hex, logged=False)
            if why:
                self._store.set_metadata(DOUBT_KEY, f"{why}. Now {_WHAT_NOW}")
        self.update_mark()
        return self._store.metadata(DOUBT_KEY)

    def update_mark(self) -> None:
        """Brings the mark up to date. That it cannot be written is logged, and harms nothing but the comparison."""
        last = self._store.last_event_seq()
        if last == self._last:
            return
        unfinished = self._path.with_name(f"{self._path.name}.new")
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"record": self._store.metadata(RECORD_ID_KEY), "event": last}, file)
            unfinished.replace(self._path)
        except OSError as error:
            log.warning("the mark beside the record cannot be written", path=str(self._path), error=error.strerror)
            return
        self._last = last

    def _read(self) -> tuple[str, int]:
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            return str(said["record"]), int(said["event"])
        except FileNotFoundError:
            return "", 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            # Cut short by a power cut: what it said is not known.
            log.warning("the mark beside the record cannot be read", path=str(self._path), error=str(error))
            return "", 0
