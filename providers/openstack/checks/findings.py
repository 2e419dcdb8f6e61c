"""Where the checks' remedies point to, and what to do about errors of the cloud's services."""

from __future__ import annotations

from providers.findings import ErrorRemedies

DOC = "docs/providers/openstack.md"
MEMBER = "give burstd's user the role member in its project: openstack role add --project PROJECT --user USER member"

finding_for_error = ErrorRemedies(
    not_allowed=f"{MEMBER}, or ask the cloud's operator for this right",
    auth_failed=f"check this cloud's entry in clouds.yaml ({DOC}, Credential)",
    unavailable="try again later; 'openstack catalog list' shows the address that burstd's user must reach",
).finding
