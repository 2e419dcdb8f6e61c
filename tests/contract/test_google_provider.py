"""The Google provider on the lab's Compute Engine, with burstd's role: the contract, and what it must survive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, DiskRequest
from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    NoSuchImage,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Gres
from burstd.testing.cloud_world import (
    CLUSTER,
    launch_and_wait,
    launch_outcome,
    launch_request,
    live_instances,
    terminate_all,
)
from burstd.testing.provider_contract import FaultContract, ProviderContract
from burstd.testing.volume_contract import VolumeContract
from providers.google.calls import GoogleCalls
from providers.google.labels import instance_name
from providers.google.provider import GoogleProvider
from tests.lab.google.cloud import ZONES
from tests.lab.google.server import Fault
from tests.lab.google.world import INSERT, LIST, PROJECT, GoogleWorld, role_permissions

pytestmark = pytest.mark.clouds

DELETE, OPERATIONS, DISKS = "compute.instances.delete", "compute.zoneOperations.list", "compute.disks.list"


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def world(key: rsa.RSAPrivateKey, tmp_path: Path) -> Iterator[GoogleWorld]:
    made = GoogleWorld(tmp_path, key)
    yield made
    made.close()


class TestGoogle(ProviderContract, FaultContract, VolumeContract):
    @pytest.fixture
    def world(self, world: GoogleWorld) -> GoogleWorld:
        return world


def offer(provider: GoogleProvider, instance_type: str, *, spot: bool = False) -> Offer:
    """The first of this type and market."""
    return next(one for one in provider.offers() if (one.instance_type, one.spot) == (instance_type, spot))


def launched(world: GoogleWorld, provider: GoogleProvider, **words: Any) -> dict[str, Any]:
    """What Google was asked for, for one machine."""
    (outcome,) = provider.launch([replace(launch_request(world, provider, "c1"), **words)])
    assert isinstance(outcome.result, Instance), outcome
    return world.instance(outcome.result.id).said


def refused(provider: GoogleProvider) -> list[Instance]:
    return [one for one in provider.instances() if one.state is InstanceState.ERROR]


def requests(world: GoogleWorld, provider: GoogleProvider, count: int) -> list[LaunchRequest]:
    first = launch_request(world, provider, "c0")
    return [
        replace(first, claim_id=f"c{n}", name=f"n{n}", tags={**first.tags, "burstd-claim": f"c{n}"})
        for n in range(count)
    ]


class TestRefusedLate:
    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "capacity"),
            ("STOCKOUT", "capacity"),
            ("IP_SPACE_EXHAUSTED", "capacity"),
            ("QUOTA_EXCEEDED", "quota"),
            ("PERMISSIONS_ERROR", "denied"),
            ("INVALID_USAGE", "request"),
            ("INTERNAL_ERROR", ""),
        ],
    )
    def test_an_operation_that_fails_is_an_instance_in_error(self, world: GoogleWorld, code: str, cause: str) -> None:
        provider = world.provider(CLUSTER)
        world.project.faults.late.append(code)
        made = launch_outcome(world, provider, "c1")
        assert isinstance(made, Instance)
        assert list(provider.instances()) == []
        world.until(lambda: bool(refused(provider)))
        (found,) = refused(provider)
        assert (found.id, found.claim_id, found.cause) == (made.id, "c1", cause)
        assert code in found.error
        # A process that remembers nothing finds it too, and ends it.
        again = world.provider(CLUSTER)
        assert [one.id for one in refused(again)] == [made.id]
        assert list(world.provider("another").instances()) == []
        again.terminate([made.id])
        assert list(again.instances()) == []

    def test_operations_are_listed_only_while_a_launch_may_fail(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1")
        live_instances(provider)
        assert world.server.calls[OPERATIONS] > 0
        world.pass_time(3600)
        live_instances(provider)
        before = world.server.calls.copy()
        live_instances(provider)
        assert world.server.calls - before == Counter({LIST: len(ZONES)})

    def test_what_a_half_made_machine_leaves_is_found(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        world.project.faults.late.append("ZONE_RESOURCE_POOL_EXHAUSTED")
        world.project.faults.half = 1
        launch_outcome(world, provider, "c1")
        world.until(lambda: bool(refused(provider)))
        (left,) = provider.leftovers()
        assert (left.kind, left.claim_id) == ("disk", "c1")
        provider.remove([left])
        assert world.project.disks == {}

    def test_where_the_head_s_clock_is_off(self, world: GoogleWorld) -> None:
        """Google's times are compared with Google's clock: the head's is of another century here."""
        settings = world.settings(CLUSTER)
        provider = GoogleProvider("google", CLUSTER, settings, GoogleCalls(settings), clock=lambda: world.now - 3e9)
        world.project.faults.late.append("STOCKOUT")
        launch_outcome(world, provider, "c1")
        world.until(lambda: bool(refused(provider)))
        assert provider.cloud_time() == int(world.now)
        provider.close()


class TestRepeated:
    def test_after_google_has_forgotten_the_request(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        (first,) = launch_and_wait(world, provider, "c1")
        world.project.forget_requests()
        again = launch_outcome(world, world.provider(CLUSTER), "c1")
        assert isinstance(again, Instance)
        assert again.id == first.id
        assert len(world.project.instances) == 1

    def test_a_name_that_somebody_else_has_taken(self, world: GoogleWorld) -> None:
        theirs = world.provider("another")
        launch_and_wait(world, theirs, "c1", cluster="another")
        found = launch_outcome(world, world.provider(CLUSTER), "c1")
        assert isinstance(found, BadRequest)
        assert instance_name("c1") in str(found)
        assert len(live_instances(theirs)) == 1

    def test_one_that_exists_and_cannot_be_read_is_unknown(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1")
        world.project.forget_requests()
        world.refuse("compute.instances.get", 503, "backendError")
        assert isinstance(launch_outcome(world, provider, "c1"), OutcomeUnknown)

    @pytest.mark.parametrize("status", [500, 503, 504])
    def test_an_answer_that_says_nothing_is_unknown(self, world: GoogleWorld, status: int) -> None:
        provider = world.provider(CLUSTER)
        world.refuse(INSERT, status, "backendError")
        assert isinstance(launch_outcome(world, provider, "c1"), OutcomeUnknown)

    def test_a_list_that_lags(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        world.project.faults.lag_s = 30
        first = launch_outcome(world, provider, "c1")
        second = launch_outcome(world, provider, "c2")
        assert isinstance(first, Instance)
        assert isinstance(second, Instance)
        assert list(provider.instances()) == []
        again = launch_outcome(world, provider, "c1")
        assert isinstance(again, Instance)
        assert again.id == first.id
        provider.terminate([second.id])
        world.pass_time(31)
        assert [one.id for one in live_instances(provider)] == [first.id]


class TestRefusals:
    def test_a_storm_of_429_is_not_answered_by_one_of_calls(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER, side_by_side=4)
        many = requests(world, provider, 40)
        world.refuse(INSERT, 429, "rateLimitExceeded", times=100, **{"Retry-After": "7"})
        outcomes = provider.launch(many)
        assert {type(one.result) for one in outcomes} == {RateLimited}
        assert {one.result.retry_after_s for one in outcomes if isinstance(one.result, RateLimited)} == {7.0}
        assert world.server.calls[INSERT] <= 4

    def test_a_token_that_has_expired_is_renewed(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        provider.offers()
        world.server.expire_tokens()
        assert isinstance(launch_outcome(world, provider, "c1"), Instance)

    def test_an_account_that_is_gone(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        world.server.accounts.clear()
        with pytest.raises(AuthFailed, match="account not found") as caught:
            list(provider.instances())
        assert "PRIVATE" not in str(caught.value)

    def test_a_service_that_is_off_is_no_fault_of_the_credentials(self, world: GoogleWorld) -> None:
        """Other threads go on with the connections and the token that they have."""
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1")
        begun = provider.instances()
        next(begun)
        tokens = [len(one.tokens) for one in world.server.accounts.values()]
        world.refuse("cloudresourcemanager.projects.testIamPermissions", 403, "accessNotConfigured")
        assert any("accessNotConfigured" in one.text for one in provider.check([]))
        assert list(begun) == []
        assert [len(one.tokens) for one in world.server.accounts.values()] == tokens

    def test_connections_that_are_closed_in_the_middle_of_a_list(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER, zones=[ZONES[1]])
        world.project.faults.late.append("STOCKOUT")
        launch_outcome(world, provider, "c1")
        world.pass_time(60)
        launch_and_wait(world, provider, "c2")
        # Where the last page of machines has come, Google's clock is wanted next.
        listed = provider.instances()
        next(listed)
        provider.close()
        assert [one.claim_id for one in listed] == ["c1"]

    def test_a_new_key_needs_no_restart(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        provider.offers()
        world.server.accounts.clear()
        with pytest.raises(AuthFailed):
            list(provider.instances())
        file = world.settings(CLUSTER).credentials_file
        assert file is not None
        file.write_text(world.server.account("renewed", world.rights)[1], encoding="utf-8")
        assert list(provider.instances()) == []

    @pytest.mark.parametrize("text", ["{}", '{"type": "authorized_user"}', "-----BEGIN PRIVATE KEY-----"])
    def test_a_key_file_that_is_none(self, world: GoogleWorld, tmp_path: Path, text: str) -> None:
        file = tmp_path / "other.json"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(AuthFailed, match=r"other\.json") as caught:
            world.provider(CLUSTER, credentials_file=str(file)).offers()
        assert "BEGIN" not in str(caught.value)

    def test_credentials_of_the_head_s_own_machine(
        self, world: GoogleWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        world.server.head, _ = world.server.account("head", world.rights)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, world.server.url.removeprefix("http://"))
        provider = world.provider(CLUSTER, credentials_file=None)
        assert isinstance(launch_outcome(world, provider, "c1"), Instance)

    @pytest.mark.parametrize("code", ["UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED"])
    @pytest.mark.parametrize("method", [LIST, OPERATIONS, DISKS, "compute.machineTypes.list"])
    def test_a_part_of_a_list_is_no_list(self, world: GoogleWorld, method: str, code: str) -> None:
        provider = world.provider(CLUSTER)

        def read() -> None:
            provider.offers()
            for things in (provider.instances(), provider.disks(), provider.leftovers()):
                list(things)

        world.server.faults.append(Fault(method, edit=lambda said: said.update(warning={"code": code})))
        with pytest.raises(CloudUnavailable, match=rf"part of the list \({code}\)"):
            read()
        world.server.faults.append(Fault(method, edit=lambda said: said.update(warning={"code": "NO_RESULTS_ON_PAGE"})))
        read()

    def test_what_cannot_be_a_name_is_never_sent(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        asked = replace(launch_request(world, provider, "c1"), claim_id="C_1")
        (outcome,) = provider.launch([asked])
        assert isinstance(outcome.result, BadRequest)
        for strange in ("web", "europe-west4-a/web", "../7"):
            with pytest.raises(BadRequest):
                provider.terminate([strange])
            with pytest.raises(NotFound):
                provider.console(strange)
        assert world.server.calls[DELETE] == world.server.calls[INSERT] == 0

    def test_user_data_that_is_too_long(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        asked = replace(launch_request(world, provider, "c1"), user_data="x" * (256 << 10) + "x")
        (outcome,) = provider.launch([asked])
        assert isinstance(outcome.result, BadRequest)


class TestLives:
    def test_one_that_somebody_deleted(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        gone, kept = launch_and_wait(world, provider, "c1", "c2")
        world.project.delete(world.instance(gone.id))
        world.until(lambda: [one.id for one in live_instances(provider)] == [kept.id])
        world.pass_time(10)
        provider.terminate([gone.id])
        assert [one.id for one in provider.instances()] == [kept.id]

    def test_one_that_switches_itself_off_is_to_be_deleted(self, world: GoogleWorld) -> None:
        """Google keeps it, with its disk."""
        provider = world.provider(CLUSTER)
        (made,) = launch_and_wait(world, provider, "c1")
        world.until(lambda: live_instances(provider)[0].state is InstanceState.RUNNING)
        world.project.halt(world.instance(made.id))
        (found,) = live_instances(provider)
        assert (found.state, found.cause) == (InstanceState.ERROR, "")
        assert "TERMINATED" in found.error
        terminate_all(world, provider)

    @pytest.mark.parametrize("polls", [0, 1, 2])
    def test_a_spot_vm_that_is_taken_back_says_so_in_every_list(self, world: GoogleWorld, polls: int) -> None:
        """``polls`` see it stop; the planner takes nothing for gone that a single list says so of."""
        provider = world.provider(CLUSTER)
        asked = replace(launch_request(world, provider, "c1"), offer=offer(provider, "n2-standard-2", spot=True))
        (outcome,) = provider.launch([asked])
        assert isinstance(outcome.result, Instance)
        world.until(lambda: bool(live_instances(provider)))
        assert live_instances(provider)[0].spot
        world.pass_time(7200)
        world.project.preempt(world.instance(outcome.result.id), 30.0)
        for state in (*[InstanceState.STOPPING] * polls, *[InstanceState.TERMINATED] * 3):
            if state is InstanceState.TERMINATED:
                world.pass_time(30.0)
            (found,) = provider.instances()
            assert (found.id, found.state) == (outcome.result.id, state)
            assert "preempted" in found.error
        world.pass_time(900.0)
        assert list(provider.instances()) == []
        before = world.server.calls.copy()
        assert list(provider.instances()) == []
        assert world.server.calls - before == Counter({LIST: len(ZONES)})

    def test_one_that_burstd_has_ended_needs_no_reason(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        (made,) = launch_and_wait(world, provider, "c1")
        world.pass_time(3600)
        list(provider.instances())
        before = world.server.calls.copy()
        provider.terminate([made.id])
        (found,) = provider.instances()
        assert (found.state, found.error) == (InstanceState.STOPPING, "")
        world.pass_time(10)
        assert list(provider.instances()) == []
        assert world.server.calls - before == Counter({DELETE: 1, LIST: 2 * len(ZONES)})

    def test_the_end_that_google_keeps(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER, max_run_h=2)
        launch_and_wait(world, provider, "c1")
        world.pass_time(2 * 3600 - 60)
        assert len(live_instances(provider)) == 1
        world.pass_time(120)
        world.until(lambda: list(provider.instances()) == [])
        assert world.project.disks == {}


class TestRequests:
    def test_one_on_demand_without_gpus(self, world: GoogleWorld) -> None:
        said = launched(world, world.provider(CLUSTER, labels={"group": "physics"}))
        assert said["scheduling"] == {
            "provisioningModel": "STANDARD", "onHostMaintenance": "MIGRATE", "automaticRestart": False,
        }  # fmt: skip
        assert said["labels"] == {"group": "physics", "burstd-cluster": CLUSTER, "burstd-claim": "c1"}
        assert said["disks"][0]["initializeParams"]["labels"] == said["labels"]
        assert said["disks"][0]["autoDelete"]
        assert said["networkInterfaces"] == [
            {"subnetwork": f"projects/{PROJECT}/regions/europe-west4/subnetworks/burst"}
        ]
        assert said["tags"] == {"items": ["burst"]}
        assert "serviceAccounts" not in said

    def test_a_spot_vm_with_all_that_the_settings_know(self, world: GoogleWorld) -> None:
        provider = world.provider(
            CLUSTER, max_run_h=24, preemption_notice_s=60, public_address=True,
            service_account=f"node@{PROJECT}.iam.gserviceaccount.com", live_migration=False,
            disk={"gib": 50, "type": "pd-ssd", "kms_key": "projects/p/locations/l/keyRings/r/cryptoKeys/k"},
        )  # fmt: skip
        said = launched(world, provider, offer=offer(provider, "n2-standard-2", spot=True))
        assert said["scheduling"] == {
            "provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": False,
            "instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "86400"},
            "preemptionNoticeDuration": {"seconds": "60"},
        }  # fmt: skip
        assert said["networkInterfaces"][0]["accessConfigs"]
        (disk,) = said["disks"]
        assert disk["diskEncryptionKey"]["kmsKeyName"].endswith("/k")
        assert (disk["initializeParams"]["diskSizeGb"], disk["initializeParams"]["diskType"].rpartition("/")[2]) == (
            "50", "pd-ssd",
        )  # fmt: skip
        assert ":-90}" in provider.watch_script()

    def test_gpus_in_the_type_and_attached_to_it(self, world: GoogleWorld) -> None:
        words = ["g2-standard-8", "n1-standard-*+nvidia-tesla-t4:2"]
        provider = world.provider(CLUSTER, machine_types=words, zones=list(ZONES), gpu_names={"nvidia-l4": "ada"})
        found = {(one.instance_type, one.zone): one.shape.gres for one in provider.offers() if not one.spot}
        attached = "n1-standard-4+nvidia-tesla-t4:2"
        assert found == {
            ("g2-standard-8", ZONES[0]): (Gres("gpu", "ada", 1),),
            ("g2-standard-8", ZONES[1]): (Gres("gpu", "ada", 1),),
            (attached, ZONES[0]): (Gres("gpu", "t4", 2),),
        }
        said = launched(world, provider, offer=offer(provider, attached))
        (one,) = said["guestAccelerators"]
        assert (one["acceleratorType"].rpartition("/")[2], one["acceleratorCount"]) == ("nvidia-tesla-t4", 2)
        assert said["scheduling"]["onHostMaintenance"] == "TERMINATE"
        assert [i.instance_type for i in provider.instances()] == [attached]

    def test_lists_do_not_carry_user_data(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1")
        asked = [query for method, query in world.server.queries if method == LIST]
        assert asked
        assert all("metadata" not in query["fields"] for query in asked)

    def test_calls_grow_with_pages(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER, page=20)
        provider.launch(requests(world, provider, 45))
        world.until(lambda: len(live_instances(provider)) == 45)
        before = world.server.calls.copy()
        assert len(live_instances(provider)) == 45
        assert world.server.calls - before == Counter({LIST: 3 + 1, OPERATIONS: len(ZONES)})


class TestZones:
    def test_what_is_in_a_zone_that_the_settings_leave_out_by_now_is_seen(self, world: GoogleWorld) -> None:
        before = world.provider(CLUSTER, zones=[ZONES[1]])
        (made,) = launch_and_wait(world, before, "c1")
        before.create_disk(replace(disk_request("v1"), zone=ZONES[1]))
        world.project.faults.leak = 1
        after = world.provider(CLUSTER, zones=[ZONES[0]])
        assert [one.id for one in live_instances(after)] == [made.id]
        assert [one.zone for one in after.disks()] == [ZONES[1]]
        after.terminate([made.id])
        world.until(lambda: [one.claim_id for one in after.leftovers()] == ["c1"])

    def test_what_is_in_another_region_is_another_provider_s(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        (made,) = launch_and_wait(world, provider, "c1")
        provider.create_disk(disk_request("v1"))
        world.instance(made.id).zone = "us-central1-a"
        for disk in world.project.disks.values():
            disk.zone, disk.user = "us-central1-a", ""
        assert [*provider.instances(), *provider.disks(), *provider.leftovers()] == []


class TestOffers:
    def test_prices_are_added_up_from_the_price_list(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER, machine_types=["n2-standard-2", "g2-*", "t2a-*"], public_address=True)
        prices = {(one.instance_type, one.spot): one.price for one in provider.offers()}
        address = Decimal("0.005")
        assert prices["n2-standard-2", False] == 2 * Decimal("0.034806") + 8 * Decimal("0.004664") + address
        on_demand = 8 * Decimal("0.027517") + 32 * Decimal("0.003224") + Decimal("0.616")
        assert prices["g2-standard-8", False] == on_demand + address
        assert prices["g2-standard-8", True] < on_demand / 3
        assert offer(provider, "t2a-standard-4").hardware.architecture == "aarch64"
        assert {one.price_source for one in provider.offers()} == {"price list"}
        memory = {one.instance_type: one.hardware.gpu_memory_mib for one in provider.offers()}
        assert memory == {"n2-standard-2": 0, "g2-standard-8": 24 << 10, "t2a-standard-4": 0}

    def test_what_has_no_price_is_not_offered(self, world: GoogleWorld) -> None:
        """Of a type with local SSDs the list has all but these."""
        provider = world.provider(CLUSTER, machine_types=["a2-*", "e2-*", "n2-standard-2"])
        assert {one.instance_type for one in provider.offers()} == {"n2-standard-2"}
        found = {one.subject: one for one in provider.check([])}
        assert "a2-ultragpu-1g, e2-small" in found["prices"].text
        priced = world.provider(
            CLUSTER, machine_types=["a2-*", "e2-*"], prices={"a2-ultragpu-1g": "5"}, price_list=False
        )
        (one,) = priced.offers()
        assert (one.instance_type, one.price, one.spot) == ("a2-ultragpu-1g", Decimal(5), False)
        assert (one.hardware.local_disk_gib, one.hardware.gpu_memory_mib) == (375, 80 << 10)

    def test_without_a_price_list(self, world: GoogleWorld) -> None:
        world.refuse("cloudbilling.services.skus.list", 403, "accessNotConfigured", times=100)
        provider = world.provider(CLUSTER)
        with pytest.raises(BadRequest, match="accessNotConfigured"):
            provider.offers()
        assert world.server.calls["cloudbilling.services.skus.list"] == 1

    def test_all_zones_of_the_region(self, world: GoogleWorld) -> None:
        assert {one.zone for one in world.provider(CLUSTER, zones=[]).offers()} == set(ZONES)


class TestImages:
    def test_deprecated_ones_are_no_versions(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        world.project.add_image("node-1", "node")
        world.project.images["node-1"].state = "DEPRECATED"
        first = f"projects/{PROJECT}/global/images/node-0"
        assert list(provider.images("")) == list(provider.images(f"family:{PROJECT}/node")) == [first]
        assert list(provider.images("node-0")) == list(provider.images(f"{PROJECT}/node-0")) == [first]

    @pytest.mark.parametrize("word", ["family:none", "none", "others/node-0", "ami-1/x/y", "family:"])
    def test_what_is_no_image(self, world: GoogleWorld, word: str) -> None:
        provider = world.provider(CLUSTER)
        with pytest.raises(NoSuchImage):
            provider.images(word)
        (outcome,) = provider.launch([replace(launch_request(world, provider, "c1"), image=word)])
        assert isinstance(outcome.result, NoSuchImage)


def disk_request(volume_id: str, cluster: str = CLUSTER) -> DiskRequest:
    tags = {TAG_VOLUME_CLUSTER: cluster, TAG_VOLUME: volume_id}
    return DiskRequest(volume_id, ZONES[0], 10 << 30, tags)


class TestVolumes:
    def test_asking_twice_makes_one(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        for _ in range(2):
            provider.create_disk(disk_request("v1"))
        world.project.forget_requests()
        provider.create_disk(disk_request("v1"))
        (disk,) = provider.disks()
        assert disk.device_paths == (
            "/dev/disk/by-id/google-burstd-volume-v1", "/dev/disk/by-id/scsi-0Google_PersistentDisk_burstd-volume-v1",
        )  # fmt: skip

    def test_a_name_that_somebody_else_has_taken(self, world: GoogleWorld) -> None:
        world.provider("another").create_disk(disk_request("v1", "another"))
        provider = world.provider(CLUSTER)
        with pytest.raises(BadRequest, match="alreadyExists"):
            provider.create_disk(disk_request("v1"))
        assert list(provider.disks()) == []

    def test_one_that_is_refused_late_says_so_once_and_is_asked_for_anew(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        for _ in range(2):
            provider.create_disk(disk_request("v1"))
            failed = world.project.operations[-1]
            failed.errors = [{"code": "QUOTA_EXCEEDED", "message": "Quota 'SSD_TOTAL_GB' exceeded."}]
            world.project.disks.clear()
            world.pass_time(60)
            with pytest.raises(QuotaExceeded, match="SSD_TOTAL_GB"):
                provider.create_disk(disk_request("v1"))
        # The quota is raised.
        provider.create_disk(disk_request("v1"))
        assert [one.volume_id for one in provider.disks()] == ["v1"]

    @pytest.mark.parametrize(("status", "reason"), [(404, "notFound"), (503, "backendError"), (403, "forbidden")])
    def test_one_that_exists_and_cannot_be_read_is_unknown(self, world: GoogleWorld, status: int, reason: str) -> None:
        provider = world.provider(CLUSTER)
        provider.create_disk(disk_request("v1"))
        world.project.forget_requests()
        world.refuse("compute.disks.get", status, reason)
        with pytest.raises(OutcomeUnknown, match=reason):
            provider.create_disk(disk_request("v1"))

    def test_one_that_bears_the_labels_of_both_is_no_leftover(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        provider.create_disk(disk_request("v1"))
        (disk,) = world.project.disks.values()
        disk.labels = {**disk.labels, "burstd-cluster": CLUSTER}
        assert list(provider.leftovers()) == []
        with pytest.raises(BadRequest, match=disk.id):
            provider.remove([Leftover("disk", f"{disk.zone}/{disk.id}", "google", "")])
        assert len(list(provider.disks())) == 1

    @pytest.mark.parametrize("label", ["burstd-cluster", "burstd-volume", "burstd-x"])
    def test_labels_of_the_settings_are_none_of_burstd_s(self, world: GoogleWorld, label: str) -> None:
        with pytest.raises(ValueError, match="burstd's own"):
            world.settings(CLUSTER, labels={label: CLUSTER})

    def test_what_google_makes_no_disk_of(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        for wrong in (disk_request("V_1"), replace(disk_request("v1"), size_bytes=1 << 30)):
            with pytest.raises(BadRequest):
                provider.create_disk(wrong)

    def test_one_that_somebody_attached_elsewhere_is_not_free(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER)
        provider.create_disk(disk_request("v1"))
        theirs = world.provider("another")
        (other,) = launch_and_wait(world, theirs, "t1", cluster="another")
        (disk,) = provider.disks()
        machine = world.instance(other.id)
        world.project.attach(machine, world.project.disks[disk.id.rpartition("/")[2]], "data")
        assert [one.attached_to for one in provider.disks()] == [f"{ZONES[0]}/{machine.name}"]
        with pytest.raises(BadRequest, match="attached"):
            provider.delete_disk(disk.id)


class TestRights:
    def test_the_role_has_what_calls_take_and_no_more(self, world: GoogleWorld) -> None:
        provider = world.provider(
            CLUSTER, zones=[], public_address=True, service_account=f"node@{PROJECT}.iam.gserviceaccount.com",
            machine_types=["n2-standard-2", "n1-standard-4+nvidia-tesla-t4:1"],
        )  # fmt: skip
        (made,) = launch_and_wait(world, provider, "c1")
        world.project.forget_requests()
        launch_outcome(world, provider, "c1")
        world.until(lambda: live_instances(provider)[0].state is InstanceState.RUNNING)
        assert provider.console(made.id)
        assert [one for one in provider.check([world.image]) if one.ok is False] == []
        world.project.faults.leak = 1
        provider.terminate([made.id])
        world.until(lambda: bool(list(provider.leftovers())))
        provider.remove(list(provider.leftovers()))
        assert world.server.api.used == role_permissions()
        provider.create_disk(disk_request("v1"))
        (machine,) = launch_and_wait(world, provider, "c2")
        world.until(lambda: all(one.ready for one in provider.disks()))
        (disk,) = provider.disks()
        provider.attach_disk(disk.id, machine.id)
        provider.detach_disk(disk.id, machine.id, force=False)
        assert world.server.api.used - role_permissions() == role_permissions("role-volumes.yaml")

    def test_each_right_that_is_missing_is_named(self, world: GoogleWorld) -> None:
        world.rights -= {"compute.instances.create", "compute.instances.getSerialPortOutput"}
        provider = world.provider(CLUSTER)
        found = launch_outcome(world, provider, "c1")
        assert isinstance(found, NotAllowed)
        assert "compute.instances.create" in str(found)
        findings = {one.subject: one for one in provider.check([])}
        assert "compute.instances.create" in findings["rights to start"].text
        assert "compute.instances.getSerialPortOutput" in findings["rights to look"].text
        assert findings["rights to end"].ok


class TestCheck:
    @pytest.mark.parametrize(
        ("words", "subject", "part"),
        [
            ({"subnetwork": "none"}, "subnetwork", "subnets list"),
            ({"image": "family:none"}, "image family:none", "image of the provider's table"),
            ({"machine_types": ["n2-standard-2", "x9-*"]}, "machine type x9-*", "machine-types list"),
            ({"project": "another-project"}, "credentials", "project"),
            ({"zones": [ZONES[0], "europe-west4-z"]}, "credentials", "zones"),
        ],
    )
    def test_each_fault_has_its_remedy(
        self, world: GoogleWorld, words: dict[str, Any], subject: str, part: str
    ) -> None:
        findings = {one.subject: one for one in world.provider(CLUSTER, **words).check([])}
        assert findings[subject].ok is False, findings
        assert part in findings[subject].remedy

    @pytest.mark.parametrize(
        ("rule", "open_ports"),
        [
            ({"allowed": [{"IPProtocol": "tcp"}]}, [True, True]),
            ({"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}, [True, None]),
            ({"targetTags": ["burst", "web"], "allowed": [{"IPProtocol": "all"}]}, [True, True]),
            ({"targetTags": ["web"], "allowed": [{"IPProtocol": "all"}]}, [None, None]),
            ({"targetServiceAccounts": ["a@b"], "allowed": [{"IPProtocol": "all"}]}, [None, None]),
            ({"direction": "EGRESS", "allowed": [{"IPProtocol": "all"}]}, [None, None]),
            ({"disabled": True, "allowed": [{"IPProtocol": "all"}]}, [None, None]),
            ({"allowed": [{"IPProtocol": "udp"}, {"IPProtocol": "tcp", "ports": ["6800-6900"]}]}, [None, True]),
            ({"denied": [{"IPProtocol": "all"}]}, [None, None]),
        ],
    )
    def test_firewall_rules(self, world: GoogleWorld, rule: dict[str, Any], open_ports: list[bool | None]) -> None:
        world.project.firewalls = [{"name": "a", **rule}]
        findings = {one.subject: one for one in world.provider(CLUSTER).check([])}
        assert [findings["port 22"].ok, findings["port 6818"].ok] == open_ports

    def test_quotas_tell_how_many_machines_there_is_room_for(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER, machine_types=["n2-standard-8", "g2-standard-8"])
        world.project.limits["NVIDIA_L4_GPUS"] = 0
        findings = {one.subject: one for one in provider.check([])}
        assert findings["quota N2_CPUS"].text == "0 of 48 vCPUs in use, room for 6 machines"
        assert findings["quota NVIDIA_L4_GPUS"].ok is False
        assert "to 1 or more" in findings["quota NVIDIA_L4_GPUS"].remedy
        assert findings["quota GPUS_ALL_REGIONS"].text == "0 of 8 GPUs in use, room for 8 machines"
        world.project.limits_everywhere["GPUS_ALL_REGIONS"] = 0
        assert [one.ok for one in provider.check([]) if one.subject == "quota GPUS_ALL_REGIONS"] == [False]

    def test_where_google_cannot_be_reached(self, world: GoogleWorld) -> None:
        provider = world.provider(CLUSTER, endpoint="http://127.0.0.1:9")
        first, rest = provider.check([])
        assert (first.ok, rest.ok) == (None, None)
        assert "HTTPS_PROXY" in first.remedy
