"""Whether launching would work, looked at without making anything: account, rights, images, nodes, limits, pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.model.provider import Finding
from providers.openshift import check_access, check_pod, check_supply, check_things, rights
from providers.openshift.calls import Calls
from providers.openshift.catalog import Catalog
from providers.openshift.images import Images
from providers.openshift.quotas import Quotas
from providers.openshift.settings import OpenShiftSettings


def check(
    name: str, cluster: str, settings: OpenShiftSettings, calls: Calls, words: Sequence[str]
) -> Iterator[Finding]:
    """See SelfCheck.check; ``words`` are the images that pools name. Nothing that was kept is used."""
    groups = yield from check_access.server(settings, calls)
    if groups is None:
        yield Finding("all else", None, "not looked at: it takes an account that the API server knows")
        return
    there = list(dict.fromkeys(word for word in (settings.image, *words) if word))
    yield from rights.tried(settings, calls, groups, there)
    if not (yield from check_access.namespace(settings, calls)):
        yield Finding("all else", None, "not looked at: it takes a namespace")
        return
    images, catalog = Images(settings, calls), Catalog(name, settings, calls)
    yield from check_things.images(settings, images, there)
    yield from check_things.secrets(settings, calls)
    yield from check_things.storage(settings, calls)
    yield from check_supply.supply(settings, catalog, Quotas(settings, catalog))
    yield from check_pod.admission(cluster, settings, calls, catalog, (there or ["none"])[0])
