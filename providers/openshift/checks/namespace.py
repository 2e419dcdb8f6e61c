"""The namespace that is checked, with what the questions so far have found of it, and what to do about its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from providers.checks import ErrorRemedies, images_in_use
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import ROLE, SCC
from providers.openshift.pods.images import ImageVersions
from providers.openshift.settings import OpenShiftSettings

__all__ = ["DOC", "NODES", "ROLE", "SCC", "CheckedNamespace", "KubeObject", "error_verdict"]
DOC = "docs/providers/openshift.md"
NODES = "config/openshift/clusterrole-nodes.yaml"
KubeObject = Mapping[str, Any]

error_verdict = ErrorRemedies(
    not_allowed=f"give burstd's account the rules of {ROLE}",
    auth_failed=f"make a new token or certificate ({DOC}, Account)",
    unavailable="try again later; check that 'oc get --raw /readyz' works as burstd's user",
    denied_is_fault=False,
).verdict


@dataclass(slots=True)
class CheckedNamespace:
    """One namespace of one cluster. ``words`` are the images that pools name; the catalog's caches are its own."""

    cluster: str
    settings: OpenShiftSettings
    calls: OpenShiftCalls
    catalog: OpenShiftCatalog
    known_images: ImageVersions
    words: Sequence[str]
    groups: frozenset[str] = frozenset()
    """Of API, that the cluster has."""
    classes: Mapping[str, KubeObject] | None = None
    """Of storage; None: burstd may not see them."""

    @property
    def images(self) -> list[str]:
        """That of the provider's table and those of pools."""
        return images_in_use(self.settings.image, self.words)
