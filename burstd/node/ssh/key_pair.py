"""burstd's own ssh key: made once on the head, its public half given to machines in their user data."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from burstd.domain.errors import BurstdError


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An ed25519 key in OpenSSH's forms."""

    private: str = field(repr=False)
    public: str
    """``ssh-ed25519 BASE64``."""


def new_key_pair() -> KeyPair:
    """A key that is nowhere else."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private.decode("ascii"), public.decode("ascii"))


class KeyUnusable(BurstdError):
    """burstd's ssh key cannot be made, read, or is readable by others."""


def ensure_ssh_key(path: Path, comment: str = "burstd") -> str:
    """The public key (one line, no newline) of the private key at ``path``, which is made (ed25519) when missing.

    The private key has mode 0600 and is never there half written; ``path``.pub is written beside it. Raises
    KeyUnusable.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_new_file(path, new_key_pair().private.encode("ascii"), 0o600)
        line = f"{read_public_key(path)} {comment}"
        beside = path.with_name(path.name + ".pub")
        if not beside.exists():
            write_new_file(beside, f"{line}\n".encode(), 0o644)
    except OSError as error:
        raise KeyUnusable(
            f"the ssh key {path} cannot be made or read: {error.strerror}. burstd needs to own its directory"
        ) from None
    return line


def read_public_key(path: Path) -> str:
    """``TYPE BASE64`` of a private key without a passphrase. Raises KeyUnusable, OSError."""
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyUnusable(f"the ssh key {path} has mode {stat.S_IMODE(mode):04o}: others may read it. chmod 600 {path}")
    try:
        private = load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyUnusable(
            f"{path} is no OpenSSH private key without a passphrase ({error}): move it away and burstd makes one"
        ) from None
    return private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def write_new_file(path: Path, content: bytes, mode: int) -> None:
    """Writes a new file whole. One that came into being meanwhile is left as it is. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return
    finally:
        unfinished.unlink(missing_ok=True)
