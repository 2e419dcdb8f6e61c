"""Host keys of machines that the site's own ssh knows: files as of sshd(8), section SSH_KNOWN_HOSTS FILE FORMAT."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import paramiko


def read_host_keys(file: Path, names: Iterable[str], port: int) -> frozenset[str]:
    """The keys (``ssh-ed25519 AAAA...``) of a host under any of its names; empty: none, or the file cannot be read."""
    known = paramiko.HostKeys()
    try:
        known.load(str(file))
    except OSError:
        return frozenset()
    wanted = [name if port == 22 else f"[{name}]:{port}" for name in names if name]
    return frozenset(
        f"{kind} {key.get_base64()}" for name in wanted for kind, key in (known.lookup(name) or {}).items()
    )
