"""What the API server would say to a pod of ours: it is sent with ``dryRun``, so admitted or refused, and not made.

https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.errors import BadRequest, NotAllowed, ProviderError, QuotaExceeded
from burstd.domain.plugins.provider import Finding, LaunchRequest
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.checks.findings import ROLE, SCC, finding_for_error
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.pods import manifest
from providers.openshift.settings import NodeGroup, OpenShiftSettings

_CHOSEN = "openshift.io/scc"
"""Annotation by which OpenShift says what a pod was admitted by."""


def check_admission(
    cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls, catalog: OpenShiftCatalog, image: str
) -> Iterator[Finding]:
    """A pod of the smallest size of each group. ``image`` need not be there."""
    for zone, group in settings.groups.items():
        size = _smallest(group)
        name, claim = f"burstd-check-{secrets.token_hex(4)}", "check"
        tags = {TAG_CLUSTER: cluster, TAG_CLAIM: claim}
        subject = f"pod of group {zone}"
        try:
            request = LaunchRequest(claim, name, catalog.offer_for_size(zone, size), image, "", tags)
            pod = manifest.pod_manifest(settings, request)
            said = calls.request_json(
                "POST", calls.path_of("pods"), pod, {"dryRun": "All"}, what=f"make a pod of size {size}", changes=False
            )
        except ProviderError as error:
            yield _refused(subject, error)
        else:
            yield Finding(subject, True, f"size {size}: {_admitted(said)}")


def _smallest(group: NodeGroup) -> str:
    """The size that takes least."""
    return min(group.sizes, key=lambda one: (group.sizes[one].gpus, group.sizes[one].cpus, group.sizes[one].memory))


def _refused(subject: str, error: ProviderError) -> Finding:
    text = str(error)
    if isinstance(error, NotAllowed) and SCC in text:
        return Finding(subject, False, text, f"set security = 'restricted', or have {SCC} applied: oc apply -f {SCC}")
    if isinstance(error, NotAllowed) and ROLE not in text:
        return Finding(subject, False, text, "ask the cluster's administrators which rule this is")
    if isinstance(error, QuotaExceeded):
        return Finding(subject, None, text, "'oc describe quota' shows what is used; wait, or ask for more")
    if isinstance(error, BadRequest):
        return Finding(subject, False, text, "mend the key of the provider's table, or the limit, that it names")
    return finding_for_error(subject, error, "look at 'oc get events'")


def _admitted(pod: dict[str, Any]) -> str:
    """By which constraints, and as whom."""
    chosen = (pod["metadata"].get("annotations") or {}).get(_CHOSEN, "")
    contexts = [pod["spec"].get("securityContext"), *(one.get("securityContext") for one in pod["spec"]["containers"])]
    uids = [context["runAsUser"] for context in contexts if context and context.get("runAsUser") is not None]
    summary = "admitted" + (f" under SCC {chosen}" if chosen else "")
    if uids and uids[-1]:
        summary += f", as uid {uids[-1]}: slurmctld's SlurmUser must have this one"
    return summary
