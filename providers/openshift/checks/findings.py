"""How the check says that a thing could not be looked at, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from burstd.domain.errors import AuthFailed, CloudUnavailable, NotAllowed, ProviderError, RateLimited
from burstd.domain.plugins.provider import Finding

DOC = "docs/providers/openshift.md"
ROLE, NODES, SCC = (f"config/openshift/{name}.yaml" for name in ("role", "clusterrole-nodes", "scc"))
_MOST_NAMED = 4


def finding_for_error(subject: str, error: ProviderError, otherwise: str) -> Finding:
    """A missing right, an API server that does not answer, or else something that the settings have wrong."""
    text = str(error)
    if isinstance(error, NotAllowed):
        return Finding(subject, None, "burstd may not look at it", f"give its account the rules of {ROLE}")
    if isinstance(error, AuthFailed):
        return Finding(subject, False, text, f"make a new token or certificate ({DOC}, Account)")
    if isinstance(error, CloudUnavailable | RateLimited):
        return Finding(subject, None, text, "try again later; see whether 'oc get --raw /readyz' answers burstd's user")
    return Finding(subject, False, text, otherwise)


def first_few(names: Sequence[str]) -> str:
    """The first few of them."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
