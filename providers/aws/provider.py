"""The provider of Amazon EC2: its parts put together; most abilities are a method of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from burstd.domain.errors import BadRequest, InsufficientCapacity, ProviderError
from burstd.domain.plugins.provider import Idempotency, LaunchOutcome, LaunchRequest, Provider, ProviderPlugin
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog
from providers.aws.catalog.quotas import AwsQuotas
from providers.aws.checks.check import check
from providers.aws.launch import recipe
from providers.aws.launch.images import AwsImages
from providers.aws.launch.launch import InstanceLauncher
from providers.aws.launch.lookups import LaunchLookups
from providers.aws.launch.placement_groups import PlacementGroups
from providers.aws.launch.template import LaunchTemplates
from providers.aws.leftovers import AwsLeftovers
from providers.aws.listing import InstanceListing
from providers.aws.notices import SqsNotices
from providers.aws.settings import AwsSettings
from providers.aws.terminate import InstanceTerminator
from providers.aws.volumes import AwsVolumes
from providers.parsing import malformed_as_unavailable


class AwsProvider:
    """One region of one account. A batch's client token is its first claim's id."""

    idempotency = Idempotency.TOKEN
    disks_at_launch = False

    def __init__(self, name: str, cluster: str, settings: AwsSettings, calls: AwsCalls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._cluster = cluster
        self._settings = settings
        catalog, images = AwsCatalog(name, settings, calls), AwsImages(settings, calls)
        quotas, listing = AwsQuotas(settings, calls, catalog), InstanceListing(name, cluster, settings, calls)
        self._lookups = LaunchLookups(settings, catalog, images)
        templates = LaunchTemplates(cluster, settings, calls)
        groups = PlacementGroups(cluster, settings, calls)
        self._launcher = InstanceLauncher(name, cluster, settings, calls, templates, groups)
        leftovers = AwsLeftovers(name, cluster, settings, calls, templates.used_lately)
        notices = SqsNotices(settings, calls)
        self.offers = malformed_as_unavailable(catalog.offers)
        self.instances = malformed_as_unavailable(listing.instances)
        self.terminate = InstanceTerminator(calls).terminate
        self.leftovers = malformed_as_unavailable(leftovers.list_leftovers)
        self.remove = leftovers.remove
        self.console = malformed_as_unavailable(listing.console)
        self.notice_markets = frozenset({"spot"} if notices.has_queue else ())
        self.notices = malformed_as_unavailable(notices.notices)
        self.acknowledge = notices.acknowledge
        self.watch_script = partial(Path(__file__).with_name("watch.sh").read_text, encoding="ascii")
        self.quotas = malformed_as_unavailable(quotas.read_quotas)
        self.images = malformed_as_unavailable(images.versions)
        self.cloud_time = malformed_as_unavailable(calls.server_time)
        self.check = partial(check, settings, calls, catalog, images, quotas, cluster)
        volumes = AwsVolumes(cluster, settings, calls)
        self.disks = malformed_as_unavailable(volumes.disks)
        self.create_disk, self.delete_disk = volumes.create_disk, volumes.delete_disk
        self.attach_disk, self.detach_disk = volumes.attach_disk, volumes.detach_disk
        self.close = calls.close

    def prepare(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchRequest | ProviderError]:
        """Puts those that are alike into batches of one call each, and writes the calls down."""
        specs: list[recipe.LaunchSpec] = []
        refused: dict[str, ProviderError] = {}
        for request in requests:
            try:
                specs.append(self._lookups.look_up(request))
            except (BadRequest, InsufficientCapacity) as error:
                refused[request.claim_id] = error
        ready = {one.claim_id: one for one in recipe.batch_requests(self._cluster, self._settings, specs)}
        return [refused.get(request.claim_id) or ready[request.claim_id] for request in requests]

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One call a batch, some side by side. What was not prepared is prepared now, each by itself, so that its
        machine bears its claim: nobody kept the recipe by which it would be known again. But a gang stays together.
        """
        ready = [request for request in requests if request.batch]
        done: dict[str, LaunchOutcome] = {}
        unprepared: dict[tuple[str, str], list[LaunchRequest]] = {}
        for request in requests:
            if not request.batch:
                unprepared.setdefault((request.gang, "" if request.gang else request.claim_id), []).append(request)
        for group in unprepared.values():
            for request, answer in zip(group, self._prepared(group), strict=True):
                if isinstance(answer, LaunchRequest):
                    ready.append(answer)
                else:
                    done[request.claim_id] = LaunchOutcome(request.claim_id, answer)
        done.update(self._launcher.launch_batches(ready))
        return [done[request.claim_id] for request in requests]

    def _prepared(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchRequest | ProviderError]:
        try:
            return self.prepare(requests)
        except ProviderError as error:
            return [error] * len(requests)


def _make(name: str, cluster: str, settings: AwsSettings) -> Provider:
    return AwsProvider(name, cluster, settings, AwsCalls(settings))


plugin = ProviderPlugin("aws", AwsSettings, _make)
