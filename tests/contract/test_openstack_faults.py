"""The OpenStack provider on a real OpenStack that is full, slow, broken, stopped or deaf."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState, Leftover
from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    OutcomeUnknown,
    QuotaExceeded,
)
from burstd.testing.cloud_world import (
    CLUSTER,
    OTHER_CLUSTER,
    launch_and_wait,
    launch_outcome,
    launch_request,
    live_instances,
    prepare_and_launch,
    recorded_requests,
    settled_outcome,
)
from tests.contract.looks import count_by_type, launch_results, listed_instance, listed_state, remove_everything
from tests.lab.openstack import conf, seed
from tests.lab.openstack.proxy import says
from tests.lab.openstack.world import FREE, LAUNCH, LOGIN, NO_ID, Account, OpenStackWorld
from tests.lab.proxy import delay_until, drop_connection, lose_answer

pytestmark = pytest.mark.clouds

PORTS = "neutron POST /ports"
COMPUTES = tuple(f"nova-compute{number}" for number in range(1, len(conf.COMPUTES) + 1))
MINE = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: "c1"}
MARK = f"{TAG_CLUSTER}={CLUSTER} {TAG_CLAIM}=c1"
THEIR = {TAG_CLUSTER: OTHER_CLUSTER, TAG_CLAIM: "c1"}


@pytest.fixture
def world(openstack_world: OpenStackWorld) -> Iterator[OpenStackWorld]:
    """Sound again before the next test."""
    yield openstack_world
    openstack_world.cloud.faults()
    assert openstack_world.proxy.outstanding == []


@pytest.mark.thorough
class TestQuotas:
    @pytest.mark.parametrize(("name", "limit"), [("instances", 1), ("cores", 2), ("ram", 4096)])
    def test_of_servers(self, world: OpenStackWorld, name: str, limit: int) -> None:
        """One small machine is all there is room for. Nova says of what, and how much is left."""
        provider = world.provider(CLUSTER)
        world.limit(**{name: limit})
        (first,) = launch_and_wait(world, provider, "c1")
        refused = launch_outcome(world, provider, "c2")
        assert type(refused) is QuotaExceeded, repr(refused)
        assert f"{limit} of {limit} {name}" in str(refused)
        assert [one.id for one in live_instances(provider)] == [first.id]
        assert [port["device_id"] for port in world.resources()["ports"]] in ([first.id], [""])
        quota = next(one for one in provider.quotas() if one.name == name)
        assert (quota.limit, quota.used) == (limit, limit)
        remove_everything(world, provider)
        assert world.is_empty()

    def test_of_servers_when_some_are_asked_for_at_once(self, world: OpenStackWorld) -> None:
        """Nova may take them first and find out then, that they are too many."""
        provider = world.provider(CLUSTER)
        world.limit(instances=1)
        found = count_by_type(launch_results(world, provider, "c1", "c2", "c3"))
        assert found["Instance"] <= 1
        assert found["QuotaExceeded"] == 3 - found["Instance"]
        remove_everything(world, provider)
        assert world.is_empty()

    def test_of_ports(self, world: OpenStackWorld) -> None:
        """As many as there is room for are served."""
        provider = world.provider(CLUSTER)
        world.limit(ports=1)
        before = world.asked[LAUNCH]
        found = launch_results(world, provider, "c1", "c2")
        assert count_by_type(found) == {"Instance": 1, "QuotaExceeded": 1}
        assert world.asked[LAUNCH] == before + 1
        assert [port["name"] for port in world.resources()["ports"]] == [one.name for one in live_instances(provider)]
        remove_everything(world, provider)
        assert world.is_empty()


@pytest.mark.thorough
def test_no_gpu_left(world: OpenStackWorld) -> None:
    """Two hosts of eight: the fifth machine of four is taken, comes to nothing, and is ended."""
    provider = world.provider(CLUSTER, flavors=["gpu.4"])
    offers = {one.zone: one for one in provider.offers()}
    assert {str(offer.shape.gres[0]) for offer in offers.values()} == {"gpu:h100:4"}
    asked = [replace(launch_request(world, provider, f"c{n}"), offer=offers[f"az{n % 2 + 1}"]) for n in range(5)]
    made = [one.result for one in prepare_and_launch(provider, asked)]
    assert count_by_type(made) == {"Instance": 5}
    world.until(lambda: all(one.state is not InstanceState.PENDING for one in live_instances(provider)))
    (refused,) = (one for one in live_instances(provider) if one.state is InstanceState.ERROR)
    assert refused.cause == "capacity"
    assert refused.claim_id in {"c0", "c2", "c4"}, "of the zone that was asked for more"
    assert refused.error
    found = [settled_outcome(world, provider, one) for one in made]
    assert count_by_type(found) == {"Instance": 4, "InsufficientCapacity": 1}
    world.until(lambda: len(world.resources()["ports"]) == 4)
    remove_everything(world, provider)
    assert world.is_empty()


@pytest.mark.thorough
class TestBuilds:
    def test_a_slow_one_is_pending_and_then_runs(self, world: OpenStackWorld) -> None:
        provider = world.provider(CLUSTER)
        world.cloud.faults(spawn_delay=4)
        (made,) = launch_and_wait(world, provider, "c1")
        assert listed_state(provider, made) is InstanceState.PENDING
        world.until(lambda: listed_state(provider, made) is not InstanceState.PENDING)
        assert listed_state(provider, made) is InstanceState.RUNNING
        remove_everything(world, provider)
        assert world.is_empty()

    def test_one_that_is_ended_meanwhile_leaves_nothing(self, world: OpenStackWorld) -> None:
        provider = world.provider(CLUSTER)
        world.cloud.faults(spawn_delay=4)
        (made,) = launch_and_wait(world, provider, "c1")
        provider.terminate([made.id])
        world.until(lambda: listed_state(provider, made) is None)
        remove_everything(world, provider)
        assert world.is_empty()

    @pytest.mark.parametrize(("fault", "cause"), [("spawn_fail", ""), ("spawn_reschedule", "capacity")])
    def test_a_failed_one_is_in_error_until_it_is_ended(self, world: OpenStackWorld, fault: str, cause: str) -> None:
        """One that was given up on its host is of that machine alone; one that no host could build is a stockout."""
        provider = world.provider(CLUSTER)
        world.cloud.faults(**{fault: ".*-c1"})
        bad, good = launch_and_wait(world, provider, "c1", "c2")
        world.until(lambda: listed_state(provider, good) is InstanceState.RUNNING)
        world.until(lambda: listed_state(provider, bad) is InstanceState.ERROR)
        found = listed_instance(provider, bad)
        assert found is not None
        assert found.error
        assert found.cause == cause
        provider.terminate([bad.id])
        world.until(lambda: [one["name"] for one in world.resources()["ports"]] == [good.name])
        assert [one.id for one in provider.instances()] == [good.id]
        remove_everything(world, provider)
        assert world.is_empty()


def test_a_failed_end_is_in_error_and_may_be_repeated(world: OpenStackWorld) -> None:
    """It costs until it is gone: it is listed, and its port is not taken for a leftover of nobody's."""
    provider = world.provider(CLUSTER)
    (made,) = launch_and_wait(world, provider, "c1")
    world.until(lambda: listed_state(provider, made) is InstanceState.RUNNING)
    world.cloud.faults(destroy_fail=".*")
    provider.terminate([made.id])
    world.until(lambda: listed_state(provider, made) is InstanceState.ERROR)
    found = listed_instance(provider, made)
    assert found is not None
    assert (found.cause, found.claim_id) == ("", "c1")
    assert {left.attached_to for left in provider.leftovers()} <= {made.id}
    world.cloud.faults()
    provider.terminate([made.id])
    world.until(lambda: listed_state(provider, made) is None)
    remove_everything(world, provider)
    assert world.is_empty()


@pytest.mark.thorough
def test_computes_that_stop(world: OpenStackWorld) -> None:
    """Nothing is taken for what it is not, and when they go on all that was ended is gone."""
    provider = world.provider(CLUSTER)
    (old,) = launch_and_wait(world, provider, "c1")
    world.until(lambda: listed_state(provider, old) is InstanceState.RUNNING)
    with world.cloud.frozen(*COMPUTES):
        (stuck,) = launch_and_wait(world, provider, "c2")
        provider.terminate([old.id])
        assert (listed_state(provider, old), listed_state(provider, stuck)) == (
            InstanceState.STOPPING,
            InstanceState.PENDING,
        )
        world.until(lambda: all(computes_down(world)))
        assert (listed_state(provider, old), listed_state(provider, stuck)) == (
            InstanceState.STOPPING,
            InstanceState.PENDING,
        )
        refused = settled_outcome(world, provider, launch_outcome(world, provider, "c3"))
        assert type(refused) is InsufficientCapacity, repr(refused)
        provider.terminate([stuck.id])
    world.until(lambda: list(provider.instances()) == [])
    remove_everything(world, provider)
    assert world.is_empty()
    world.until(lambda: not any(computes_down(world)))
    # What an older list of zones says must not keep the next machine from them.
    assert isinstance(settled_outcome(world, provider, launch_outcome(world, provider, "c4")), Instance)
    remove_everything(world, provider)


def computes_down(world: OpenStackWorld) -> list[bool]:
    """For each of Nova's hosts, whether Nova takes it for dead."""
    with world.cloud.admin() as admin:
        return [one.state == "down" for one in admin.compute.services() if one.binary == "nova-compute"]


class TestAnswersThatDoNotCome:
    def test_a_frozen_api_makes_no_orphan(self, world: OpenStackWorld) -> None:
        """The server that it makes later is found by its claim; asked for again, it is not made again."""
        provider, patient = world.provider(CLUSTER, timeout_s=5), world.provider(CLUSTER)
        asked = recorded_requests(world, provider, "c1")
        launch_and_wait(world, provider, "c0")
        with world.cloud.frozen("nova-api"):
            (outcome,) = provider.launch(asked)
            assert isinstance(outcome.result, OutcomeUnknown), repr(outcome.result)
            with pytest.raises(CloudUnavailable):
                list(provider.instances())
        world.until(lambda: [one.claim_id for one in live_instances(patient)] == ["c0", "c1"])
        (again,) = patient.launch(asked)
        assert isinstance(again.result, OutcomeUnknown), repr(again.result)
        assert [one.claim_id for one in live_instances(patient)] == ["c0", "c1"]
        remove_everything(world, patient)
        assert world.is_empty()

    def test_a_call_that_is_carried_out_after_its_repeat_makes_no_second_machine(self, world: OpenStackWorld) -> None:
        """However late it comes: the first server finds no port, and the second keeps its own."""
        provider = world.provider(CLUSTER, timeout_s=5)
        asked = recorded_requests(world, provider, "c1")
        late, done = threading.Event(), threading.Event()
        world.proxy.order(LAUNCH, delay_until(late, done))
        (first,) = provider.launch(asked)
        assert isinstance(first.result, OutcomeUnknown), repr(first.result)
        patient = world.provider(CLUSTER)
        (second,) = patient.launch(asked)
        assert isinstance(second.result, Instance), repr(second.result)
        made = second.result
        late.set()
        assert done.wait(60)
        world.until(lambda: all(one.state is not InstanceState.PENDING for one in live_instances(patient)))
        assert [one.id for one in live_instances(patient) if one.state is not InstanceState.ERROR] == [made.id]
        found = listed_instance(patient, made)
        assert found is not None
        assert found.address
        remove_everything(world, patient)
        assert world.is_empty()

    def test_several_that_are_asked_for_again_before_they_are_built(self, world: OpenStackWorld) -> None:
        """Nova has given none of them its port yet. Each is seen all the same, and made once."""
        provider = world.provider(CLUSTER)
        asked = recorded_requests(world, provider, "c1", "c2", "c3")
        with world.cloud.frozen("nova-conductor"):
            assert count_by_type([one.result for one in provider.launch(asked)]) == {"Instance": 3}
            assert [port["device_id"] for port in world.resources()["ports"]] == [""] * 3
            again = world.provider(CLUSTER).launch(asked)
            assert count_by_type([one.result for one in again]) == {"OutcomeUnknown": 3}, again
        world.until(lambda: [one.state for one in live_instances(provider)] == [InstanceState.RUNNING] * 3)
        assert len(world.resources()["ports"]) == 3
        remove_everything(world, provider)
        assert world.is_empty()

    def test_a_frozen_neutron_leaves_ports_that_are_found(self, world: OpenStackWorld) -> None:
        """No server was asked for, and that is said; what it makes later bears its claim."""
        provider, hasty = world.provider(CLUSTER), world.provider(CLUSTER, timeout_s=2)
        world.proxy.order(PORTS, lose_answer)
        lost_ports = launch_outcome(world, provider, "c1")
        asked = recorded_requests(world, provider, "c2")
        # It knows the way then, however long it took.
        world.until(lambda: list(hasty.instances()) == [])
        with world.cloud.frozen("neutron"):
            (frozen,) = (one.result for one in hasty.launch(asked))
        assert [type(one) for one in (lost_ports, frozen)] == [CloudUnavailable, CloudUnavailable]
        world.until(lambda: "c1" in {left.claim_id for left in provider.leftovers()})
        assert world.resources()["servers"] == []
        patient = world.provider(CLUSTER)
        launch_and_wait(world, patient, "c1")
        assert len([one for one in world.resources()["ports"] if one["name"] == "ours-c1"]) == 1
        remove_everything(world, patient)
        assert world.is_empty()


class TestCredentials:
    def test_a_token_that_is_worth_nothing_any_more_is_replaced(self, world: OpenStackWorld) -> None:
        """In good time: the very call that found out is made again, once."""
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1")
        token = world.token(provider)
        with world.cloud.admin() as admin:
            admin.identity.delete("/auth/tokens", headers={"X-Subject-Token": token})
        world.until(lambda: not any(is_good(world, token, port) for port in (conf.NOVA, conf.NEUTRON)))
        logins = world.asked[LOGIN]
        assert isinstance(launch_outcome(world, provider, "c2"), Instance)
        assert world.asked[LOGIN] == logins + 1
        world.proxy.order(LAUNCH, says(401, "The request you have made requires authentication."))
        assert isinstance(launch_outcome(world, provider, "c3"), Instance)
        world.until(lambda: [one.claim_id for one in live_instances(provider)] == ["c1", "c2", "c3"])
        remove_everything(world, provider)
        assert world.is_empty()

    @pytest.mark.parametrize("password", [True, False])
    def test_wrong_ones_are_told_without_them(self, world: OpenStackWorld, password: bool) -> None:
        key = "password" if password else "application_credential_secret"
        file = world.clouds_yaml({key: "not-the-secret"}, password=password)
        provider = world.provider(CLUSTER, clouds_yaml=file)
        with pytest.raises(AuthFailed) as caught:
            list(provider.instances())
        assert "clouds.yaml" in str(caught.value)
        assert "not-the-secret" not in "".join(traceback.format_exception(caught.value))
        assert any(one.ok is False and one.remedy for one in provider.check([world.image]))

    def test_a_keystone_that_does_not_answer_says_nothing_of_credentials(self, world: OpenStackWorld) -> None:
        provider = world.provider(CLUSTER, timeout_s=1)
        with world.cloud.frozen("keystone"), pytest.raises(CloudUnavailable):
            list(provider.instances())
        assert list(world.provider(CLUSTER).instances()) == []


def is_good(world: OpenStackWorld, token: str, port: int) -> bool:
    """Whether a service still takes it: each remembers tokens for some seconds."""
    path = {conf.NOVA: "v2.1/servers", conf.NEUTRON: "v2.0/ports"}[port]
    with world.cloud.reach():
        answer = httpx.get(
            f"http://{conf.HOST}:{port}/{path}", headers={"X-Auth-Token": token}, timeout=30, trust_env=False
        )
    return answer.status_code != 401


class TestWhatIsLeft:
    def test_a_port_of_a_launch_that_was_cut_short(self, world: OpenStackWorld) -> None:
        """It is found by its mark and removed, as often as one likes."""
        provider = world.provider(CLUSTER)
        world.proxy.order(LAUNCH, drop_connection)
        assert isinstance(launch_outcome(world, provider, "c1"), OutcomeUnknown)
        (left,) = provider.leftovers()
        assert (left.kind, left.claim_id, left.attached_to) == ("port", "c1", "")
        neighbour = world.provider(OTHER_CLUSTER)
        assert list(neighbour.leftovers()) == []
        with pytest.raises(BadRequest):
            neighbour.remove([left])
        provider.remove([left])
        provider.remove([left])
        assert world.is_empty()

    def test_what_a_server_that_is_gone_still_holds(self, world: OpenStackWorld) -> None:
        """Neither Neutron nor Cinder lets it go: not before it is freed."""
        provider = world.provider(CLUSTER)
        with world.owner() as owner:
            port = owner.network.create_port(
                network_id=world.project.network_id, name="ours-c1", description=MARK, device_id=NO_ID,
                device_owner="compute:az1",
            )  # fmt: skip
            assert owner.network.delete(f"/ports/{port.id}").status_code == 403
            volume = owner.block_storage.create_volume(name="ours-c1", size=1, metadata=MINE)
            world.until(lambda: owner.block_storage.get_volume(volume.id).status == "available")
            held_by = {"attachment": {"volume_uuid": volume.id, "instance_uuid": NO_ID}}
            assert owner.block_storage.post("/attachments", json=held_by, microversion="3.27").status_code == 200
            assert owner.block_storage.delete(f"/volumes/{volume.id}").status_code == 400
        found = list(provider.leftovers())
        assert {left.kind for left in found} == {"port", "volume"}
        provider.remove(found)
        world.until(world.is_empty)

    def test_ports_that_another_project_has_on_our_network(self, world: OpenStackWorld, tmp_path: Path) -> None:
        """Who owns the network sees them, and Neutron would delete them. They may be of our very claim."""
        provider, other = world.provider(CLUSTER), OpenStackWorld(world.account, tmp_path)
        network = world.project.network_id
        with world.owner() as owner, other.owner() as guest:
            owner.network.create_rbac_policy(
                object_type="network", object_id=network, action="access_as_shared", target_tenant=other.project.id
            )
            port = guest.network.create_port(network_id=network, name="ours-c1", description=MARK).id
            assert [one.description for one in owner.network.ports(id=port)] == [MARK]
        assert list(provider.leftovers()) == []
        with pytest.raises(BadRequest, match=port):
            provider.remove([Leftover("port", port, provider.name, "c1", "")])
        launch_and_wait(world, provider, "c1")
        remove_everything(world, provider)
        with other.owner() as guest:
            guest.network.delete_port(port, ignore_missing=False)
        other.close()

    def test_neighbours_of_all_kinds_stay_as_they_are(self, openstack_account: Account, tmp_path: Path) -> None:
        """Field by field, when all that we made and leaked is gone."""
        world = OpenStackWorld(openstack_account, tmp_path, router=True)
        strange(world)
        before = world.resources()
        assert {kind: len(things) for kind, things in before.items()}["servers"] == 2
        provider = world.provider(
            CLUSTER,
            flavors=["cpu.small"],
            floating_network=seed.EXTERNAL,
            root={"gib": 1},
            gang_policy="soft-affinity",
            unused_s=0,
        )
        asked = [replace(launch_request(world, provider, f"c{n}"), gang="job 7") for n in range(2)]
        made = [one.result for one in prepare_and_launch(provider, asked)]
        assert count_by_type(made) == {"Instance": 2}, made
        world.until(lambda: [one.state for one in live_instances(provider)] == [InstanceState.RUNNING] * 2)
        assert len({one.address for one in live_instances(provider)} - {""}) == 2
        assert {left.attached_to for left in provider.leftovers()} == {one.id for one in live_instances(provider)}
        for kind in (FREE, "neutron DELETE /floatingips/ID"):
            world.proxy.order(kind, says(204))
        provider.terminate([one.id for one in live_instances(provider)])
        world.until(lambda: list(provider.instances()) == [])
        assert {left.kind for left in provider.leftovers()} >= {"port", "floating-ip", "server-group"}
        remove_everything(world, provider)
        assert world.resources() == before
        world.close()


def strange(world: OpenStackWorld) -> None:
    """Things of somebody else's, as like to ours as may be."""
    with world.owner() as owner:
        image = owner.image.find_image(seed.IMAGE, ignore_missing=False).id
        flavor = owner.compute.find_flavor("cpu.small", ignore_missing=False).id
        networks = [{"uuid": world.project.network_id}]
        outside = owner.network.find_network(seed.EXTERNAL, ignore_missing=False).id
        for text in ("", MARK.replace(CLUSTER, OTHER_CLUSTER), f"not {MARK}", f"{MARK} any more"):
            owner.network.create_port(network_id=world.project.network_id, name="ours-c1", description=text)
            owner.network.create_ip(floating_network_id=outside, description=text)
        for number, metadata in enumerate((THEIR, {f"x-{key}": value for key, value in MINE.items()})):
            owner.compute.create_server(
                name=f"ours-c{number}", image_id=image, flavor_id=flavor, networks=networks, metadata=metadata
            )
            owner.block_storage.create_volume(name="ours-c1", size=1, metadata=metadata)
        for name in (f"burstd/{OTHER_CLUSTER}/1/job 7", f"burstd-{CLUSTER}", f"burstd/{CLUSTER}"):
            owner.compute.create_server_group(name=name, policy="soft-affinity")

        def is_done() -> bool:
            servers, volumes = list(owner.compute.servers()), list(owner.block_storage.volumes())
            return {one.status for one in servers} == {"ACTIVE"} and {one.status for one in volumes} == {"available"}

        world.until(is_done)
