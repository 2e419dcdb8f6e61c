"""Whether launching would work, looked at without making anything: account, rights, images, nodes, limits, pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.plugins.provider import Finding
from providers.checks import NO_IMAGE, Check, Verdict, run_checks
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.checks import access, resources, rights, supply
from providers.openshift.checks.namespace import CheckedNamespace, error_verdict
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.pods.images import ImageVersions
from providers.openshift.settings import OpenShiftSettings


def _no_image(at: CheckedNamespace) -> Verdict | None:
    return None if at.images else NO_IMAGE


_CHECKS: tuple[Check[CheckedNamespace], ...] = (
    Check("API server", access.judge_server, required="an account that the API server knows"),
    Check("account", access.judge_account, required="an account that the API server knows"),
    Check("rights", rights.judge_rights, "look at 'oc auth can-i --list'"),
    Check("namespace {}", access.judge_namespace, each=lambda at: [at.settings.namespace], required="a namespace"),
    Check("image", _no_image),
    Check("image {}", resources.judge_image, each=lambda at: at.images),
    Check("secrets", resources.judge_secrets),
    Check("storage", resources.judge_storage, "look at 'oc get storageclasses'"),
    Check("groups", supply.judge_supply, "look at 'oc get nodes' and 'oc get resourcequotas'"),
    Check("pod of group {}", supply.judge_admission, "look at 'oc get events'", lambda at: at.settings.groups),
)


def check(
    name: str, cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls, words: Sequence[str]
) -> Iterator[Finding]:
    """Yields every finding; ``words`` are the images that pools name. Caches are not used."""
    catalog, images = OpenShiftCatalog(name, settings, calls), ImageVersions(settings, calls)
    return run_checks(_CHECKS, CheckedNamespace(cluster, settings, calls, catalog, images, words), error_verdict)
