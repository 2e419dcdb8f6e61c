"""The contract of a provider, as tests. Subclass ProviderContract, give it a world to play in, run pytest.

    from burstd.testing.cloud_world import CloudWorld, FaultWorld
    from burstd.testing.provider_contract import FaultContract, ProviderContract

    class TestMine(ProviderContract):
        @pytest.fixture
        def world(self) -> Iterator[CloudWorld]:
            ...

A world is an account that the tests have to themselves: a mock, a lab or the real thing. Where it can be told to
break, subclass FaultContract too, with a FaultWorld. Needs pytest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pytest

from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NoSuchImage,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.provider import (
    CloudClock,
    ConsoleLog,
    Idempotency,
    LaunchPreparer,
    LaunchRequest,
    NoticeSource,
    NoticeWatch,
    Provider,
    QuotaReport,
    SelfCheck,
    VersionedImages,
)
from burstd.testing.cloud_world import (
    CLUSTER,
    OTHER_CLUSTER,
    Breakage,
    CloudWorld,
    FaultWorld,
    launch_and_wait,
    launch_outcome,
    launch_request,
    live_instances,
    prepare_and_launch,
    prepared_requests,
    recorded_requests,
    settled_outcome,
    terminate_all,
)


class ProviderContract:
    """What every provider must do on a cloud that does what it should."""

    @pytest.fixture
    def world(self) -> CloudWorld:
        """To be overridden."""
        raise NotImplementedError

    def test_says_what_it_is(self, world: CloudWorld) -> None:
        """Name and promises."""
        provider = world.provider(CLUSTER)
        assert provider.name
        assert provider.idempotency in Idempotency
        assert provider.settle_s >= 0

    def test_offers_are_distinct_and_complete(self, world: CloudWorld) -> None:
        """An offer is known by its id, over all zones, types and markets."""
        provider = world.provider(CLUSTER)
        offers = provider.offers()
        assert offers
        assert max(Counter(o.id for o in offers).values()) == 1
        for offer in offers:
            assert offer.provider == provider.name
            assert offer.zone
            assert offer.instance_type
            assert offer.price >= 0
            assert offer.shape.cpus > 0
            assert offer.shape.memory_mib > 0
            # burstctl has words for these; anything else would say to a pool that machines are bound, and not how.
            assert offer.hardware.placement in ("", "placement-group", "server-group", "topology-key")
            assert re.fullmatch(r"|none|[a-z][a-z0-9_-]*", offer.hardware.fabric)

    def test_a_launch_gives_an_instance_of_its_claim(self, world: CloudWorld) -> None:
        """One outcome for each request, and the list says the same as the answer."""
        provider = world.provider(CLUSTER)
        asked = recorded_requests(world, provider, "c1", "c2", "c3")
        outcomes = provider.launch(asked)
        assert [o.claim_id for o in outcomes] == [r.claim_id for r in asked]
        world.until(lambda: len(live_instances(provider)) == 3)
        listed = {i.id: i for i in live_instances(provider)}
        for outcome, made in zip(outcomes, asked, strict=True):
            assert isinstance(outcome.result, Instance)
            instance, given = listed.pop(outcome.result.id), outcome.offer or made.offer
            if sum(other.batch == made.batch for other in asked) == 1 or not made.batch:
                assert (instance.claim_id, instance.name) == (made.claim_id, made.name)
                assert made.tags.items() <= dict(instance.tags).items()
            else:
                assert instance.claim_id == "", "which of the batch's machines is whose only the answer says"
            assert instance.batch == made.batch
            assert (instance.provider, instance.zone) == (provider.name, given.zone)
            assert (instance.instance_type, instance.spot) == (given.instance_type, given.spot)
            assert instance.launched > 0
        terminate_all(world, provider)

    def test_a_machine_alone_bears_its_claim(self, world: CloudWorld) -> None:
        """So that it is found even where nothing else is known of it."""
        provider = world.provider(CLUSTER)
        (made,) = recorded_requests(world, provider, "c1")
        provider.launch([made])
        world.until(lambda: len(live_instances(provider)) == 1)
        (instance,) = live_instances(provider)
        assert (instance.claim_id, instance.name) == (made.claim_id, made.name)
        assert made.tags.items() <= dict(instance.tags).items()
        terminate_all(world, provider)

    def test_a_part_of_a_batch_asked_again_is_answered_the_same(self, world: CloudWorld) -> None:
        """After a crash those whose outcome is not known are asked for again, by a process that remembers nothing."""
        provider = world.provider(CLUSTER)
        if not isinstance(provider, LaunchPreparer):
            pytest.skip("it serves each request by a call of its own")
        asked = recorded_requests(world, provider, "c1", "c2", "c3")
        first = {o.claim_id: o.result for o in provider.launch(asked)}
        for some in (asked[1:], asked[:1]):
            again = {o.claim_id: o.result for o in world.provider(CLUSTER).launch(some)}
            assert set(again) == {r.claim_id for r in some}
            for claim, result in again.items():
                before = first[claim]
                assert isinstance(before, Instance)
                assert isinstance(result, Instance)
                assert result.id == before.id
        world.until(lambda: len(live_instances(provider)) == 3)
        terminate_all(world, provider)

    def test_an_instance_comes_to_run_at_an_address_of_its_own(self, world: CloudWorld) -> None:
        """That is all that burstd waits for before it tries to reach it."""
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1", "c2")
        world.until(lambda: all(i.state is InstanceState.RUNNING and i.address for i in live_instances(provider)))
        assert len({i.address for i in live_instances(provider)}) == 2
        terminate_all(world, provider)

    def test_asking_twice_makes_one(self, world: CloudWorld) -> None:
        """At once where a token or name keeps it so; after settling where burstd must look first."""
        provider = world.provider(CLUSTER)
        (first,) = launch_and_wait(world, provider, "c1")
        if provider.idempotency is not Idempotency.SETTLE:
            again = launch_outcome(world, provider, "c1")
            assert isinstance(again, Instance)
            assert again.id == first.id
            both = provider.launch(recorded_requests(world, provider, "c1") * 2)
            assert {o.result.id for o in both if isinstance(o.result, Instance)} == {first.id}
        assert [i.id for i in live_instances(provider) if i.claim_id == first.claim_id] == [first.id]
        terminate_all(world, provider)

    def test_another_process_asking_again_makes_one(self, world: CloudWorld) -> None:
        """After a crash the request is repeated by a provider that remembers nothing."""
        provider = world.provider(CLUSTER)
        (first,) = launch_and_wait(world, provider, "c1")
        provider.close()
        again = world.provider(CLUSTER)
        if again.idempotency is not Idempotency.SETTLE:
            result = launch_outcome(world, again, "c1")
            assert isinstance(result, Instance)
            assert result.id == first.id
        assert len(live_instances(again)) == 1
        terminate_all(world, again)

    def test_user_data_arrives_unchanged(self, world: CloudWorld) -> None:
        """Letters beyond ASCII and dollar signs too."""
        provider = world.provider(CLUSTER)
        (instance,) = launch_and_wait(world, provider, "c1")
        assert world.user_data(instance.id) == launch_request(world, provider, "c1").user_data
        terminate_all(world, provider)

    def test_neighbours_are_not_seen(self, world: CloudWorld) -> None:
        """Neither instances nor leftovers of another cluster on the account."""
        ours, theirs = world.provider(CLUSTER), world.provider(OTHER_CLUSTER)
        (mine,) = launch_and_wait(world, ours, "c1")
        (other,) = launch_and_wait(world, theirs, "t1", cluster=OTHER_CLUSTER)
        assert [i.id for i in live_instances(ours)] == [mine.id]
        assert [i.id for i in live_instances(theirs)] == [other.id]
        assert {left.claim_id for left in ours.leftovers()} <= {mine.claim_id}
        terminate_all(world, ours)
        assert [i.id for i in live_instances(theirs)] == [other.id]
        terminate_all(world, theirs)

    def test_lists_of_many_pages_are_whole(self, world: CloudWorld) -> None:
        """Each instance once, and calls grow with pages, not with instances."""
        provider = world.provider(CLUSTER)
        count = 2 * world.page + 1
        made = launch_and_wait(world, provider, *(f"c{n}" for n in range(count)))
        _built(world, provider)
        before = world.calls()
        assert Counter(i.id for i in provider.instances() if not i.state.ended) == Counter(i.id for i in made)
        assert world.calls() - before <= 3 + world.more_calls
        terminate_all(world, provider)

    def test_terminate_until_gone(self, world: CloudWorld) -> None:
        """May be repeated, also for what is gone, and takes with it what belonged to the instance."""
        provider = world.provider(CLUSTER)
        gone, kept = launch_and_wait(world, provider, "c1", "c2")
        provider.terminate([gone.id])
        provider.terminate([gone.id])
        world.until(lambda: [i.id for i in live_instances(provider)] == [kept.id])
        provider.terminate([gone.id, kept.id])
        world.until(lambda: not live_instances(provider))
        provider.terminate([gone.id, kept.id])
        provider.terminate([])
        world.until(lambda: not list(provider.leftovers()))

    def test_leftovers_in_use_say_of_what(self, world: CloudWorld) -> None:
        """What is attached to an instance is either not listed or listed with the instance."""
        provider = world.provider(CLUSTER)
        (instance,) = launch_and_wait(world, provider, "c1")
        for left in provider.leftovers():
            expected = (provider.name, instance.claim_id, instance.id)
            assert (left.provider, left.claim_id, left.attached_to) == expected
        terminate_all(world, provider)

    @pytest.mark.parametrize("wrong", ["image", "type", "zone"])
    def test_what_can_never_be_is_a_bad_request(self, world: CloudWorld, wrong: str) -> None:
        """And is told of its own request only."""
        provider = world.provider(CLUSTER)
        good = launch_request(world, provider, "c1")
        bad = launch_request(world, provider, "c2")
        if wrong == "image":
            bad = replace(bad, image="no-such-image")
        elif wrong == "type":
            bad = replace(bad, offer=replace(bad.offer, instance_type="no-such-type"))
        else:
            bad = replace(bad, offer=replace(bad.offer, zone="no-such-zone"))
        results = {o.claim_id: o.result for o in prepare_and_launch(provider, [bad, good])}
        assert isinstance(results[good.claim_id], Instance)
        # An image that is not there some clouds find out when they fetch it.
        refused = settled_outcome(world, provider, results[bad.claim_id]) if wrong == "image" else results[bad.claim_id]
        assert isinstance(refused, BadRequest), refused
        world.until(lambda: [i.claim_id for i in live_instances(provider)] == [good.claim_id])
        terminate_all(world, provider)

    def test_versions_of_an_image_newest_first(self, world: CloudWorld) -> None:
        """A new one comes first, one that is withdrawn goes, each is its own only version and can be launched."""
        provider = world.provider(CLUSTER)
        if not isinstance(provider, VersionedImages):
            pytest.skip("its images have no versions")
        word, first = world.publish_image()
        assert list(provider.images(word)) == [first]
        made = [first, world.publish_image()[1], world.publish_image()[1]]
        before = world.calls()
        assert list(provider.images(word)) == made[::-1]
        assert world.calls() - before <= 2, "one call for each page"
        assert list(provider.images(first)) == [first]
        (asked,) = prepared_requests(provider, [replace(launch_request(world, provider, "c1"), image=made[-1])])
        assert isinstance(asked, LaunchRequest), repr(asked)
        assert isinstance(provider.launch([asked])[0].result, Instance)
        world.until(lambda: bool(live_instances(provider)))
        world.withdraw_image(made[-1])
        assert list(provider.images(word)) == made[-2::-1]
        for version in made[:-1]:
            world.withdraw_image(version)
        with pytest.raises(BadRequest):
            provider.images(word)
        terminate_all(world, provider)

    def test_optional_abilities(self, world: CloudWorld) -> None:
        """What a provider says it can do, it does."""
        provider = world.provider(CLUSTER)
        (instance,) = launch_and_wait(world, provider, "c1")
        if isinstance(provider, ConsoleLog):
            world.until(lambda: isinstance(provider, ConsoleLog) and provider.console(instance.id) != "")
            with pytest.raises(NotFound):
                provider.console("no-such-instance")
        if isinstance(provider, CloudClock):
            assert provider.cloud_time() > 1.7e9
        if isinstance(provider, QuotaReport):
            for quota in provider.quotas():
                assert quota.used >= 0
                assert quota.name
        if isinstance(provider, NoticeWatch):
            assert provider.watch_script()
        if isinstance(provider, NoticeSource):
            provider.acknowledge(provider.notices())
        if isinstance(provider, SelfCheck):
            findings = list(provider.check([world.image]))
            assert [f for f in findings if f.ok is False] == []
            assert all(f.subject and f.text for f in findings)
        terminate_all(world, provider)


REFUSALS: Sequence[tuple[Breakage, type[ProviderError]]] = (
    (Breakage.CAPACITY, InsufficientCapacity),
    (Breakage.QUOTA, QuotaExceeded),
    (Breakage.RATE, RateLimited),
    (Breakage.AUTH, AuthFailed),
    (Breakage.IMAGE, BadRequest),
    (Breakage.DOWN, CloudUnavailable),
)


class FaultContract:
    """What every provider must do on a cloud that breaks."""

    @pytest.fixture
    def world(self) -> FaultWorld:
        """To be overridden."""
        raise NotImplementedError

    @pytest.mark.parametrize(("how", "error"), REFUSALS, ids=[how.value for how, _ in REFUSALS])
    def test_each_refusal_has_its_error(self, world: FaultWorld, how: Breakage, error: type[ProviderError]) -> None:
        """So that burstd knows what to do next; nothing was made, and the next try works."""
        provider = world.provider(CLUSTER)
        world.inject_fault(how)
        result = settled_outcome(world, provider, launch_outcome(world, provider, "c1"))
        # An image that is not there may be its own kind of BadRequest.
        assert type(result) in (error, NoSuchImage if how is Breakage.IMAGE else error), repr(result)
        assert str(result)
        assert live_instances(provider) == []
        # A cloud may keep its answer to a claim for ever. burstd asks anew with another one, but after a rate limit.
        assert isinstance(launch_outcome(world, provider, "c1" if error is RateLimited else "c2"), Instance)
        world.until(lambda: len(live_instances(provider)) == 1)
        terminate_all(world, provider)

    def test_one_refusal_is_of_one_request(self, world: FaultWorld) -> None:
        """The others of the same call are served."""
        provider = world.provider(CLUSTER)
        world.inject_fault(Breakage.CAPACITY)
        outcomes = prepare_and_launch(provider, [launch_request(world, provider, f"c{n}") for n in range(3)])
        results = [settled_outcome(world, provider, outcome.result) for outcome in outcomes]
        assert sum(isinstance(one, InsufficientCapacity) for one in results) == 1
        assert sum(isinstance(one, Instance) for one in results) == 2
        world.until(lambda: len(live_instances(provider)) == 2)
        terminate_all(world, provider)

    def test_a_lost_answer_is_an_unknown_outcome(self, world: FaultWorld) -> None:
        """The instance is found by its claim, and asking again makes no second one."""
        provider = world.provider(CLUSTER)
        world.inject_fault(Breakage.LOST)
        result = launch_outcome(world, provider, "c1")
        assert isinstance(result, OutcomeUnknown), repr(result)
        world.until(lambda: [i.claim_id for i in live_instances(provider)] == [world.claim("c1")])
        if provider.idempotency is not Idempotency.SETTLE:
            again = launch_outcome(world, provider, "c1")
            assert isinstance(again, Instance)
            assert [i.id for i in live_instances(provider)] == [again.id]
        terminate_all(world, provider)

    def test_a_list_that_cannot_be_read_is_no_empty_list(self, world: FaultWorld) -> None:
        """Nor a short one when a later page fails."""
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, *(f"c{n}" for n in range(world.page + 1)))
        _built(world, provider)
        world.inject_fault(Breakage.LIST_DOWN)
        with pytest.raises(CloudUnavailable):
            list(provider.instances())
        pages = provider.instances()
        begun = list(islice(pages, world.page))
        world.inject_fault(Breakage.LIST_DOWN)
        with pytest.raises(CloudUnavailable):
            # Where all pages were read before the first was given, nothing is missing and the next list fails.
            _read_on(provider, begun, pages, world.page + 1)
        assert len(list(provider.instances())) == world.page + 1
        terminate_all(world, provider)

    def test_a_failed_termination_is_told_and_may_be_repeated(self, world: FaultWorld) -> None:
        """The others of the same call are ended all the same."""
        provider = world.provider(CLUSTER)
        made = launch_and_wait(world, provider, "c1", "c2")
        world.inject_fault(Breakage.TERMINATE)
        with pytest.raises(ProviderError):
            provider.terminate([i.id for i in made])
        world.until(lambda: len(live_instances(provider)) == 1)
        provider.terminate([i.id for i in made])
        world.until(lambda: not live_instances(provider))

    def test_a_leak_is_found_and_removed_by_its_owner_only(self, world: FaultWorld) -> None:
        """A neighbour is refused; removing twice is no error."""
        provider, neighbour = world.provider(CLUSTER), world.provider(OTHER_CLUSTER)
        (instance,) = launch_and_wait(world, provider, "c1")
        world.inject_fault(Breakage.LEAK)
        provider.terminate([instance.id])
        world.until(lambda: not live_instances(provider) and _free(provider) != [])
        leaked = _free(provider)
        assert {left.claim_id for left in leaked} == {instance.claim_id}
        assert list(neighbour.leftovers()) == []
        with pytest.raises(BadRequest):
            neighbour.remove(leaked)
        assert _free(provider) == leaked
        provider.remove(leaked)
        world.until(lambda: not list(provider.leftovers()))
        provider.remove(leaked)


def _built(world: CloudWorld, provider: Provider) -> None:
    """Some clouds move instances from one place to another as they build them, which shows in lists of few a page."""
    world.until(lambda: all(one.state is InstanceState.RUNNING for one in live_instances(provider)))


def _read_on(provider: Provider, begun: Sequence[Instance], pages: Iterator[Instance], count: int) -> None:
    assert len([*begun, *pages]) == count
    list(provider.instances())


def _free(provider: Provider) -> list[Leftover]:
    return [left for left in provider.leftovers() if not left.attached_to]
