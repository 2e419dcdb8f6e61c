"""Whether launching would work, looked at without making anything: account, rights, images, nodes, limits, pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.plugins.provider import Finding
from providers.openshift.catalog.catalog import Catalog
from providers.openshift.catalog.quotas import Quotas
from providers.openshift.checks import access, pod, resources, rights, supply
from providers.openshift.client.calls import Calls
from providers.openshift.pods.images import Images
from providers.openshift.settings import OpenShiftSettings


def check(
    name: str, cluster: str, settings: OpenShiftSettings, calls: Calls, words: Sequence[str]
) -> Iterator[Finding]:
    """See SelfCheck.check; ``words`` are the images that pools name. Nothing that was kept is used."""
    groups = yield from access.server(settings, calls)
    if groups is None:
        yield Finding("all else", None, "not looked at: it takes an account that the API server knows")
        return
    there = list(dict.fromkeys(word for word in (settings.image, *words) if word))
    yield from rights.tried(settings, calls, groups, there)
    if not (yield from access.namespace(settings, calls)):
        yield Finding("all else", None, "not looked at: it takes a namespace")
        return
    images, catalog = Images(settings, calls), Catalog(name, settings, calls)
    yield from resources.images(settings, images, there)
    yield from resources.secrets(settings, calls)
    yield from resources.storage(settings, calls)
    yield from supply.supply(settings, catalog, Quotas(settings, catalog))
    yield from pod.admission(cluster, settings, calls, catalog, (there or ["none"])[0])
