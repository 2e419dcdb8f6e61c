"""Which host keys a machine may show, and where that is remembered for the life of its claim."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path

_BEGIN = "-----BEGIN SSH HOST KEY KEYS-----"
_END = "-----END SSH HOST KEY KEYS-----"
# A serial console puts its own words before a line, and carriage returns after it. Names and keys have a limit, so
# that a log of nothing but their beginnings is read in one pass.
_KEY = re.compile(r"\b((?:ssh|ecdsa|sk)-[a-z0-9@.-]{1,64}) (AAAA[0-9A-Za-z+/]{1,4096}={0,2})(?![0-9A-Za-z+/=])")
_CONSOLE_CHARACTERS = 1 << 20
"""Characters of a console that are looked at, its last; clouds keep 64 KiB, or a few thousand lines."""
_MAX_KEYS = 16
"""Keys of a host: it has one of each type."""
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


class HostKeyPolicy(StrEnum):
    """How a machine's host key is learned."""

    CONSOLE = "console"
    """From the console log, through the cloud's API: nobody on the network can lie about it."""
    FIRST_USE = "first_use"
    """Whatever it shows first; the same for the rest of the claim's life."""


@dataclass(frozen=True, slots=True)
class HostKeys:
    """Public keys (``ssh-ed25519 AAAA...``, no comment) of which a machine must show one; none: any will do.

    ``trust`` says where they come from. ``HostKeys(Trust.CONSOLE)`` with no keys accepts nothing.
    """

    trust: HostKeyPolicy
    keys: frozenset[str] = field(default_factory=frozenset)

    def accepts_key(self, key: str) -> bool:
        """Whether a machine that shows this key is the one we mean."""
        return key in self.keys or (not self.keys and self.trust is HostKeyPolicy.FIRST_USE)


def parse_console_host_keys(console: str) -> frozenset[str]:
    """The host keys that cloud-init printed at the latest boot, empty where it has not so far.

    Keys that other output on the console broke are left out.
    """
    _, begin, rest = console[-_CONSOLE_CHARACTERS:].rpartition(_BEGIN)
    block, end, _ = rest.partition(_END)
    if not begin or not end:
        return frozenset()
    whole = (f"{found[1]} {found[2]}" for found in _KEY.finditer(block) if _is_complete_key(found[1], found[2]))
    return frozenset(islice(whole, _MAX_KEYS))


def _is_complete_key(kind: str, blob: str) -> bool:
    """Whether the fields inside a key fill it to its end, and the first is its type (RFC 4253, section 6.6)."""
    try:
        raw = base64.b64decode(blob, validate=True)
    except binascii.Error:
        return False
    fields, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
        if len(raw) < end:
            return False
        fields.append(raw[at + 4 : end])
        at = end
    return len(fields) > 1 and fields[0] == kind.encode()


class HostKeyFiles:
    """Host keys by claim, a file each: a daemon that is started again expects the same machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load_keys(self, claim_id: str) -> HostKeys | None:
        """What is known of a claim's machine, None when nothing is."""
        try:
            trust, *keys = self._file(claim_id).read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return None
        return HostKeys(HostKeyPolicy(trust), frozenset(keys))

    def save_keys(self, claim_id: str, known: HostKeys) -> None:
        """Remembers; the file is whole or not there at all, whenever we are killed."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._file(claim_id)
        unfinished = self._directory / f".{file.name}.{os.getpid()}"
        unfinished.write_text("\n".join([known.trust, *sorted(known.keys), ""]), encoding="ascii")
        unfinished.rename(file)

    def retain_only(self, claim_ids: Collection[str]) -> None:
        """Forgets all but these claims."""
        if not self._directory.is_dir():
            return
        writing = f".{os.getpid()}"
        for file in self._directory.iterdir():
            # Another thread may be writing one this moment; what a process that is gone left unfinished goes.
            unfinished = file.name.startswith(".") and file.name.endswith(writing)
            if file.name not in claim_ids and not unfinished:
                file.unlink(missing_ok=True)

    def _file(self, claim_id: str) -> Path:
        if not _NAME.match(claim_id):
            raise ValueError(f"{claim_id!r} is no claim id")
        return self._directory / claim_id
