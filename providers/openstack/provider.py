"""The provider of OpenStack: its rooms put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.cloud.instance import Instance, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import (
    Finding,
    Idempotency,
    LaunchOutcome,
    LaunchRequest,
    Provider,
    ProviderPlugin,
    Quota,
)
from providers.openstack.calls import OpenStackCalls
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.checks import check
from providers.openstack.launch.floating_ips import FloatingIps
from providers.openstack.launch.images import OpenStackImages
from providers.openstack.launch.launch import ServerLauncher
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.launch.ports import Ports
from providers.openstack.launch.server_groups import ServerGroups
from providers.openstack.launch.volumes import RootVolumes
from providers.openstack.leftovers import OpenStackLeftovers
from providers.openstack.listing import ServerListing
from providers.openstack.settings import OpenStackSettings
from providers.openstack.terminate import ServerTerminator
from providers.parsing import malformed_as_unavailable


class OpenStackProvider:
    """One project in one region. Nova has no client token: a claim's server is known by its metadata."""

    idempotency = Idempotency.SETTLE

    def __init__(self, name: str, cluster: str, settings: OpenStackSettings, calls: OpenStackCalls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._catalog = OpenStackCatalog(name, settings, calls)
        self._images = OpenStackImages(settings, calls)
        self._networks = ProjectNetworks(settings, calls)
        self._quotas = OpenStackQuotas(settings, calls)
        self._launcher = ServerLauncher(
            name, cluster, settings, calls, self._catalog, self._images,
            ServerGroups(cluster, settings, calls),
            Ports(cluster, settings, calls, self._networks),
            FloatingIps(cluster, settings, calls, self._networks),
            RootVolumes(cluster, settings, calls),
        )  # fmt: skip
        self._listing = ServerListing(name, cluster, settings, calls)
        self._terminator = ServerTerminator(cluster, settings, calls)
        self._leftovers = OpenStackLeftovers(name, cluster, settings, calls)

    @malformed_as_unavailable
    def offers(self) -> Sequence[Offer]:
        """The flavors that the site allows and prices, in every zone that is available."""
        return self._catalog.offers()

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One call a server, some side by side, after one for the ports of all."""
        done = self._launcher.launch_servers(requests)
        return [done[request.claim_id] for request in requests]

    @malformed_as_unavailable
    def instances(self) -> Iterator[Instance]:
        """Ours, page by page."""
        return self._listing.instances()

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """With their ports and floating IPs; those that are gone are left out."""
        self._terminator.terminate(instance_ids)

    @malformed_as_unavailable
    def leftovers(self) -> Iterator[Leftover]:
        """Ports, floating IPs, volumes, server groups of ours."""
        return self._leftovers.list_leftovers()

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks first whether they are ours."""
        self._leftovers.remove(leftovers)

    @malformed_as_unavailable
    def console(self, instance_id: str) -> str:
        """The console's output so far."""
        return self._listing.console(instance_id)

    @malformed_as_unavailable
    def quotas(self) -> Sequence[Quota]:
        """Limits of the project."""
        return self._quotas.read_quotas()

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        """Credentials, flavors, images, networks, quotas."""
        return check.check(
            self._settings,
            self._calls,
            self._catalog,
            self._images,
            self._networks,
            self._quotas,
            self._cluster,
            images,
        )

    def close(self) -> None:
        """Gives connections back."""
        self._calls.close()


def _make(name: str, cluster: str, settings: OpenStackSettings) -> Provider:
    return OpenStackProvider(name, cluster, settings, OpenStackCalls(settings))


plugin = ProviderPlugin("openstack", OpenStackSettings, _make)
