"""The provider of Amazon EC2: its rooms put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.cloud.instance import Instance, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BadRequest, InsufficientCapacity, ProviderError
from burstd.domain.plugins.provider import (
    Finding,
    Idempotency,
    LaunchOutcome,
    LaunchRequest,
    Notice,
    Provider,
    ProviderPlugin,
    Quota,
)
from providers.aws import watch
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog
from providers.aws.catalog.quotas import AwsQuotas
from providers.aws.checks import check
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
from providers.parsing import malformed_as_unavailable


class AwsProvider:
    """One region of one account. A batch's client token is its first claim's id."""

    idempotency = Idempotency.TOKEN

    def __init__(self, name: str, cluster: str, settings: AwsSettings, calls: AwsCalls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._catalog = AwsCatalog(name, settings, calls)
        self._images = AwsImages(settings, calls)
        self._quotas = AwsQuotas(settings, calls, self._catalog)
        self._lookups = LaunchLookups(settings, self._catalog, self._images)
        templates = LaunchTemplates(cluster, settings, calls)
        groups = PlacementGroups(cluster, settings, calls)
        self._launcher = InstanceLauncher(name, cluster, settings, calls, templates, groups)
        self._listing = InstanceListing(name, cluster, settings, calls)
        self._terminator = InstanceTerminator(calls)
        self._leftovers = AwsLeftovers(name, cluster, settings, calls, templates.used_lately)
        self._notices = SqsNotices(settings, calls)

    @malformed_as_unavailable
    def offers(self) -> Sequence[Offer]:
        """What the site allows, in every zone that has a subnet, on demand and spot."""
        return self._catalog.offers()

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

    @malformed_as_unavailable
    def instances(self) -> Iterator[Instance]:
        """Ours, page by page."""
        return self._listing.instances()

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """In batches; those that are gone are left out."""
        self._terminator.terminate(instance_ids)

    @malformed_as_unavailable
    def leftovers(self) -> Iterator[Leftover]:
        """Volumes, network interfaces, spot requests, launch templates, placement groups of ours."""
        return self._leftovers.list_leftovers()

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks first whether they are ours."""
        self._leftovers.remove(leftovers)

    @malformed_as_unavailable
    def console(self, instance_id: str) -> str:
        """The console's output so far."""
        return self._listing.console(instance_id)

    @property
    def notice_markets(self) -> frozenset[str]:
        """Spot, where the settings name a queue."""
        return frozenset({"spot"} if self._notices.has_queue else ())

    @malformed_as_unavailable
    def notices(self) -> Sequence[Notice]:
        """Those in the settings' queue; none where there is no queue."""
        return self._notices.notices()

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """Deletes them from the queue."""
        self._notices.acknowledge(notices)

    def watch_script(self) -> str:
        """A script that asks the machine's own metadata service."""
        return watch.script()

    @malformed_as_unavailable
    def quotas(self) -> Sequence[Quota]:
        """Limits of vCPUs."""
        return self._quotas.read_quotas()

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        """Credentials, rights, images, networks, quotas."""
        return check.check(
            self._settings, self._calls, self._catalog, self._images, self._quotas, self._cluster, images
        )

    def close(self) -> None:
        """Gives connections back."""
        self._calls.close()


def _make(name: str, cluster: str, settings: AwsSettings) -> Provider:
    return AwsProvider(name, cluster, settings, AwsCalls(settings))


plugin = ProviderPlugin("aws", AwsSettings, _make)
