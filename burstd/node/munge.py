"""The head's munged: credentials of it, and whether a key is the one that it works with."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess

from burstd.node.errors import HeadNotReady

ENCODE = ("munge", "--no-input", "--cipher=none", "--mac=sha256", "--zip=none")
"""Makes a credential without a payload, which has nothing to hide; who has the key can tell whether it made it."""
_MAC_BYTES = 32


def head_credential(uid: int, socket: str = "") -> str:
    """Good for a minute, and for this user only. ``socket``: empty: munge's own default. Raises HeadNotReady."""
    argv = [*ENCODE, f"--restrict-uid={uid}", "--ttl=60", *([f"--socket={socket}"] if socket else [])]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HeadNotReady(f"munge does not work on the head: {error}. Look at munge.service there") from None
    if done.returncode != 0:
        raise HeadNotReady(f"munge does not work on the head: {done.stderr.strip()}. Look at munge.service there")
    return done.stdout


def is_made_with(credential: str, key: bytes) -> bool:
    """Whether a credential of ENCODE bears the MAC of this key, as munge's conf.c and enc.c make it."""
    raw = base64.b64decode(credential.strip().removeprefix("MUNGE:").removesuffix(":"))
    inner = 5 + raw[4] + _MAC_BYTES  # five bytes, the realm that the fifth has the length of, the MAC
    outer, mac = raw[: inner - _MAC_BYTES], raw[inner - _MAC_BYTES : inner]
    subkey = hashlib.sha1(key + b"2", usedforsecurity=False).digest()
    return hmac.compare_digest(mac, hmac.digest(subkey, outer + raw[inner:], "sha256"))
