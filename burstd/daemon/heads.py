"""What the heads of one cluster must have in common, and the thread by which a leader sees its standby."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from burstd.api.answers.text import abbreviated_list, duration_text
from burstd.db import StoreError
from burstd.db.leadership import HeadRow, Leadership
from burstd.node.ssh.key_pair import KeyUnusable, read_public_key
from burstd.settings import Settings

log = structlog.get_logger(__name__)

SEEN_EVERY_S = 10.0
MISSED_AFTER_S = 60.0
"""A head that has said nothing for so long is missed."""
FORGOTTEN_AFTER_S = 7 * 86400.0
"""And after so long it is no head of this cluster any more."""
_DIGITS = 16


def describe_head(host: str, version: str, settings: Settings, alarms: Sequence[str] = ()) -> HeadRow:
    """What this head says of itself. Raises KeyUnusable, OSError."""
    digests = {f"[{name}]": _digest(json.dumps(of).encode()) for name, of in settings.model_dump(mode="json").items()}
    digests["the policies' files"] = _digest_of_files(settings.policies.folder)
    key = key_digest(settings.ssh_key)
    if key:
        # One file for both heads, not a copy for each.
        digests["shared_dir"] = str(settings.ssh_key.stat().st_ino)
    return HeadRow(host, 0.0, json.dumps(digests), key, version, tuple(alarms))


def key_digest(private: Path) -> str:
    """Of the public half of burstd's ssh key; empty: there is none. Raises KeyUnusable, OSError."""
    try:
        return _digest(read_public_key(private).encode())
    except FileNotFoundError:
        return ""


def _digest_of_files(folder: Path) -> str:
    files = sorted(folder.glob("*.py"))
    return _digest(b"".join(os.fsencode(file.name) + b":" + _digest(file.read_bytes()).encode() for file in files))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def head_with_another_key(own_key: str, heads: Sequence[HeadRow]) -> str:
    """The first head with another ssh key than this digest's; empty: none. With another key no machine is entered."""
    keys = {head.host: head.key_digest for head in heads if head.key_digest and head.age_s < FORGOTTEN_AFTER_S}
    return next((host for host, key in keys.items() if key != own_key), "")


def differences(own: HeadRow, other: HeadRow) -> list[str]:
    """What two heads do not have in common, in sentences."""
    found: list[str] = []
    if other.key_digest != own.key_digest:
        found.append(f"burstd's ssh key on {own.host} is not that of {other.host}: shared_dir must be the same folder")
    here, there = json.loads(own.settings_digest), json.loads(other.settings_digest)
    if unlike := [name for name in {**here, **there} if here.get(name) != there.get(name)]:
        found.append(f"{own.host} and {other.host} differ in {abbreviated_list(unlike)}: make them alike")
    if other.version != own.version:
        found.append(f"{own.host} has burstd {own.version}, and {other.host} has {other.version}")
    return found


def leader_alarms(own: HeadRow, heads: Sequence[HeadRow], watched_s: float) -> list[str]:
    """What a leader says of its standby. ``watched_s``: for so long it has looked for one."""
    others = [head for head in heads if head.host != own.host]
    # What the head that led before has said of itself is not of a standby.
    waiting = [head for head in others if head.age_s < min(MISSED_AFTER_S, watched_s)]
    if waiting:
        faults = [f"{head.host} could not take over: {alarm}" for head in waiting for alarm in head.alarms]
        return [*(text for head in waiting for text in differences(own, head)), *faults]
    if watched_s < MISSED_AFTER_S:
        return []
    last = min(others, key=lambda head: head.age_s, default=None)
    since = f"{last.host} was last seen {duration_text(last.age_s)} ago" if last else "none has been seen"
    return [f"no standby waits to take over: {since}; see 'systemctl status burstd' there"]


class HeadWatch:
    """Says every SEEN_EVERY_S that the leader is there, and looks for its standby. From any thread."""

    def __init__(self, leadership: Leadership, own: Callable[[], HeadRow]) -> None:
        """``own``: what this head is now; raises KeyUnusable, OSError."""
        self._leadership = leadership
        self._own = own
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heads", daemon=True)
        self._begun = self._looked = time.monotonic()
        self._heads: tuple[HeadRow, ...] = ()
        self.alarms: tuple[str, ...] = ()

    def start(self) -> None:
        """Starts its thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends its thread."""
        self._ending.set()

    def standbys(self) -> str:
        """Those that wait, each with how long ago it was seen; empty: none."""
        since, led_s = time.monotonic() - self._looked, self._looked - self._begun
        ages = {h.host: h.age_s + since for h in self._heads if h.host != self._leadership.host and h.age_s < led_s}
        return ", ".join(f"{host}, seen {duration_text(age)} ago" for host, age in ages.items() if age < MISSED_AFTER_S)

    def _watch(self) -> None:
        while True:
            try:
                own = self._own()
                self._leadership.write_head(own.settings_digest, own.key_digest, own.version, own.alarms)
                self._heads, self._looked = self._leadership.heads(), time.monotonic()
                self.alarms = tuple(leader_alarms(own, self._heads, self._looked - self._begun))
            except (StoreError, KeyUnusable, OSError) as error:
                log.warning("this head cannot say that it leads, or see its standby", error=str(error))
            if self._ending.wait(SEEN_EVERY_S):
                return
