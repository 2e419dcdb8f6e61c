"""The provider of Google Compute Engine: its parts put together; most abilities are a method of one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from burstd.domain.plugins.provider import Idempotency, Provider, ProviderPlugin
from providers.google.calls import GoogleCalls
from providers.google.catalog.catalog import GoogleCatalog
from providers.google.catalog.quotas import GoogleQuotas
from providers.google.check import check
from providers.google.images import GoogleImages
from providers.google.launch import InstanceLauncher
from providers.google.leftovers import GoogleLeftovers
from providers.google.listing import InstanceListing
from providers.google.settings import GoogleSettings
from providers.google.terminate import InstanceTerminator
from providers.google.volumes import GoogleVolumes
from providers.parsing import malformed_as_unavailable

_SHUTDOWN_S = 30
"""Between the signal to shut down and the end of a Spot VM."""


class GoogleProvider:
    """One region of one project. The claim is in the instance's name; its request's id is made of it too."""

    idempotency = Idempotency.NAME
    disks_at_launch = False

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: GoogleSettings,
        calls: GoogleCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._notice_s = settings.preemption_notice_s + _SHUTDOWN_S
        catalog, images = GoogleCatalog(name, settings, calls), GoogleImages(settings, calls)
        quotas = GoogleQuotas(settings, calls, catalog)
        zones = catalog.zones_of_region
        listing = InstanceListing(name, cluster, settings, calls, zones, clock)
        leftovers = GoogleLeftovers(name, cluster, settings, calls, zones)
        self.offers = malformed_as_unavailable(catalog.offers)
        self.launch = InstanceLauncher(name, cluster, settings, calls, listing.launched).launch
        self.instances = malformed_as_unavailable(listing.instances)
        self.terminate = InstanceTerminator(settings, calls, listing.ended).terminate
        self.leftovers = malformed_as_unavailable(leftovers.list_leftovers)
        self.remove = leftovers.remove
        self.console = malformed_as_unavailable(listing.console)
        self.quotas = malformed_as_unavailable(quotas.read_quotas)
        self.images = malformed_as_unavailable(images.versions)
        self.cloud_time = malformed_as_unavailable(calls.server_time)
        self.check = partial(check, settings, calls, catalog, images, quotas)
        volumes = GoogleVolumes(cluster, settings, calls, zones)
        self.disks = malformed_as_unavailable(volumes.disks)
        self.create_disk, self.delete_disk = volumes.create_disk, volumes.delete_disk
        self.attach_disk, self.detach_disk = volumes.attach_disk, volumes.detach_disk
        self.close = calls.close

    def watch_script(self) -> str:
        """With the time that a Spot VM has."""
        text = Path(__file__).with_name("watch.sh").read_text(encoding="ascii")
        return text.replace("${BURSTD_NOTICE_S:-30}", f"${{BURSTD_NOTICE_S:-{self._notice_s}}}")


def _make(name: str, cluster: str, settings: GoogleSettings) -> Provider:
    return GoogleProvider(name, cluster, settings, GoogleCalls(settings))


plugin = ProviderPlugin("google", GoogleSettings, _make)
