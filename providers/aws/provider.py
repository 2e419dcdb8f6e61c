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
from providers.aws.calls import Calls
from providers.aws.catalog.catalog import Catalog
from providers.aws.catalog.quotas import Quotas
from providers.aws.checks import check
from providers.aws.launch import recipe
from providers.aws.launch.images import Images
from providers.aws.launch.launch import Launching
from providers.aws.launch.lookups import Wishes
from providers.aws.launch.placement_groups import PlacementGroups
from providers.aws.launch.template import Templates
from providers.aws.leftovers import Leftovers
from providers.aws.listing import Listing
from providers.aws.notices import Notices
from providers.aws.settings import AwsSettings
from providers.aws.terminate import Ending
from providers.parsing import understood


class AwsProvider:
    """One region of one account. A batch's client token is its first claim's id."""

    idempotency = Idempotency.TOKEN

    def __init__(self, name: str, cluster: str, settings: AwsSettings, calls: Calls) -> None:
        self.name = name
        self.settle_s = settings.settle_s
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._catalog = Catalog(name, settings, calls)
        self._images = Images(settings, calls)
        self._quotas = Quotas(settings, calls, self._catalog)
        self._wishes = Wishes(settings, self._catalog, self._images)
        templates = Templates(cluster, settings, calls)
        groups = PlacementGroups(cluster, settings, calls)
        self._launching = Launching(name, cluster, settings, calls, templates, groups)
        self._listing = Listing(name, cluster, settings, calls)
        self._ending = Ending(calls)
        self._leftovers = Leftovers(name, cluster, settings, calls, templates.used_lately)
        self._notices = Notices(settings, calls)

    @understood
    def offers(self) -> Sequence[Offer]:
        """What the site allows, in every zone that has a subnet, on demand and spot."""
        return self._catalog.offers()

    def prepare(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchRequest | ProviderError]:
        """Puts those that are alike into batches of one call each, and writes the calls down."""
        wishes: list[recipe.Wish] = []
        refused: dict[str, ProviderError] = {}
        for request in requests:
            try:
                wishes.append(self._wishes.of(request))
            except (BadRequest, InsufficientCapacity) as error:
                refused[request.claim_id] = error
        ready = {one.claim_id: one for one in recipe.batches(self._cluster, self._settings, wishes)}
        return [refused.get(request.claim_id) or ready[request.claim_id] for request in requests]

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One call a batch, some side by side. What was not prepared is prepared now, each by itself, so that its
        machine bears its claim: nobody kept the recipe by which it would be known again. But a gang stays together.
        """
        ready = [request for request in requests if request.batch]
        done: dict[str, LaunchOutcome] = {}
        alone: dict[tuple[str, str], list[LaunchRequest]] = {}
        for request in requests:
            if not request.batch:
                alone.setdefault((request.gang, "" if request.gang else request.claim_id), []).append(request)
        for group in alone.values():
            for request, answer in zip(group, self._prepared(group), strict=True):
                if isinstance(answer, LaunchRequest):
                    ready.append(answer)
                else:
                    done[request.claim_id] = LaunchOutcome(request.claim_id, answer)
        done.update(self._launching.serve(ready))
        return [done[request.claim_id] for request in requests]

    def _prepared(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchRequest | ProviderError]:
        try:
            return self.prepare(requests)
        except ProviderError as error:
            return [error] * len(requests)

    @understood
    def instances(self) -> Iterator[Instance]:
        """Ours, page by page."""
        return self._listing.instances()

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """In batches; those that are gone are left out."""
        self._ending.terminate(instance_ids)

    @understood
    def leftovers(self) -> Iterator[Leftover]:
        """Volumes, network interfaces, spot requests, launch templates, placement groups of ours."""
        return self._leftovers.listed()

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks first whether they are ours."""
        self._leftovers.remove(leftovers)

    @understood
    def console(self, instance_id: str) -> str:
        """The console's output so far."""
        return self._listing.console(instance_id)

    @property
    def notice_markets(self) -> frozenset[str]:
        """Spot, where the settings name a queue."""
        return frozenset({"spot"} if self._notices.has_queue else ())

    @understood
    def notices(self) -> Sequence[Notice]:
        """Those in the settings' queue; none where there is no queue."""
        return self._notices.notices()

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """Deletes them from the queue."""
        self._notices.acknowledge(notices)

    def watch(self) -> str:
        """A script that asks the machine's own metadata service."""
        return watch.script()

    @understood
    def quotas(self) -> Sequence[Quota]:
        """Limits of vCPUs."""
        return self._quotas.read()

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        """Credentials, rights, images, networks, quotas."""
        return check.check(
            self._settings, self._calls, self._catalog, self._images, self._quotas, self._cluster, images
        )

    def close(self) -> None:
        """Gives connections back."""
        self._calls.close()


def _make(name: str, cluster: str, settings: AwsSettings) -> Provider:
    return AwsProvider(name, cluster, settings, Calls(settings))


plugin = ProviderPlugin("aws", AwsSettings, _make)
