"""The project that is checked, with what the questions so far have found of it, and what to do about its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from providers.checks import ErrorRemedies
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.flavors import Flavor
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.launch.images import OpenStackImage, OpenStackImages
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.settings import OpenStackSettings

DOC = "docs/providers/openstack.md"
MEMBER = "give burstd's user the role member in its project: openstack role add --project PROJECT --user USER member"
NetworkJson = Mapping[str, Any]

error_verdict = ErrorRemedies(
    not_allowed=f"{MEMBER}, or ask the cloud's operator for this right",
    auth_failed=f"check this cloud's entry in clouds.yaml ({DOC}, Credential)",
    unavailable="try again later; 'openstack catalog list' shows the address that burstd's user must reach",
).verdict


@dataclass(slots=True)
class CheckedProject:
    """One project of one cloud. ``words`` are the images that pools name."""

    settings: OpenStackSettings
    calls: OpenStackCalls
    catalog: OpenStackCatalog
    known_images: OpenStackImages
    known_networks: ProjectNetworks
    quotas: OpenStackQuotas
    cluster: str
    words: Sequence[str]
    token: Any = None
    """keystoneauth's, for the project."""
    images: dict[str, OpenStackImage] = field(default_factory=dict)
    """Those that were found, by their words."""
    networks: Sequence[NetworkJson] = ()
    """Those that were found, in the settings' order."""
    family: str = "IPv4"
    """Of burstd's address of a machine."""
    flavors: Sequence[Flavor] = ()
    """Those that are offered, smallest first."""

    @property
    def id(self) -> str:
        """The project's."""
        return str(self.token.project_id)
