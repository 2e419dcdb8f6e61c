"""The cloud in which a provider is tried: what the contract's tests need beside the provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import StrEnum

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BadRequest, InsufficientCapacity, ProviderError, QuotaExceeded
from burstd.domain.plugins.provider import LaunchOutcome, LaunchPreparer, LaunchRequest, Provider

CLUSTER, OTHER_CLUSTER = "ours", "ours2"
"""Two clusters of one account; one name begins with the other, as names do."""

_KINDS: dict[str, type[ProviderError]] = {
    "image": BadRequest,
    **{kind.cause: kind for kind in (InsufficientCapacity, QuotaExceeded, BadRequest)},
}


class CloudWorld(ABC):
    """What the tests need of the cloud under test, beside the provider."""

    image: str
    page: int
    """Instances to a page of the providers made here; small, so that a few instances fill several."""
    disk_bytes: int = 1 << 30
    """Of the smallest persistent disk that the cloud makes, in whole GiB."""
    more_calls: int = 1
    """Of a list of instances, beside those for its pages: where lists are of one zone, they grow with zones."""

    @abstractmethod
    def provider(self, cluster: str) -> Provider:
        """A provider of the account, for a cluster."""

    @abstractmethod
    def until(self, condition: Callable[[], bool]) -> None:
        """Lets the cloud's time pass until the condition holds; fails the test when it does not in good time."""

    @abstractmethod
    def calls(self) -> int:
        """Calls that the cloud has received so far."""

    @abstractmethod
    def user_data(self, instance_id: str) -> str:
        """The user data that the instance was given, as the cloud knows it."""

    def publish_image(self) -> tuple[str, str]:
        """Makes a new version of one image, of this world alone, that machines can be launched from.

        Gives the image's word (``LaunchRequest.image``) and the version. Only for providers with VersionedImages.
        """
        raise NotImplementedError

    def withdraw_image(self, version: str) -> None:
        """Deletes a version of that image; with the last one the image has none."""
        raise NotImplementedError

    def claim(self, word: str) -> str:
        """A claim's id that this account never heard before; a world that is made anew may give the word itself."""
        return word

    def offer(self, provider: Provider) -> Offer:
        """The offer to launch: any with capacity for six machines."""
        return provider.offers()[0]


class Breakage(StrEnum):
    """The faults that a FaultWorld can inject."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    RATE = "rate"
    AUTH = "auth"
    IMAGE = "image"
    DOWN = "down"
    """The next launch finds the service down; nothing is done."""
    LOST = "lost"
    """The next launch is carried out and its answer is lost."""
    LIST_DOWN = "list-down"
    """The next call for a page of instances fails."""
    TERMINATE = "terminate"
    """The next call to end an instance fails; nothing is done."""
    LEAK = "leak"
    """The next instance that ends leaves something behind."""


class FaultWorld(CloudWorld):
    """A cloud that fails on request."""

    @abstractmethod
    def inject_fault(self, how: Breakage) -> None:
        """Orders it, once."""


def launch_request(world: CloudWorld, provider: Provider, word: str, cluster: str = CLUSTER) -> LaunchRequest:
    """A request as burstd makes them. In what follows a claim is named by a word that the world makes unique."""
    claim = world.claim(word)
    tags = {TAG_CLUSTER: cluster, TAG_CLAIM: claim, "burstd-slot": f"slot-{claim}"}
    user_data = "#cloud-config\n# of no claim in particular: \u00e9 $x\n"
    return LaunchRequest(claim, f"{cluster}-{claim}", world.offer(provider), world.image, user_data, tags)


def prepared_requests(provider: Provider, requests: Sequence[LaunchRequest]) -> list[LaunchRequest | ProviderError]:
    """The requests as burstd writes them down before it launches."""
    return list(provider.prepare(requests)) if isinstance(provider, LaunchPreparer) else list(requests)


def recorded_requests(world: CloudWorld, provider: Provider, *claims: str) -> list[LaunchRequest]:
    """Requests that can be served, as they are on record."""
    made = []
    for one in prepared_requests(provider, [launch_request(world, provider, claim) for claim in claims]):
        assert isinstance(one, LaunchRequest), repr(one)
        made.append(one)
    return made


def prepare_and_launch(provider: Provider, requests: Sequence[LaunchRequest]) -> list[LaunchOutcome]:
    """Prepares and launches as burstd does; one outcome for each request, in order."""
    known: dict[str, LaunchOutcome] = {}
    ready = []
    for asked, one in zip(requests, prepared_requests(provider, requests), strict=True):
        if isinstance(one, LaunchRequest):
            ready.append(one)
        else:
            known[asked.claim_id] = LaunchOutcome(asked.claim_id, one)
    known.update((outcome.claim_id, outcome) for outcome in provider.launch(ready))
    return [known[asked.claim_id] for asked in requests]


def launch_and_wait(world: CloudWorld, provider: Provider, *claims: str, cluster: str = CLUSTER) -> list[Instance]:
    """Launches one instance for each claim and waits until all are listed."""
    made = []
    for outcome in prepare_and_launch(provider, [launch_request(world, provider, claim, cluster) for claim in claims]):
        assert isinstance(outcome.result, Instance), outcome
        made.append(outcome.result)
    world.until(lambda: {i.id for i in made} <= {i.id for i in provider.instances()})
    return made


def live_instances(provider: Provider) -> list[Instance]:
    """Instances that have not ended, by claim."""
    return sorted((i for i in provider.instances() if not i.state.ended), key=lambda i: (i.claim_id, i.id))


def settled_outcome(
    world: CloudWorld, provider: Provider, result: Instance | ProviderError
) -> Instance | ProviderError:
    """What a launch comes to: some clouds take it and refuse it then, by an instance in error, which is ended here."""
    if isinstance(result, ProviderError):
        return result
    found: list[Instance] = []

    def decided() -> bool:
        found[:] = [one for one in provider.instances() if one.id == result.id]
        return bool(found) and found[0].state is not InstanceState.PENDING

    world.until(decided)
    if found[0].state is not InstanceState.ERROR:
        return result
    assert found[0].error
    provider.terminate([result.id])
    world.until(lambda: result.id not in {one.id for one in live_instances(provider)})
    return _KINDS.get(found[0].cause, ProviderError)(found[0].error)


def terminate_all(world: CloudWorld, provider: Provider) -> None:
    """Ends everything of a cluster, with what it leaves."""
    provider.terminate([i.id for i in live_instances(provider)])
    world.until(lambda: not live_instances(provider))
    provider.remove([left for left in provider.leftovers() if not left.attached_to])
    world.until(lambda: not list(provider.leftovers()))


def launch_outcome(world: CloudWorld, provider: Provider, claim: str) -> Instance | ProviderError:
    """What comes of one launch."""
    (outcome,) = prepare_and_launch(provider, [launch_request(world, provider, claim)])
    assert outcome.claim_id == world.claim(claim)
    return outcome.result
