"""Pods that end, by whose hand ever, and what is left of them, on a real Kubernetes.

The nodes are hollow: what a kubelet would say of containers they say on order. Everything else is Kubernetes itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState, Leftover
from burstd.domain.errors import BadRequest, OutcomeUnknown
from burstd.domain.plugins.provider import NoticeKind
from burstd.testing.cloud_world import CLUSTER, OTHER_CLUSTER, launch_outcome
from providers.openshift.provider import OpenShiftProvider
from tests.contract.looks import launch_until_running, listed_state, remove_everything, wait_for_state
from tests.lab.kubernetes import orders
from tests.lab.kubernetes.orders import Order
from tests.lab.kubernetes.world import CLAIMS, CPUS, KEEPER, KIND, LAUNCH, PATIENT, Ground, OpenShiftWorld
from tests.lab.proxy import drop_connection

pytestmark = pytest.mark.clouds

RUNNING, STOPPING, TERMINATED = InstanceState.RUNNING, InstanceState.STOPPING, InstanceState.TERMINATED


@pytest.fixture
def world(openshift_world: OpenShiftWorld) -> OpenShiftWorld:
    return openshift_world


class Deserted(NamedTuple):
    """A machine whose node was deleted, with all that goes with it."""

    world: OpenShiftWorld
    provider: OpenShiftProvider
    made: Instance


@pytest.fixture(scope="module", autouse=True)
def deserted(kubernetes_ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deserted]:
    """From the beginning of the file: what comes of it takes as long as the other tests."""
    world = OpenShiftWorld(kubernetes_ground, tmp_path_factory.mktemp("deserted"))
    world.hollow.add("deserted", labels={KIND: "deserted"})
    provider = world.provider(CLUSTER, groups={"own": {**CPUS, "selector": {KIND: "deserted"}}}, **PATIENT)
    (made,) = launch_until_running(world, provider, "c1")
    world.hollow.remove("deserted")
    yield Deserted(world, provider, made)
    world.close()


class TestEnds:
    def test_an_eviction(self, world: OpenShiftWorld) -> None:
        """It is announced with its time, so that jobs are requeued and output comes home; then the pod is gone."""
        provider = world.provider(CLUSTER, **PATIENT)
        world.hollow.default(orders.running().with_end_time(4.0))
        evicted, ended = launch_until_running(world, provider, "c1", "c2")
        world.evict(evicted.id)
        provider.terminate([ended.id])
        wait_for_state(world, provider, ended, STOPPING)
        world.until(lambda: bool(provider.notices()))
        # It works on as long as it has time.
        assert listed_state(provider, evicted) is RUNNING
        (notice,) = provider.notices()
        assert (notice.instance_id, notice.kind) == (evicted.id, NoticeKind.INTERRUPTION)
        assert notice.deadline is not None
        assert 60 < notice.deadline - time.time() <= 121
        provider.acknowledge([notice])
        assert list(provider.notices()) == []
        world.until(lambda: list(provider.instances()) == [])

    @pytest.mark.parametrize(
        ("order", "words"),
        [
            (orders.evicted(), "low on resource: memory"),
            (orders.out_of_memory(), "OOMKilled"),
            (orders.exited(1), "1"),
            (orders.exited(0), ""),
        ],
    )
    def test_a_pod_that_ends_by_itself(self, world: OpenShiftWorld, order: Order, words: str) -> None:
        """The machine is gone, and it is said why. What is left of it is removed, by its owner only."""
        provider, neighbour = world.provider(CLUSTER, **PATIENT), world.provider(OTHER_CLUSTER)
        (made,) = launch_until_running(world, provider, "c1")
        world.hollow.become(world.namespace, made.id, order)
        found = wait_for_state(world, provider, made, TERMINATED)
        assert words in found.error
        assert found.error
        (left,) = (one for one in provider.leftovers() if not one.attached_to)
        assert (left.id, left.claim_id) == (made.id, "c1")
        with pytest.raises(BadRequest):
            neighbour.remove([left])
        provider.remove([left])
        world.until(lambda: list(provider.instances()) == [] and world.pods() == [])

    def test_a_pod_that_somebody_else_deletes(self, world: OpenShiftWorld) -> None:
        """At once and by force: it is missed, with a watch and without."""
        listing, watching = world.provider(CLUSTER), world.provider(CLUSTER, **PATIENT)
        gone, kept = launch_until_running(world, watching, "c1", "c2")
        world.api.delete(f"{world.path}/pods/{gone.id}", grace_s=0)
        for provider in (listing, watching):
            world.until(lambda provider=provider: [one.id for one in provider.instances()] == [kept.id])  # type: ignore[misc]
        remove_everything(world, watching)

    def test_a_finalizer_of_somebody_else(self, world: OpenShiftWorld) -> None:
        """The pod is ending until whoever set it lets it go, and it is said whose it is."""
        provider = world.provider(CLUSTER, force_after_s=0)
        (made,) = launch_until_running(world, provider, "c1")
        with world.with_finalizer(made.id):
            provider.terminate([made.id])
            world.until(lambda: KEEPER in wait_for_state(world, provider, made, STOPPING).error)
            provider.terminate([made.id])
            assert world.pods() == [made.id]
        world.until(lambda: list(provider.instances()) == [])
        assert list(provider.leftovers()) == []

    def test_a_node_that_is_lost(self, world: OpenShiftWorld) -> None:
        """Its pods are ending by Kubernetes' hand, and nobody confirms it. burstd may end them for good."""
        with world.node("lost") as node:
            group = {**CPUS, "selector": {KIND: node}}
            provider = world.provider(CLUSTER, groups={"own": group}, grace_s=1, force_after_s=600, **PATIENT)
            (made,) = launch_until_running(world, provider, "c1")
            world.hollow.silence(node)
            wait_for_state(world, provider, made, STOPPING)
            assert [one.instance_id for one in provider.notices()] == [made.id]
            provider.terminate([made.id])
            assert listed_state(provider, made) is STOPPING
            sure = world.provider(CLUSTER, groups={"own": group}, force_after_s=0)

            def is_gone() -> bool:
                sure.terminate([made.id])
                return world.pods() == []

            world.until(is_gone)
            world.until(lambda: list(provider.instances()) == [])


class TestWhatIsLeft:
    def test_of_a_launch_that_was_cut_short(self, world: OpenShiftWorld) -> None:
        """A scratch volume whose pod never came: found by its claim, removed as often as one likes, by its owner."""
        provider, neighbour = world.provider(CLUSTER, scratch={"storage_class": ""}), world.provider(OTHER_CLUSTER)
        world.proxy.order(LAUNCH, drop_connection)
        assert isinstance(launch_outcome(world, provider, "c1"), OutcomeUnknown)
        (left,) = provider.leftovers()
        assert (left.claim_id, left.attached_to) == ("c1", "")
        assert list(neighbour.leftovers()) == []
        with pytest.raises(BadRequest):
            neighbour.remove([left])
        assert len(world.claims()) == 1
        provider.remove([left])
        provider.remove([left])
        world.until(lambda: world.claims() == [])

    def test_neighbours_of_all_kinds_stay_as_they_are(self, world: OpenShiftWorld) -> None:
        """Field by field, when all that we made and left is gone."""
        strange(world)
        before = world.resources()
        assert {kind: len(things) for kind, things in before.items()}["pods"] == 6
        provider = world.provider(CLUSTER, scratch={"storage_class": ""}, **PATIENT)
        made = launch_until_running(world, provider, "c1", "c2", "c3")
        assert {one.id for one in provider.instances()} == {one.id for one in made}
        world.hollow.become(world.namespace, made[0].id, orders.out_of_memory())
        wait_for_state(world, provider, made[0], TERMINATED)
        world.api.patch(f"{world.path}/{CLAIMS}/{made[1].id}", {"metadata": {"ownerReferences": []}})
        own = [left for left in provider.leftovers() if not left.attached_to]
        assert [left.id for left in own if left.kind == "pod"] == [made[0].id]
        for kind, word in (("pods", "pod"), (CLAIMS, "volume"), ("services", "service")):
            for thing in before[kind]:
                forged = Leftover(word, thing["metadata"]["name"], provider.name, "c1", "")
                with pytest.raises(BadRequest):
                    provider.remove([*own, forged])
        assert made[0].id in world.pods(), "nothing is removed where one of them is not ours"
        provider.terminate([one.id for one in made[1:]])
        remove_everything(world, provider)
        world.until(lambda: world.resources() == before)


def strange(world: OpenShiftWorld) -> None:
    """Things of somebody else's, as like to ours as may be."""
    labels: list[dict[str, str]] = [
        {},
        {TAG_CLAIM: "c1"},
        {TAG_CLUSTER: CLUSTER},
        {TAG_CLUSTER: OTHER_CLUSTER, TAG_CLAIM: "c1"},
        {TAG_CLUSTER: CLUSTER, "burstd-store": "bench"},
        {f"x-{TAG_CLUSTER}": CLUSTER, f"x-{TAG_CLAIM}": "c1"},
    ]
    for number, one in enumerate(labels):
        name = f"ours-x{number}"
        world.stranger(name, **one)
        world.claim_volume(name, bound=True, **one)
        port = {"ports": [{"port": 80}]}
        world.create("services", "Service", name, port, labels=one)
        world.create("configmaps", "ConfigMap", name, {}, labels=one)
    held = world.resources
    world.until(lambda: {one["status"]["phase"] for one in held()[CLAIMS]} == {"Bound"})


def test_a_node_that_is_deleted(deserted: Deserted) -> None:
    """Kubernetes removes its pods when it has looked for the node for forty seconds; until then nobody knows."""
    world, provider, made = deserted
    assert listed_state(provider, made) in (RUNNING, None)
    world.until(lambda: list(provider.instances()) == [], patience_s=90)
    assert world.pods() == []
    assert list(provider.leftovers()) == []
