"""How tests look at what a provider says, and clear up as burstd does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import CloudWorld, launch, request, serve, verdict


def shown(provider: Provider, instance: Instance) -> Instance | None:
    """As the list has it; None: it is not there."""
    return next((one for one in provider.instances() if one.id == instance.id), None)


def state(provider: Provider, instance: Instance) -> InstanceState | None:
    """Of one that may be gone."""
    found = shown(provider, instance)
    return None if found is None else found.state


def running(world: CloudWorld, provider: Provider, *claims: str) -> list[Instance]:
    """Machines of these claims, when all run."""
    made = launch(world, provider, *claims)
    world.until(lambda: {state(provider, one) for one in made} == {InstanceState.RUNNING})
    return made


def comes_to(world: CloudWorld, provider: Provider, instance: Instance, wanted: InstanceState) -> Instance:
    """The instance when it is in that state."""
    world.until(lambda: state(provider, instance) is wanted)
    found = shown(provider, instance)
    assert found is not None
    return found


def sweep(world: CloudWorld, provider: Provider) -> None:
    """As burstd does: ends all, and removes what is left of it, until there is nothing."""

    def nothing() -> bool:
        provider.terminate([one.id for one in provider.instances() if not one.state.ended])
        provider.remove([left for left in provider.leftovers() if not left.attached_to])
        return not list(provider.instances()) and not list(provider.leftovers())

    world.until(nothing)


def results(world: CloudWorld, provider: Provider, *claims: str) -> list[Instance | ProviderError]:
    """What becomes of claims of one call, at once or later."""
    outcomes = serve(provider, [request(world, provider, claim) for claim in claims])
    return [verdict(world, provider, one.result) for one in outcomes]


def kinds(found: Sequence[Instance | ProviderError]) -> Counter[str]:
    """How many there are of each."""
    return Counter(type(one).__name__ for one in found)
