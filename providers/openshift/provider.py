"""The provider of OpenShift and Kubernetes: its rooms put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.cloud.instance import Instance, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import (
    Finding,
    Idempotency,
    LaunchOutcome,
    LaunchRequest,
    Notice,
    Provider,
    ProviderPlugin,
    Quota,
    Route,
)
from burstd.domain.plugins.shell import Shell
from providers.openshift.catalog.catalog import OpenShiftCatalog
from providers.openshift.catalog.quotas import OpenShiftQuotas
from providers.openshift.checks import check
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
from providers.parsing import malformed_as_unavailable


class OpenShiftProvider:
    """One namespace of one cluster. A machine is a pod, named by its claim: Kubernetes refuses a second of the name."""

    idempotency = Idempotency.NAME
    notice_markets = frozenset({"on-demand"})

    def __init__(self, name: str, cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._catalog = OpenShiftCatalog(name, settings, calls)
        self._images = ImageVersions(settings, calls)
        self._quotas = OpenShiftQuotas(settings, self._catalog)
        self._listing = PodListing(name, cluster, settings, calls)
        self._launcher = PodLauncher(settings, calls, self._listing, self._images, ScratchVolumes(settings, calls))
        self._terminator = PodTerminator(cluster, settings, calls, self._listing)
        self._leftovers = OpenShiftLeftovers(name, cluster, settings, calls, self._listing)
        self._notices = PodNotices(self._listing, self._terminator.has_terminated)
        self._routes = PodRoutes(calls, cluster, settings.route_domain)

    @malformed_as_unavailable
    def offers(self) -> Sequence[Offer]:
        """The sizes of each group."""
        return self._catalog.offers()

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One pod a request, some side by side."""
        return self._launcher.launch_pods(requests)

    @malformed_as_unavailable
    def instances(self) -> Iterator[Instance]:
        """Ours; without a call while the watch can be relied on."""
        return self._listing.instances()

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """With what belongs to them; those that are gone are left out."""
        self._terminator.terminate(instance_ids)

    @malformed_as_unavailable
    def leftovers(self) -> Iterator[Leftover]:
        """Volumes, services and routes of ours; pods that have ended."""
        return self._leftovers.list_leftovers()

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks first whether they are ours."""
        self._leftovers.remove(leftovers)

    def shell(self, instance_id: str, timeout_s: float) -> Shell:  # noqa: ARG002 - the settings' timeout_s holds
        """By ``pods/exec``: nothing is asked before the first command."""
        return PodShell(self._calls, instance_id)

    @malformed_as_unavailable
    def images(self, word: str) -> Sequence[str]:
        """Those of an ImageStream's tag; a plain reference is the one version of itself."""
        return self._images.versions(word)

    @malformed_as_unavailable
    def notices(self) -> Sequence[Notice]:
        """Pods that somebody else takes, as far as the watch has told; no call."""
        return self._notices.notices()

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """They are not told again by this process."""
        self._notices.acknowledge(notices)

    def open_route(self, instance_id: str, job_id: str, port: int) -> Route:
        """A Service and OpenShift's Route to it."""
        return self._routes.open_route(instance_id, job_id, port)

    @malformed_as_unavailable
    def routes(self) -> Sequence[Route]:
        """All of our cluster's."""
        return self._routes.routes()

    def close_routes(self, routes: Sequence[Route]) -> None:
        """With their Services."""
        self._routes.close_routes(routes)

    @malformed_as_unavailable
    def quotas(self) -> Sequence[Quota]:
        """Of the namespace, and of the groups' nodes."""
        return self._quotas.read_quotas()

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        """Account, rights, images, nodes, limits, and whether a pod would be admitted."""
        return check.check(self.name, self._cluster, self._settings, self._calls, images)

    def close(self) -> None:
        """Ends the watch and gives connections back."""
        self._listing.close()
        self._calls.close()


def _make(name: str, cluster: str, settings: OpenShiftSettings) -> Provider:
    return OpenShiftProvider(name, cluster, settings, OpenShiftCalls(settings))


plugin = ProviderPlugin("openshift", OpenShiftSettings, _make)
