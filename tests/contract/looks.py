"""How tests look at what a provider says, and clear up as burstd does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import CloudWorld, launch_and_wait, launch_request, prepare_and_launch, settled_outcome


def listed_instance(provider: Provider, instance: Instance) -> Instance | None:
    """As the list has it; None: it is not there."""
    return next((one for one in provider.instances() if one.id == instance.id), None)


def listed_state(provider: Provider, instance: Instance) -> InstanceState | None:
    """Of one that may be gone."""
    found = listed_instance(provider, instance)
    return None if found is None else found.state


def launch_until_running(world: CloudWorld, provider: Provider, *claims: str) -> list[Instance]:
    """Machines of these claims, when all run."""
    made = launch_and_wait(world, provider, *claims)
    world.until(lambda: {listed_state(provider, one) for one in made} == {InstanceState.RUNNING})
    return made


def wait_for_state(world: CloudWorld, provider: Provider, instance: Instance, wanted: InstanceState) -> Instance:
    """The instance when it is in that state."""
    world.until(lambda: listed_state(provider, instance) is wanted)
    found = listed_instance(provider, instance)
    assert found is not None
    return found


def remove_everything(world: CloudWorld, provider: Provider) -> None:
    """As burstd does: ends all, and removes what is left of it, until there is nothing."""

    def nothing() -> bool:
        provider.terminate([one.id for one in provider.instances() if not one.state.ended])
        provider.remove([left for left in provider.leftovers() if not left.attached_to])
        return not list(provider.instances()) and not list(provider.leftovers())

    world.until(nothing)


def launch_results(world: CloudWorld, provider: Provider, *claims: str) -> list[Instance | ProviderError]:
    """What becomes of claims of one call, at once or later."""
    outcomes = prepare_and_launch(provider, [launch_request(world, provider, claim) for claim in claims])
    return [settled_outcome(world, provider, one.result) for one in outcomes]


def count_by_type(found: Sequence[Instance | ProviderError]) -> Counter[str]:
    """How many there are of each."""
    return Counter(type(one).__name__ for one in found)
