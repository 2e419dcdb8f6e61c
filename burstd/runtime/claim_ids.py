"""The ids of claims. Each bears a mark under burstd's own ssh key, so that tags which somebody else made are told."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

_RANDOM_CHARS = 8
"""Letters that are drawn."""
_SIGNATURE_CHARS = 12
"""Letters of the mark, of 4 bits each: who guesses starts a machine for each try."""


class ClaimIds:
    """``key``: the content of burstd's private ssh key, without which it enters no machine either."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.sha256(b"burstd claim ids\0" + key).digest()

    def new_claim_id(self) -> str:
        """Short, valid in host names and tags; later ones sort after earlier ones."""
        plain = f"{int(time.time()):x}-{secrets.token_hex(_RANDOM_CHARS // 2)}"
        return plain + self._signature(plain)

    def is_authentic(self, claim_id: str) -> bool:
        """True for an id that ``new`` gave, in this process or an earlier one."""
        plain, signature = claim_id[:-_SIGNATURE_CHARS], claim_id[-_SIGNATURE_CHARS:]
        return plain.isascii() and signature.isascii() and hmac.compare_digest(self._signature(plain), signature)

    def _signature(self, plain: str) -> str:
        return hmac.new(self._key, plain.encode(), hashlib.sha256).hexdigest()[:_SIGNATURE_CHARS]
