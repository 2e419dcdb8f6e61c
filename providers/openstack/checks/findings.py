"""How the check says that a thing could not be looked at, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from burstd.domain.errors import AuthFailed, CloudUnavailable, NotAllowed, ProviderError, RateLimited
from burstd.domain.plugins.provider import Finding

DOC = "docs/providers/openstack.md"
MEMBER = "give burstd's user the role member in its project: openstack role add --project PROJECT --user USER member"
_MOST_NAMED = 4


def finding_for_error(subject: str, error: ProviderError, otherwise: str) -> Finding:
    """A missing right, a cloud that does not answer, or else something that the settings have wrong."""
    text = str(error)
    if isinstance(error, NotAllowed):
        return Finding(subject, False, text, f"{MEMBER}, or ask the cloud's operator for this right")
    if isinstance(error, AuthFailed):
        return Finding(subject, False, text, f"look at what clouds.yaml holds for this cloud ({DOC}, Credential)")
    if isinstance(error, CloudUnavailable | RateLimited):
        return Finding(
            subject,
            None,
            text,
            "try again later; 'openstack catalog list' has the address that burstd's user must reach",
        )
    return Finding(subject, False, text, otherwise)


def first_few(names: Sequence[str]) -> str:
    """The first few of them."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
