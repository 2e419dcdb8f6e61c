"""The provider of OpenStack: its parts put together; most abilities are a method of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from burstd.domain.plugins.provider import Idempotency, LaunchOutcome, LaunchRequest, Provider, ProviderPlugin
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.checks.check import check
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.launch.floating_ips import FloatingIps
from providers.openstack.launch.images import OpenStackImages
from providers.openstack.launch.launch import ServerLauncher
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.launch.ports import Ports
from providers.openstack.launch.server_groups import ServerGroups
from providers.openstack.launch.volumes import RootVolumes
from providers.openstack.servers.leftovers import OpenStackLeftovers
from providers.openstack.servers.listing import ServerListing
from providers.openstack.servers.terminate import ServerTerminator
from providers.openstack.settings import OpenStackSettings
from providers.openstack.volumes import OpenStackVolumes
from providers.parsing import malformed_as_unavailable


class OpenStackProvider:
    """One project in one region. Nova has no client token: a claim's server is known by its metadata."""

    idempotency = Idempotency.SETTLE
    disks_at_launch = False

    def __init__(self, name: str, cluster: str, settings: OpenStackSettings, calls: OpenStackCalls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        catalog, images = OpenStackCatalog(name, settings, calls), OpenStackImages(settings, calls)
        networks, quotas = ProjectNetworks(settings, calls), OpenStackQuotas(settings, calls)
        self._launcher = ServerLauncher(
            name, cluster, settings, calls, catalog, images,
            ServerGroups(cluster, settings, calls),
            Ports(cluster, settings, calls, networks),
            FloatingIps(cluster, settings, calls, networks),
            RootVolumes(cluster, settings, calls),
        )  # fmt: skip
        listing, leftovers = (
            ServerListing(name, cluster, settings, calls),
            OpenStackLeftovers(name, cluster, settings, calls),
        )
        self.offers = malformed_as_unavailable(catalog.offers)
        self.instances = malformed_as_unavailable(listing.instances)
        self.terminate = ServerTerminator(cluster, settings, calls).terminate
        self.leftovers = malformed_as_unavailable(leftovers.list_leftovers)
        self.remove = leftovers.remove
        self.console = malformed_as_unavailable(listing.console)
        self.quotas = malformed_as_unavailable(quotas.read_quotas)
        self.images = malformed_as_unavailable(images.versions)
        self.cloud_time = malformed_as_unavailable(calls.server_time)
        self.check = partial(check, settings, calls, catalog, images, networks, quotas, cluster)
        volumes = OpenStackVolumes(cluster, settings, calls)
        self.disks = malformed_as_unavailable(volumes.disks)
        self.create_disk, self.delete_disk = volumes.create_disk, volumes.delete_disk
        self.attach_disk, self.detach_disk = volumes.attach_disk, volumes.detach_disk
        self.close = calls.close

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One call a server, some side by side, after one for the ports of all."""
        done = self._launcher.launch_servers(requests)
        return [done[request.claim_id] for request in requests]


def _make(name: str, cluster: str, settings: OpenStackSettings) -> Provider:
    return OpenStackProvider(name, cluster, settings, OpenStackCalls(settings))


plugin = ProviderPlugin("openstack", OpenStackSettings, _make)
