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
from providers.openstack.calls import Calls
from providers.openstack.catalog.catalog import Catalog
from providers.openstack.catalog.quotas import Quotas
from providers.openstack.checks import check
from providers.openstack.launch.floating_ips import FloatingIps
from providers.openstack.launch.images import Images
from providers.openstack.launch.launch import Launching
from providers.openstack.launch.networks import Networks
from providers.openstack.launch.ports import Ports
from providers.openstack.launch.server_groups import ServerGroups
from providers.openstack.launch.volumes import Volumes
from providers.openstack.leftovers import Leftovers
from providers.openstack.listing import Listing
from providers.openstack.settings import OpenStackSettings
from providers.openstack.terminate import Ending
from providers.parsing import understood


class OpenStackProvider:
    """One project in one region. Nova has no client token: a claim's server is known by its metadata."""

    idempotency = Idempotency.SETTLE

    def __init__(self, name: str, cluster: str, settings: OpenStackSettings, calls: Calls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._catalog = Catalog(name, settings, calls)
        self._images = Images(settings, calls)
        self._networks = Networks(settings, calls)
        self._quotas = Quotas(settings, calls)
        self._launching = Launching(
            name, cluster, settings, calls, self._catalog, self._images,
            ServerGroups(cluster, settings, calls),
            Ports(cluster, settings, calls, self._networks),
            FloatingIps(cluster, settings, calls, self._networks),
            Volumes(cluster, settings, calls),
        )  # fmt: skip
        self._listing = Listing(name, cluster, settings, calls)
        self._ending = Ending(cluster, settings, calls)
        self._leftovers = Leftovers(name, cluster, settings, calls)

    @understood
    def offers(self) -> Sequence[Offer]:
        """The flavors that the site allows and prices, in every zone that is available."""
        return self._catalog.offers()

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One call a server, some side by side, after one for the ports of all."""
        done = self._launching.serve(requests)
        return [done[request.claim_id] for request in requests]

    @understood
    def instances(self) -> Iterator[Instance]:
        """Ours, page by page."""
        return self._listing.instances()

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """With their ports and floating IPs; those that are gone are left out."""
        self._ending.terminate(instance_ids)

    @understood
    def leftovers(self) -> Iterator[Leftover]:
        """Ports, floating IPs, volumes, server groups of ours."""
        return self._leftovers.listed()

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks first whether they are ours."""
        self._leftovers.remove(leftovers)

    @understood
    def console(self, instance_id: str) -> str:
        """The console's output so far."""
        return self._listing.console(instance_id)

    @understood
    def quotas(self) -> Sequence[Quota]:
        """Limits of the project."""
        return self._quotas.read()

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
    return OpenStackProvider(name, cluster, settings, Calls(settings))


plugin = ProviderPlugin("openstack", OpenStackSettings, _make)
