"""The OpenShift provider on a real Kubernetes that is full or refuses what it is asked for.

The nodes are hollow: what a kubelet would say of containers they say on order. Everything else is Kubernetes itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.cloud.volume import DiskRequest
from burstd.domain.errors import (
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NotAllowed,
    OutcomeUnknown,
    QuotaExceeded,
    RateLimited,
)
from burstd.testing.cloud_world import (
    CLUSTER,
    OTHER_CLUSTER,
    launch_and_wait,
    launch_outcome,
    launch_request,
    live_instances,
    prepare_and_launch,
    settled_outcome,
)
from tests.contract.looks import (
    count_by_type,
    launch_results,
    launch_until_running,
    listed_state,
    remove_everything,
    wait_for_state,
)
from tests.lab.kubernetes import orders
from tests.lab.kubernetes.orders import Order
from tests.lab.kubernetes.proxy import says
from tests.lab.kubernetes.world import CLAIMS, CPUS, GPUS, KIND, LAUNCH, OpenShiftWorld
from tests.lab.proxy import Act, Answer, Asked, Forward

pytestmark = pytest.mark.clouds

RUNNING, PENDING, ERROR = InstanceState.RUNNING, InstanceState.PENDING, InstanceState.ERROR
MINE = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: "c1"}


@pytest.fixture
def world(openshift_world: OpenShiftWorld) -> OpenShiftWorld:
    return openshift_world


class TestQuotas:
    @pytest.mark.parametrize(
        ("resource", "hard"),
        [("pods", "1"), ("requests.cpu", "4"), ("limits.memory", "16Gi"), ("requests.nvidia.com/gpu", "3")],
    )
    def test_of_the_namespace(self, world: OpenShiftWorld, resource: str, hard: str) -> None:
        """One machine is all there is room for. Kubernetes says of what; when that one is gone there is room again."""
        provider = world.provider(CLUSTER, groups=GPUS)
        world.quota({resource: hard})
        (first,) = launch_and_wait(world, provider, "c1")
        refused = launch_outcome(world, provider, "c2")
        assert type(refused) is QuotaExceeded, repr(refused)
        assert f"{resource}=" in str(refused)
        assert world.pods() == [first.id]
        (line,) = (one for one in provider.quotas() if resource in one.name)
        assert 0 < line.used <= line.limit
        provider.terminate([first.id])
        world.until(lambda: isinstance(launch_outcome(world, provider, "c3"), Instance))
        remove_everything(world, provider)

    def test_when_some_are_asked_for_at_once(self, world: OpenShiftWorld) -> None:
        """As many as there is room for are served."""
        provider = world.provider(CLUSTER)
        world.quota({"requests.cpu": "5"})
        assert count_by_type(launch_results(world, provider, *(f"c{n}" for n in range(5)))) == {
            "Instance": 2,
            "QuotaExceeded": 3,
        }
        remove_everything(world, provider)
        assert world.pods() == []

    @pytest.mark.parametrize("resource", [CLAIMS, "pods"])
    def test_of_scratch_volumes(self, world: OpenShiftWorld, resource: str) -> None:
        """No pod without its volume, and no volume is left of a pod that was refused."""
        provider = world.provider(CLUSTER, scratch={"storage_class": ""})
        world.quota({resource: "1"})
        (first,) = launch_and_wait(world, provider, "c1")
        refused = launch_outcome(world, provider, "c2")
        assert type(refused) is QuotaExceeded, repr(refused)
        assert world.pods() == [first.id]
        provider.remove([left for left in provider.leftovers() if not left.attached_to])
        world.until(lambda: world.claims() == [first.id])
        remove_everything(world, provider)
        world.until(lambda: world.claims() == [])


class TestRoom:
    def test_too_few_gpus(self, world: OpenShiftWorld) -> None:
        """Two nodes of four: the fifth machine of two is taken, comes to nothing, and is ended."""
        provider = world.provider(CLUSTER, groups=GPUS)
        (offer,) = provider.offers()
        assert [str(gres) for gres in offer.shape.gres] == ["gpu:h100:2"]
        asked = [launch_request(world, provider, f"c{n}") for n in range(5)]
        made = [one.result for one in prepare_and_launch(provider, asked)]
        found = [settled_outcome(world, provider, one) for one in made]
        assert count_by_type(found) == {"Instance": 4, "InsufficientCapacity": 1}
        (refused,) = (one for one in found if isinstance(one, InsufficientCapacity))
        assert "Insufficient nvidia.com/gpu" in str(refused)
        world.until(lambda: [one.state for one in live_instances(provider)] == [RUNNING] * 4)
        assert len(world.pods()) == 4
        remove_everything(world, provider)

    def test_a_taint_that_is_not_tolerated(self, world: OpenShiftWorld) -> None:
        """It is a stockout, in the scheduler's words; with the toleration it is room."""
        with world.node("tainted") as node:
            group = {**CPUS, "selector": {KIND: node}}
            provider = world.provider(CLUSTER, groups={"own": group})
            asked = launch_request(world, provider, "c1")
            world.taint(node, "lab/maintenance")
            (outcome,) = prepare_and_launch(provider, [asked])
            refused = settled_outcome(world, provider, outcome.result)
            assert type(refused) is InsufficientCapacity, repr(refused)
            assert "lab/maintenance" in str(refused)
            assert world.pods() == []
            tolerations = [{"key": "lab/maintenance", "operator": "Exists"}]
            tolerant = world.provider(CLUSTER, groups={"own": {**group, "tolerations": tolerations}})
            launch_until_running(world, tolerant, "c2")
            remove_everything(world, tolerant)

    def test_a_node_that_comes_in_time(self, world: OpenShiftWorld) -> None:
        """Where nodes are made when pods wait for them, waiting is no stockout."""
        group = {**CPUS, "selector": {KIND: "scaled"}, "autoscaled": True}
        provider = world.provider(CLUSTER, groups={"own": group}, unschedulable_s=0)
        (made,) = launch_and_wait(world, provider, "c1")
        world.until(lambda: world.condition(made.id, "PodScheduled").get("reason") == "Unschedulable")
        assert listed_state(provider, made) is PENDING
        with world.node("scaled"):
            wait_for_state(world, provider, made, RUNNING)
            remove_everything(world, provider)

    def test_a_node_that_does_not_come(self, world: OpenShiftWorld) -> None:
        group = {**CPUS, "selector": {KIND: "none"}, "autoscaled": True}
        provider = world.provider(CLUSTER, groups={"own": group}, autoscale_s=1)
        (refused,) = launch_results(world, provider, "c1")
        assert type(refused) is InsufficientCapacity, repr(refused)
        assert world.pods() == []

    @pytest.mark.parametrize("order", [orders.rejected(), orders.no_device(), orders.not_admitted()])
    def test_a_node_that_has_less_than_the_scheduler_thought(self, world: OpenShiftWorld, order: Order) -> None:
        """The pod never ran: it is a stockout too."""
        provider = world.provider(CLUSTER)
        world.hollow.order("*-c1", order)
        (refused,) = launch_results(world, provider, "c1")
        assert type(refused) is InsufficientCapacity, repr(refused)
        assert world.pods() == []


class TestImages:
    @pytest.mark.parametrize(
        ("order", "words"),
        [
            (orders.no_image(), "not found"),
            (orders.image_denied(), "denied"),
            (orders.bad_image_name(), "invalid reference format"),
        ],
    )
    def test_one_that_will_never_come(self, world: OpenShiftWorld, order: Order, words: str) -> None:
        """That is known at once. It is of the image, not of the place, and named; the pod is ended."""
        provider = world.provider(CLUSTER, image_pull_s=600)
        world.hollow.order("*-c1", order)
        (made,) = launch_and_wait(world, provider, "c1")
        found = wait_for_state(world, provider, made, ERROR)
        assert found.cause == "image"
        assert words in found.error
        assert world.image in found.error
        provider.terminate([made.id])
        world.until(lambda: world.pods() == [])

    def test_a_registry_that_is_down(self, world: OpenShiftWorld) -> None:
        """That may pass, and is borne for a while."""
        provider = world.provider(CLUSTER, image_pull_s=1)
        world.hollow.order("*-c1", orders.registry_down())
        world.hollow.order("*-c2", orders.registry_down().then(orders.running().after(0.2)))
        lasting, passing = launch_and_wait(world, provider, "c1", "c2")
        assert listed_state(provider, lasting) is PENDING
        wait_for_state(world, provider, passing, RUNNING)
        found = wait_for_state(world, provider, lasting, ERROR)
        assert (found.cause, "no such host" in found.error or "Back-off" in found.error) == ("image", True)
        remove_everything(world, provider)

    def test_a_container_that_cannot_be_made(self, world: OpenShiftWorld) -> None:
        """As where the Secret of the key is missing."""
        provider = world.provider(CLUSTER)
        world.hollow.order("*-c1", orders.config_error())
        (made,) = launch_and_wait(world, provider, "c1")
        found = wait_for_state(world, provider, made, ERROR)
        assert found.cause == "request"
        assert 'secret "munge" not found' in found.error
        remove_everything(world, provider)


class TestVolumes:
    def test_a_claim_that_is_not_there(self, world: OpenShiftWorld) -> None:
        """No machine of these settings can ever run, and the claim is named."""
        provider = world.provider(CLUSTER, mounts=[{"claim": "home", "path": "/home"}])
        (refused,) = launch_results(world, provider, "c1")
        assert type(refused) is BadRequest, repr(refused)
        assert "home" in str(refused)
        assert world.pods() == []

    def test_a_claim_that_is_never_bound(self, world: OpenShiftWorld) -> None:
        provider = world.provider(CLUSTER, mounts=[{"claim": "home", "path": "/home"}])
        world.claim_volume("home", bound=False)
        (refused,) = launch_results(world, provider, "c1")
        assert type(refused) is BadRequest, repr(refused)
        assert "home" in str(refused)
        assert world.claims() == ["home"]

    def test_a_claim_that_several_mount(self, world: OpenShiftWorld) -> None:
        """It stays when they go."""
        provider = world.provider(CLUSTER, mounts=[{"claim": "home", "path": "/home"}])
        world.claim_volume("home", bound=True)
        launch_until_running(world, provider, "c1", "c2")
        remove_everything(world, provider)
        assert world.claims() == ["home"]

    def test_scratch_goes_with_its_machine(self, world: OpenShiftWorld) -> None:
        """By Kubernetes' own hand: also where burstd is gone by then."""
        provider = world.provider(CLUSTER, scratch={"storage_class": "standard", "size": "1G"})
        (made,) = launch_until_running(world, provider, "c1")
        assert world.claims() == [made.id]
        assert [left.attached_to for left in provider.leftovers()] in ([made.id], [])
        world.api.delete(f"{world.path}/pods/{made.id}")
        world.until(lambda: world.claims() == [])
        assert list(provider.leftovers()) == []

    def test_a_users_volume_that_the_quota_does_not_allow(self, world: OpenShiftWorld) -> None:
        """One that is there already is not refused: quotas are looked at before names."""
        provider = world.provider(CLUSTER)
        provider.create_disk(DiskRequest("v-1", "", 1 << 30, {}))
        world.quota({"persistentvolumeclaims": "1"})
        provider.create_disk(DiskRequest("v-1", "", 1 << 30, {}))
        with pytest.raises(QuotaExceeded, match="exceeded quota"):
            provider.create_disk(DiskRequest("v-2", "", 1 << 30, {}))
        assert [disk.volume_id for disk in provider.disks()] == ["v-1"]

    def test_a_users_volume_whose_name_is_taken(self, world: OpenShiftWorld) -> None:
        """What is there is nobody's volume, and stays."""
        provider = world.provider(CLUSTER)
        world.claim_volume("ours-v-1", bound=False)
        with pytest.raises(BadRequest, match="does not bear the volume label"):
            provider.create_disk(DiskRequest("v-1", "", 1 << 30, {}))
        assert list(provider.disks()) == []
        assert world.claims() == ["ours-v-1"]

    def test_scratch_that_can_never_be_had(self, world: OpenShiftWorld) -> None:
        provider = world.provider(CLUSTER, scratch={"storage_class": "no-such-class"})
        (refused,) = launch_results(world, provider, "c1")
        assert type(refused) is BadRequest, repr(refused)
        remove_everything(world, provider)
        world.until(lambda: world.claims() == [])


class TestNames:
    """A name can be had once: 409 says that it is taken, and a look at the pod, by whom."""

    @pytest.mark.parametrize("labels", [{}, {**MINE, TAG_CLAIM: "c9"}, {**MINE, TAG_CLUSTER: OTHER_CLUSTER}])
    def test_of_somebody_else(self, world: OpenShiftWorld, labels: Mapping[str, str]) -> None:
        """It is not ours, and stays as it is."""
        provider = world.provider(CLUSTER)
        world.stranger("ours-c1", **labels)
        before = world.resources()
        refused = launch_outcome(world, provider, "c1")
        assert type(refused) is BadRequest, repr(refused)
        assert "ours-c1" in str(refused)
        assert world.resources() == before

    def test_of_ours_that_is_on_its_way_out(self, world: OpenShiftWorld) -> None:
        """It is not taken for the one that is asked for, nor is another made before it is gone."""
        provider = world.provider(CLUSTER)
        (made,) = launch_until_running(world, provider, "c1")
        uids = world.uids()
        with world.with_finalizer(made.id):
            provider.terminate([made.id])
            again = launch_outcome(world, provider, "c1")
            assert isinstance(again, OutcomeUnknown), repr(again)
        world.until(lambda: isinstance(launch_outcome(world, provider, "c1"), Instance))
        assert world.pods() == [made.id]
        assert not uids & world.uids()
        remove_everything(world, provider)

    def test_a_conflict_with_another_change(self, world: OpenShiftWorld) -> None:
        """Nothing was done, which is not to be taken for a name that is taken."""
        provider = world.provider(CLUSTER)
        words = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
        world.proxy.order(LAUNCH, says(409, words))
        refused = launch_outcome(world, provider, "c1")
        assert isinstance(refused, CloudUnavailable), repr(refused)
        assert world.pods() == []
        launch_until_running(world, provider, "c1")
        remove_everything(world, provider)

    def test_a_scratch_volume_of_somebody_else(self, world: OpenShiftWorld) -> None:
        """What is in it is none of ours: it is neither mounted nor removed."""
        provider = world.provider(CLUSTER, scratch={"storage_class": ""})
        world.claim_volume("ours-c1", bound=True)
        before = world.resources()
        refused = launch_outcome(world, provider, "c1")
        assert type(refused) is BadRequest, repr(refused)
        remove_everything(world, provider)
        assert world.resources()["pods"] == []
        assert _names(world.resources()[CLAIMS]) == _names(before[CLAIMS])


class TestRefusals:
    @pytest.mark.parametrize(
        "words",
        [
            {"labels": {"not a label!": "x"}},
            {"priority_class": "no-such-class"},
            {"runtime_class": "no-such-class"},
            {"service_account": "no-such-account"},
        ],
        ids=lambda words: next(iter(words)),
    )
    def test_settings_that_can_never_be(self, world: OpenShiftWorld, words: Mapping[str, Any]) -> None:
        """422, and the 403 that Kubernetes says of names it does not know: the word is named."""
        provider = world.provider(CLUSTER, **words)
        refused = launch_outcome(world, provider, "c1")
        assert type(refused) is BadRequest, repr(refused)
        assert any(word in str(refused) for word in ("not a label!", "no-such-class", "no-such-account"))
        assert world.pods() == []

    def test_a_limit_range(self, world: OpenShiftWorld) -> None:
        """It is of this size of machine."""
        provider = world.provider(CLUSTER)
        asked = launch_request(world, provider, "c1")
        limit = {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}
        world.create("limitranges", "LimitRange", "small", limit)
        world.until(lambda: world.refuses_pods({"cpu": "2"}))
        (outcome,) = prepare_and_launch(provider, [asked])
        assert type(outcome.result) is BadRequest, repr(outcome.result)
        assert "maximum cpu usage per Container is 1" in str(outcome.result)

    def test_a_right_that_is_missing(self, world: OpenShiftWorld) -> None:
        """What is to be done about it is said."""
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        provider = world.provider(CLUSTER, kubeconfig=world.account(rules))
        asked = launch_request(world, world.provider(CLUSTER), "c1")
        (outcome,) = prepare_and_launch(provider, [asked])
        assert type(outcome.result) is NotAllowed, repr(outcome.result)
        assert "config/openshift/role.yaml" in str(outcome.result)
        assert list(provider.instances()) == []

    @pytest.mark.parametrize("there", [False, True], ids=["no namespace", "namespace on its way out"])
    def test_a_namespace(self, world: OpenShiftWorld, there: bool) -> None:
        asked = launch_request(world, world.provider(CLUSTER), "c1")
        everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        kubeconfig = world.account(everything, everywhere=True)
        name = f"{world.namespace}-other"
        if there:
            world.plane.namespace(name, finalizers=["lab.example/hold"])
            world.api.delete(f"/api/v1/namespaces/{name}")
        provider = world.provider(CLUSTER, kubeconfig=kubeconfig, namespace=name)
        (outcome,) = prepare_and_launch(provider, [asked])
        if there:
            world.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"finalizers": None}})
        assert type(outcome.result) is BadRequest, repr(outcome.result)
        assert name in str(outcome.result)

    def test_a_webhook_of_the_cluster_that_is_down(self, world: OpenShiftWorld) -> None:
        """Nothing can be made meanwhile; that is of the cluster, and not of what was asked for."""
        provider = world.provider(CLUSTER)
        with world.broken_webhook():
            refused = launch_outcome(world, provider, "c1")
            assert type(refused) is CloudUnavailable, repr(refused)
            assert list(provider.instances()) == []
        world.until(lambda: isinstance(launch_outcome(world, provider, "c1"), Instance))
        remove_everything(world, provider)

    def test_too_many_calls(self, world: OpenShiftWorld) -> None:
        """Nothing was done, and it is known when to ask again."""
        provider = world.provider(CLUSTER)
        world.proxy.order(LAUNCH, says(429, "The server is currently handling too many requests", Retry_After="7"))
        refused = launch_outcome(world, provider, "c1")
        assert isinstance(refused, RateLimited), repr(refused)
        assert refused.retry_after_s == 7
        assert world.pods() == []

    @pytest.mark.parametrize("status", [500, 503, 504])
    def test_an_error_of_the_server(self, world: OpenShiftWorld, status: int) -> None:
        """It may have been done. Asked again, there is one."""
        provider = world.provider(CLUSTER)
        world.proxy.order(LAUNCH, followed_by(says(status, "etcdserver: request timed out")))
        unknown = launch_outcome(world, provider, "c1")
        assert isinstance(unknown, OutcomeUnknown), repr(unknown)
        (made,) = world.pods()
        again = launch_outcome(world, provider, "c1")
        assert isinstance(again, Instance)
        assert again.id == made
        remove_everything(world, provider)


def followed_by(other: Act) -> Act:
    """It is carried out, and then something else is said of it."""

    def act(asked: Asked, forward: Forward) -> Answer | None:
        forward(asked)
        return other(asked, forward)

    return act


def _names(things: list[dict[str, Any]]) -> list[str]:
    return [one["metadata"]["name"] for one in things]
