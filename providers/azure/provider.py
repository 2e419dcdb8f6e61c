"""The provider of Microsoft Azure: its parts put together; most abilities are a method of one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from burstd.domain.plugins.provider import Idempotency, Provider, ProviderPlugin
from providers.azure.calls import AzureCalls
from providers.azure.catalog.catalog import AzureCatalog
from providers.azure.catalog.quotas import AzureQuotas
from providers.azure.checks.check import check
from providers.azure.launch.images import AzureImages
from providers.azure.launch.launch import MachineLauncher
from providers.azure.leftovers import AzureLeftovers
from providers.azure.listing import MachineListing
from providers.azure.settings import AzureSettings
from providers.azure.terminate import MachineTerminator
from providers.azure.volumes import AzureVolumes
from providers.parsing import malformed_as_unavailable


class AzureProvider:
    """One location of one subscription, in one resource group. A machine's name is its claim's."""

    idempotency = Idempotency.NAME
    disks_at_launch = False

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: AzureSettings,
        calls: AzureCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        catalog, images = AzureCatalog(name, settings, calls, clock), AzureImages(settings, calls, clock)
        listing = MachineListing(name, cluster, settings, calls, clock)
        leftovers = AzureLeftovers(name, cluster, settings, calls)
        quotas = AzureQuotas(settings, calls, catalog)
        self.offers = malformed_as_unavailable(catalog.offers)
        self.launch = MachineLauncher(cluster, settings, calls, catalog, images, listing).launch
        self.instances = malformed_as_unavailable(listing.instances)
        self.terminate = MachineTerminator(settings, calls).terminate
        self.leftovers = malformed_as_unavailable(leftovers.list_leftovers)
        self.remove = leftovers.remove
        self.console = malformed_as_unavailable(listing.console)
        self.watch_script = partial(Path(__file__).with_name("watch.sh").read_text, encoding="ascii")
        self.quotas = malformed_as_unavailable(quotas.read_quotas)
        self.images = malformed_as_unavailable(images.versions)
        self.cloud_time = malformed_as_unavailable(calls.server_time)
        self.check = partial(check, settings, calls, catalog, images, quotas)
        volumes = AzureVolumes(cluster, settings, calls)
        self.disks = malformed_as_unavailable(volumes.disks)
        self.create_disk, self.delete_disk = volumes.create_disk, volumes.delete_disk
        self.attach_disk, self.detach_disk = volumes.attach_disk, volumes.detach_disk
        self.close = calls.close


def _make(name: str, cluster: str, settings: AzureSettings) -> Provider:
    return AzureProvider(name, cluster, settings, AzureCalls(settings))


plugin = ProviderPlugin("azure", AzureSettings, _make)
