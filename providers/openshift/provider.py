"""The provider of OpenShift and Kubernetes: its parts put together; most abilities are a method of one of them."""

from __future__ import annotations

from functools import partial

from burstd.domain.plugins.provider import Idempotency, Provider, ProviderPlugin
from burstd.domain.plugins.shell import Shell
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.catalog.quotas import OpenShiftQuotas
from providers.openshift.checks.check import check
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.shell import PodShell
from providers.openshift.leftovers import OpenShiftLeftovers
from providers.openshift.notices import PodNotices
from providers.openshift.pods.images import ImageVersions
from providers.openshift.pods.launch import PodLauncher
from providers.openshift.pods.listing import PodListing
from providers.openshift.pods.volumes import ScratchVolumes
from providers.openshift.routes import PodRoutes
from providers.openshift.settings import OpenShiftSettings
from providers.openshift.terminate import PodTerminator
from providers.openshift.volumes import OpenShiftVolumes
from providers.parsing import malformed_as_unavailable


class OpenShiftProvider:
    """One namespace of one cluster. A machine is a pod, named by its claim: Kubernetes refuses a second of the name."""

    idempotency = Idempotency.NAME
    disks_at_launch = True
    notice_markets = frozenset({"on-demand"})

    def __init__(self, name: str, cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._calls = calls
        catalog, images = OpenShiftCatalog(name, settings, calls), ImageVersions(settings, calls)
        self._listing = listing = PodListing(name, cluster, settings, calls)
        terminator = PodTerminator(cluster, settings, calls, listing)
        leftovers = OpenShiftLeftovers(name, cluster, settings, calls, listing)
        notices, routes = (
            PodNotices(listing, terminator.has_terminated),
            PodRoutes(calls, cluster, settings.route_domain),
        )
        self.offers = malformed_as_unavailable(catalog.offers)
        self.launch = PodLauncher(settings, calls, listing, images, ScratchVolumes(settings, calls)).launch_pods
        self.instances = malformed_as_unavailable(listing.instances)
        self.terminate = terminator.terminate
        self.leftovers = malformed_as_unavailable(leftovers.list_leftovers)
        self.remove = leftovers.remove
        self.images = malformed_as_unavailable(images.versions)
        self.notices = malformed_as_unavailable(notices.notices)
        self.acknowledge = notices.acknowledge
        self.open_route = routes.open_route
        self.routes = malformed_as_unavailable(routes.routes)
        self.close_routes = routes.close_routes
        volumes = OpenShiftVolumes(cluster, settings, calls, listing)
        self.disks = malformed_as_unavailable(volumes.disks)
        self.create_disk, self.delete_disk = volumes.create_disk, volumes.delete_disk
        self.attach_disk, self.detach_disk = volumes.attach_disk, volumes.detach_disk
        self.quotas = malformed_as_unavailable(OpenShiftQuotas(settings, catalog).read_quotas)
        self.check = partial(check, name, cluster, settings, calls)

    def cloud_time(self) -> float:
        """By an answer of the API server."""
        self._calls.request_json("GET", "/version", what="read the API server's clock")
        return self._calls.server_time()

    def shell(self, instance_id: str, timeout_s: float) -> Shell:  # noqa: ARG002 - the settings' timeout_s holds
        """By ``pods/exec``: nothing is asked before the first command."""
        return PodShell(self._calls, instance_id)

    def close(self) -> None:
        """Ends the watch and gives connections back."""
        self._listing.close()
        self._calls.close()


def _make(name: str, cluster: str, settings: OpenShiftSettings) -> Provider:
    return OpenShiftProvider(name, cluster, settings, OpenShiftCalls(settings))


plugin = ProviderPlugin("openshift", OpenShiftSettings, _make, has_ssh=False)
