"""Findings of the providers' checks: an API error with its remedy, and lists of names in short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burstd.domain.errors import AuthFailed, CloudUnavailable, NotAllowed, ProviderError, RateLimited
from burstd.domain.plugins.provider import Finding

_MAX_NAMES = 4


@dataclass(frozen=True, slots=True)
class ErrorRemedies:
    """What to do about errors that any call to a cloud can meet."""

    not_allowed: str
    auth_failed: str
    unavailable: str
    denied_is_fault: bool = True
    """False: another finding reports a missing right."""

    def finding(self, subject: str, error: ProviderError, otherwise: str) -> Finding:
        """A missing right, rejected credentials, a cloud that does not answer; ``otherwise`` remedies the rest."""
        text = str(error)
        if isinstance(error, NotAllowed):
            return Finding(subject, False if self.denied_is_fault else None, text, self.not_allowed)
        if isinstance(error, AuthFailed):
            return Finding(subject, False, text, self.auth_failed)
        if isinstance(error, CloudUnavailable | RateLimited):
            return Finding(subject, None, text, self.unavailable)
        return Finding(subject, False, text, otherwise)


def first_few(names: Sequence[str]) -> str:
    """``a, b, c, d and 3 more``."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
