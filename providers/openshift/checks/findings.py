"""Where the checks' remedies point to, and what to do about errors of the API server."""

from __future__ import annotations

from providers.findings import ErrorRemedies

DOC = "docs/providers/openshift.md"
ROLE, NODES, SCC = (f"config/openshift/{name}.yaml" for name in ("role", "clusterrole-nodes", "scc"))

finding_for_error = ErrorRemedies(
    not_allowed=f"give burstd's account the rules of {ROLE}",
    auth_failed=f"make a new token or certificate ({DOC}, Account)",
    unavailable="try again later; check that 'oc get --raw /readyz' works as burstd's user",
    denied_is_fault=False,
).finding
