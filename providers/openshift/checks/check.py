"""Whether launching would work, looked at without making anything: account, rights, images, nodes, limits, pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.plugins.provider import Finding
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.catalog.quotas import OpenShiftQuotas
from providers.openshift.checks import access, pod, resources, rights, supply
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.pods.images import ImageVersions
from providers.openshift.settings import OpenShiftSettings


def check(
    name: str, cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls, words: Sequence[str]
) -> Iterator[Finding]:
    """Yields every finding; ``words`` are the images that pools name. Caches are not used."""
    groups = yield from access.check_server(settings, calls)
    if groups is None:
        yield Finding("all else", None, "not looked at: it takes an account that the API server knows")
        return
    there = list(dict.fromkeys(word for word in (settings.image, *words) if word))
    yield from rights.check_rights(settings, calls, groups, there)
    if not (yield from access.check_namespace(settings, calls)):
        yield Finding("all else", None, "not looked at: it takes a namespace")
        return
    images, catalog = ImageVersions(settings, calls), OpenShiftCatalog(name, settings, calls)
    yield from resources.check_images(settings, images, there)
    yield from resources.check_secrets(settings, calls)
    yield from resources.check_storage(settings, calls)
    yield from supply.check_supply(settings, catalog, OpenShiftQuotas(settings, catalog))
    yield from pod.check_admission(cluster, settings, calls, catalog, (there or ["none"])[0])
