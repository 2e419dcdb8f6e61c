"""What a provider must survive in Azure: late refusals, lost answers, lists that lag, machines that are half there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.cloud.volume import DiskRequest
from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    ClientTokenSpent,
    CloudUnavailable,
    InsufficientCapacity,
    NoSuchImage,
    NotAllowed,
    OutcomeUnknown,
    ProviderError,
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
    terminate_all,
)
from providers.azure.provider import AzureProvider
from tests.lab.azure.names import DEFINITION, ENCRYPTION_SET, IDENTITY, MANAGED, MARKETPLACE, ROOT
from tests.lab.azure.specs import LOCATION

if TYPE_CHECKING:
    from tests.lab.azure.world import AzureWorld

pytestmark = pytest.mark.clouds
MACHINES, DISKS = "Microsoft.Compute/virtualMachines", "Microsoft.Compute/disks"
INTERFACES, ADDRESSES = "Microsoft.Network/networkInterfaces", "Microsoft.Network/publicIPAddresses"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AzureWorld]:
    from tests.lab.azure.world import AzureWorld

    made = AzureWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def provider(world: AzureWorld) -> AzureProvider:
    return world.provider(CLUSTER)


def held(world: AzureWorld) -> Counter[str]:
    """How many things of each kind there are."""
    return Counter({kind: len(things) for kind, things in world.cloud.things.items() if things})


def only(provider: AzureProvider) -> Instance:
    (found,) = live_instances(provider)
    return found


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "code", "text", "error"),
        [
            (409, "SkuNotAvailable", "The requested VM size is not available.", InsufficientCapacity),
            (409, "AllocationFailed", "We do not have sufficient capacity.", InsufficientCapacity),
            (409, "ZonalAllocationFailed", "in this zone", InsufficientCapacity),
            (409, "OverconstrainedAllocationRequest", "too many constraints", InsufficientCapacity),
            (409, "OverconstrainedZonalAllocationRequest", "too many constraints", InsufficientCapacity),
            (400, "SubnetIsFull", "Subnet nodes has no free addresses", InsufficientCapacity),
            (409, "QuotaExceeded", "Spot cores", QuotaExceeded),
            (409, "OperationNotAllowed", "exceeding approved standardNCFamily Cores quota", QuotaExceeded),
            (400, "PublicIPCountLimitReached", "Cannot create more than 10", QuotaExceeded),
            (409, "OperationNotAllowed", "The machine is being deleted.", BadRequest),
            (400, "InvalidParameter", "The value is invalid.", BadRequest),
            (404, "ResourceGroupNotFound", "Resource group could not be found.", BadRequest),
            (404, "NotFound", "Resource /subscriptions/x/subnets/y not found.", BadRequest),
            (404, "NotFound", f"The image {DEFINITION} was not found.", NoSuchImage),
            (400, "ImageVersionDeprecated", "image", NoSuchImage),
            (403, "AuthorizationFailed", "does not have authorization", NotAllowed),
            (403, "RequestDisallowedByPolicy", "disallowed by policy", NotAllowed),
            (409, "ReadOnlyDisabledSubscription", "is disabled", NotAllowed),
            (400, "NicReservedForAnotherVm", "is reserved for 180 seconds", ClientTokenSpent),
            (429, "OperationNotAllowed", "too many requests", RateLimited),
            (409, "AnotherOperationInProgress", "Another operation is in progress", OutcomeUnknown),
            (409, "OperationPreempted", "preempted by a more recent operation", OutcomeUnknown),
            (409, "Conflict", "The request failed due to conflict with a concurrent request.", OutcomeUnknown),
            (409, "RequestConflict", "Cannot modify resource: another operation", OutcomeUnknown),
            (409, "ConflictingUserInput", "Disk is being used by another machine", OutcomeUnknown),
            (409, "CanceledAndSupersededDueToAnotherOperation", "superseded", OutcomeUnknown),
            (409, "RetryableErrorDueToAnotherOperation", "again", OutcomeUnknown),
            (409, "OperationNotAllowed", "Operation is not allowed on VM that is marked for deletion.", OutcomeUnknown),
            (409, "Conflict", "Too many requests for the resource", RateLimited),
            (503, "ServerBusy", "There were too many requests", RateLimited),
            (409, "skunotavailable", "The requested VM size is not available.", InsufficientCapacity),
            (500, "InternalServerError", "An internal error", OutcomeUnknown),
            (503, "ServiceUnavailable", "not available", OutcomeUnknown),
        ],
    )
    def test_each_code_has_its_error(
        self, world: AzureWorld, provider: AzureProvider, status: int, code: str, text: str, error: type[ProviderError]
    ) -> None:
        world.cloud.refuse("PUT", MACHINES, status, code, text)
        result = launch_outcome(world, provider, "c1")
        assert type(result) is error, repr(result)
        assert code in str(result)
        assert held(world) == {}

    @pytest.mark.parametrize(
        ("code", "text", "cause"),
        [
            ("AllocationFailed", "no capacity", "capacity"),
            ("ZonalAllocationFailed", "no capacity", "capacity"),
            ("OverconstrainedAllocationRequest", "no capacity", "capacity"),
            ("OverconstrainedZonalAllocationRequest", "no capacity", "capacity"),
            ("SkuNotAvailable", "no capacity", "capacity"),
            ("OperationNotAllowed", "exceeding approved quota", "quota"),
            ("OSProvisioningTimedOut", "did not finish in the allotted time", ""),
            ("NetworkingInternalOperationError", "unknown", ""),
            ("OperationPreempted", "by another", ""),
        ],
    )
    def test_what_is_refused_late_shows_with_its_cause_and_leaves_nothing(
        self, world: AzureWorld, provider: AzureProvider, code: str, text: str, cause: str
    ) -> None:
        world.cloud.late.append((code, text))
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.ERROR)
        failed = only(provider)
        assert (failed.error, failed.cause) == (f"{text} ({code})", cause)
        before = world.calls()
        only(provider)
        assert world.calls() - before <= 2, "why it failed was asked for again"
        provider.terminate([failed.id])
        world.until(lambda: not list(provider.instances()))
        assert held(world) == {}

    def test_a_stockout_of_many_takes_calls_by_the_page(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.page = 10
        world.cloud.late += [("AllocationFailed", "no capacity")] * 30
        provider.launch([launch_request(world, provider, f"c{n}") for n in range(30)])
        world.now += 2.0
        before = world.calls()
        assert {(one.state, one.cause) for one in provider.instances()} == {(InstanceState.ERROR, "capacity")}
        assert world.calls() - before <= 5

    def test_a_failure_that_the_list_does_not_show_yet_is_looked_for(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        world.cloud.status_lag_s = 60.0
        world.cloud.late.append(("AllocationFailed", "no capacity"))
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.ERROR)
        assert only(provider).cause == "capacity"

    def test_a_stockout_of_many_that_the_list_does_not_show_takes_few_calls(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        world.cloud.page = 100
        world.cloud.status_lag_s = 1000.0
        world.cloud.late += [("AllocationFailed", "no capacity")] * 10
        provider.launch([launch_request(world, provider, f"c{n}") for n in range(10)])
        world.now += 2.0
        seen = []
        for _ in range(3):
            before = world.calls()
            seen.append(Counter((one.state, one.cause) for one in provider.instances()))
            assert world.calls() - before <= 3 + 4
            world.now += 5.0
        failed = (InstanceState.ERROR, "capacity")
        assert [one[failed] for one in seen] == [4, 8, 10]
        assert {state for state, _ in seen[0]} == {InstanceState.ERROR, InstanceState.UNKNOWN}, "why is not known yet"

    def test_one_after_the_other_that_fails_does_not_have_the_list_read_at_each_poll(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        world.cloud.late += [("AllocationFailed", "no capacity")] * 5
        lists = []
        with_lists = f"{ROOT}/providers/{MACHINES}"
        world.cloud.asked = lambda path: lists.append(path) if path == with_lists else None
        for n in range(5):
            provider.launch([launch_request(world, provider, f"c{n}")])
            world.now += 2.0
            assert {one.cause for one in provider.instances()} == {"capacity"}
        assert len(lists) <= 2

    def test_a_storm_of_429_stops_the_batch(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.refuse("PUT", MACHINES, 429, "TooManyRequests", times=1000, retry_after=17)
        asked = [launch_request(world, provider, f"c{n}") for n in range(40)]
        results = [one.result for one in provider.launch(asked)]
        assert {type(one) for one in results} == {RateLimited}
        assert {one.retry_after_s for one in results if isinstance(one, ProviderError)} == {17}
        assert world.cloud.calls["PUT virtualMachines"] <= 16


class TestRepeats:
    @pytest.mark.parametrize("lost", ["cut", "500"])
    def test_a_lost_answer_and_another_process_make_one(self, world: AzureWorld, lost: str) -> None:
        provider = world.provider(CLUSTER)
        world.cloud.lost, world.cloud.lost_as = 1, lost
        asked = launch_request(world, provider, "c1")
        (first,) = provider.launch([asked])
        assert isinstance(first.result, OutcomeUnknown), repr(first.result)
        (again,) = world.provider(CLUSTER).launch([asked])
        assert isinstance(again.result, Instance), repr(again.result)
        assert again.result.claim_id == "c1"
        assert held(world) == {MACHINES: 1, DISKS: 1, INTERFACES: 1}

    def test_a_cloud_that_heeds_no_conditions_changes_no_machine(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        world.cloud.heeds_conditions = False
        asked = launch_request(world, provider, "c1")
        first, again = (provider.launch([asked])[0].result for _ in range(2))
        assert isinstance(first, Instance)
        assert isinstance(again, Instance), repr(again)
        assert first.id == again.id

    def test_a_list_that_lags_makes_none_look_gone_and_no_second(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        world.cloud.hide_s = 30.0
        asked = launch_request(world, provider, "c1")
        assert isinstance(provider.launch([asked])[0].result, Instance)
        assert list(provider.instances()) == []
        assert isinstance(provider.launch([asked])[0].result, OutcomeUnknown)
        world.now += 31.0
        assert isinstance(provider.launch([asked])[0].result, Instance)
        assert only(provider).claim_id == "c1"
        assert provider.settle_s > 30

    def test_a_machine_of_that_name_that_is_not_the_claims_is_left_alone(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        neighbour = world.provider(OTHER_CLUSTER)
        theirs = launch_request(world, neighbour, "t1", cluster=OTHER_CLUSTER)
        neighbour.launch([theirs])
        ours = replace(launch_request(world, provider, "c1"), name=theirs.name)
        (outcome,) = provider.launch([ours])
        assert isinstance(outcome.result, BadRequest)
        assert "group of its own" in str(outcome.result)
        (left,) = neighbour.instances()
        assert left.claim_id == "t1"


class TestCredentials:
    def test_a_token_that_expired_is_renewed_unseen(self, world: AzureWorld, provider: AzureProvider) -> None:
        launch_and_wait(world, provider, "c1")
        world.cloud.tokens.clear()
        given = world.server.login.given
        assert only(provider).claim_id == "c1"
        assert world.server.login.given == given + 1

    def test_a_new_secret_needs_no_restart_and_is_in_no_message(
        self, world: AzureWorld, provider: AzureProvider, tmp_path: Path
    ) -> None:
        client = world.client(CLUSTER)
        world.server.login.secrets[client] = "the-next-secret"
        with pytest.raises(AuthFailed) as refused:
            provider.offers()
        assert "AADSTS7000215" in str(refused.value)
        assert "secret-of" not in str(refused.value)
        (tmp_path / f"{CLUSTER}.secret").write_text("the-next-secret", encoding="ascii")
        assert provider.offers()

    def test_a_file_that_is_not_there_is_named(self, world: AzureWorld, tmp_path: Path) -> None:
        provider = world.provider(CLUSTER, secret_file=tmp_path / "gone")
        with pytest.raises(AuthFailed, match="gone cannot be read: No such file"):
            provider.offers()

    def test_a_certificate(self, world: AzureWorld) -> None:
        pair = world.certificate(CLUSTER)
        provider = world.provider(CLUSTER, secret_file=None, certificate_file=pair)
        assert provider.offers()
        pair.write_text("no certificate", encoding="ascii")
        broken = world.provider(CLUSTER, secret_file=None, certificate_file=pair)
        with pytest.raises(AuthFailed, match="certificate_file"):
            broken.offers()

    def test_the_identity_of_the_heads_machine(self, world: AzureWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", world.server.url)
        world.server.login.identity = world.client(CLUSTER)
        words: dict[str, Any] = {"tenant": "", "client_id": "", "secret_file": None}
        assert world.provider(CLUSTER, **words).offers()
        world.server.login.identity = ""
        with pytest.raises(AuthFailed, match="the identity of the head's machine"):
            world.provider(CLUSTER, **words).offers()

    def test_a_metadata_service_that_does_not_answer_is_no_matter_of_the_identity(
        self, world: AzureWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:9")
        with pytest.raises(CloudUnavailable, match="IMDS"):
            world.provider(CLUSTER, tenant="", client_id="", secret_file=None).offers()

    def test_a_tenant_that_is_not_there_is_no_matter_of_the_network(self, world: AzureWorld) -> None:
        provider = world.provider(CLUSTER, tenant="00000000-0000-4000-8000-000000000000")
        with pytest.raises(AuthFailed, match="look at tenant"):
            provider.offers()

    def test_without_microsofts_libraries_it_says_how_to_install_them(
        self, provider: AzureProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "providers.azure.access", None)
        with pytest.raises(AuthFailed, match=r"burstd\[azure\]"):
            provider.offers()

    def test_nobody_answers(self, world: AzureWorld) -> None:
        provider = world.provider(CLUSTER, endpoint="https://127.0.0.1:9", authority="https://127.0.0.1:9")
        with pytest.raises(CloudUnavailable):
            list(provider.instances())

    def test_a_cloud_that_is_not_trusted_hears_nothing(self, world: AzureWorld) -> None:
        provider = world.provider(CLUSTER, ca_file=None)
        with pytest.raises(CloudUnavailable):
            list(provider.instances())
        assert world.calls() == 0

    def test_our_token_goes_to_the_endpoint_only(self, world: AzureWorld, provider: AzureProvider) -> None:
        launch_and_wait(world, provider, "c1", "c2", "c3")
        url, world.cloud.url = world.cloud.url, "https://elsewhere.example"
        before = world.calls()
        with pytest.raises(CloudUnavailable, match=r"elsewhere\.example, not at the endpoint"):
            list(provider.instances())
        assert world.calls() == before + 1
        world.cloud.url = url


class TestLives:
    def test_one_without_an_address_is_still_known(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.no_address = True
        (made,) = launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.RUNNING)
        assert (only(provider).id, only(provider).address) == (made.id, "")
        world.cloud.no_address = False
        assert only(provider).address.startswith("10.77.")

    @pytest.mark.parametrize("state", ["stopped", "deallocated"])
    def test_one_that_is_off_still_costs_and_is_to_be_deleted(
        self, world: AzureWorld, provider: AzureProvider, state: str
    ) -> None:
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.RUNNING)
        world.cloud.switch_off(only(provider).id, state)
        world.now += 61.0
        off = only(provider)
        assert off.state is InstanceState.ERROR
        assert state in off.error
        terminate_all(world, provider)
        world.until(lambda: not list(provider.instances()))
        assert held(world) == {}

    def test_an_extension_that_fails_ends_no_job(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.late.append(("VMExtensionProvisioningError", "a site's policy put one on it"))
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is not InstanceState.PENDING)
        assert (only(provider).state, only(provider).error) == (InstanceState.RUNNING, "")
        world.cloud.switch_off(only(provider).id)
        world.now += 61.0
        assert only(provider).state is InstanceState.ERROR

    @pytest.mark.parametrize(
        "code",
        ["AttachDiskWhileBeingDetached", "VMAgentStatusCommunicationError", "vmextensionhandlererror", "X"],
    )
    @pytest.mark.parametrize("lag_s", [-1e9, 1e9])
    def test_an_operation_that_fails_on_a_running_machine_ends_no_job(
        self, world: AzureWorld, provider: AzureProvider, code: str, lag_s: float
    ) -> None:
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.RUNNING)
        world.cloud.status_lag_s = lag_s
        world.cloud.fail(only(provider).id, code, "somebody's update failed")
        assert (only(provider).state, only(provider).error) == (InstanceState.RUNNING, "")

    @pytest.mark.parametrize("code", ["OSProvisioningTimedOut", "osprovisioningclienterror", "VMStartTimedOut"])
    def test_one_that_is_on_and_never_came_up_has_failed(
        self, world: AzureWorld, provider: AzureProvider, code: str
    ) -> None:
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.RUNNING)
        world.cloud.fail(only(provider).id, code, "did not finish in time")
        assert only(provider).state is InstanceState.ERROR

    @pytest.mark.parametrize(("status", "code"), [(403, "AuthorizationFailed"), (429, "TooManyRequests"), (503, "X")])
    def test_without_power_states_machines_are_listed_all_the_same(
        self, world: AzureWorld, provider: AzureProvider, status: int, code: str
    ) -> None:
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.RUNNING)
        world.cloud.switch_off(only(provider).id)
        world.now += 61.0
        assert only(provider).state is InstanceState.ERROR
        world.cloud.refuse("GET", f"{ROOT}/providers/{MACHINES}", status, code, times=1000)
        world.now += 120.0
        assert only(provider).state is InstanceState.ERROR, "it was off three minutes ago"
        world.now += 240.0
        assert only(provider).state is InstanceState.RUNNING
        assert [one.state for one in world.provider(CLUSTER).instances()] == [InstanceState.RUNNING]

    def test_one_in_the_making_is_ended_at_once(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.boot_s = 1200.0
        (made,) = launch_and_wait(world, provider, "c1")
        provider.terminate([made.id])
        world.until(lambda: not list(provider.instances()))
        assert held(world) == {}
        assert world.now < 1_800_000_100.0

    def test_one_that_somebody_deleted_is_gone(self, world: AzureWorld, provider: AzureProvider) -> None:
        (made,) = launch_and_wait(world, provider, "c1")
        world.cloud.evict(made.id)
        world.until(lambda: not list(provider.instances()))
        provider.terminate([made.id])
        assert list(provider.leftovers()) == []

    def test_what_has_no_machines_name_is_not_sent(self, world: AzureWorld, provider: AzureProvider) -> None:
        (made,) = launch_and_wait(world, provider, "c1")
        with pytest.raises(BadRequest, match="such a name"):
            provider.terminate(["../resourceGroups", made.id])
        world.until(lambda: not live_instances(provider))

    def test_what_a_machine_is_made_of(self, world: AzureWorld) -> None:
        key = "ssh-ed25519 AAAA ada"
        words = {"admin_key": key, "disk": {"gib": 64}, "tags": {"owner": "ada"}, "machine_identity": IDENTITY}
        provider = world.provider(CLUSTER, public_address=True, **words)
        asked = launch_request(world, provider, "c1")
        asked = replace(asked, offer=world.offers(provider, spot=True)[0])
        provider.launch([asked])
        world.until(lambda: only(provider).state is InstanceState.RUNNING)
        (machine,) = world.cloud.machines.values()
        about = machine.said["properties"]
        assert (about["priority"], about["evictionPolicy"], about["billingProfile"]) == (
            "Spot",
            "Delete",
            {"maxPrice": -1},
        )
        assert set(machine.said["identity"]["userAssignedIdentities"]) == {IDENTITY}
        disk = about["storageProfile"]["osDisk"]
        assert (disk["deleteOption"], disk["diskSizeGB"]) == ("Delete", 64)
        linux = about["osProfile"]["linuxConfiguration"]
        assert linux["disablePasswordAuthentication"] is True
        assert linux["ssh"]["publicKeys"][0]["keyData"] == key
        assert held(world) == {MACHINES: 1, DISKS: 1, INTERFACES: 1, ADDRESSES: 1}
        for things in world.cloud.things.values():
            (thing,) = things.values()
            assert thing["tags"].items() >= {TAG_CLUSTER: CLUSTER, TAG_CLAIM: "c1", "owner": "ada"}.items()
        assert only(provider).spot
        world.cloud.evict(only(provider).id)
        world.until(lambda: not list(provider.instances()))
        assert held(world) == {}

    def test_a_size_with_nvme_alone_boots_with_it(self, world: AzureWorld) -> None:
        provider = world.provider(CLUSTER, instance_types=["Standard_D2s_v6"])
        launch_and_wait(world, provider, "c1")
        world.until(lambda: only(provider).state is InstanceState.RUNNING)
        world.cloud.features.clear()
        assert isinstance(launch_outcome(world, provider, "c2"), BadRequest)

    @pytest.mark.parametrize("secure_boot", [False, True, None])
    def test_trusted_launch_with_and_without_secure_boot(self, world: AzureWorld, secure_boot: bool | None) -> None:
        world.cloud.features["SecurityType"] = "TrustedLaunch"
        provider = world.provider(CLUSTER, security_type="TrustedLaunch", secure_boot=secure_boot)
        launch_and_wait(world, provider, "c1")
        (machine,) = world.cloud.machines.values()
        found = machine.said["properties"]["securityProfile"]
        uefi = None if secure_boot is None else {"secureBootEnabled": secure_boot, "vTpmEnabled": True}
        assert (found["securityType"], found.get("uefiSettings")) == ("TrustedLaunch", uefi)

    def test_a_name_that_is_too_long_is_not_sent(self, world: AzureWorld, provider: AzureProvider) -> None:
        asked = launch_request(world, provider, "c1")
        before = world.cloud.calls["PUT virtualMachines"]
        (outcome,) = provider.launch([replace(asked, name="n" * 65)])
        assert isinstance(outcome.result, BadRequest)
        assert "64 characters" in str(outcome.result)
        assert world.cloud.calls["PUT virtualMachines"] == before


class TestLists:
    def test_all_pages_are_read_and_calls_grow_with_pages_only(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        world.cloud.page, world.cloud.other_page = 4, 3
        launch_and_wait(world, provider, *(f"c{n}" for n in range(9)))
        world.until(lambda: all(one.state is InstanceState.RUNNING and one.address for one in live_instances(provider)))
        for _ in range(3):
            before = world.cloud.calls["GET virtualMachines"]
            assert len(list(provider.instances())) == 9
            assert world.cloud.calls["GET virtualMachines"] - before <= 3 + 3
            world.now += 10
        assert {one.address for one in live_instances(provider)} > {""} - {""}

    def test_a_page_that_comes_again_and_again_is_no_list(self, world: AzureWorld, provider: AzureProvider) -> None:
        launch_and_wait(world, provider, "c1", "c2", "c3")
        world.cloud.endless = True
        with pytest.raises(CloudUnavailable, match="page after page is the same"):
            list(provider.instances())

    def test_a_query_arrives_as_it_was_meant(self, world: AzureWorld) -> None:
        calls, _ = world.parts(CLUSTER)
        sizes = calls.in_subscription("Microsoft.Compute/skus")
        assert calls.query(sizes, "list sizes", **{"$skiptoken": "1+/=%2B&#"})["value"]
        calls.close()

    def test_a_list_that_takes_long_to_fail_is_asked_for_once(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.late.append(("AllocationFailed", "no capacity"))
        launch_and_wait(world, provider, "c1")
        path, asked = f"{ROOT}/providers/{MACHINES}", []

        def wait() -> None:
            asked.append(world.now)
            world.now += 60.0

        world.cloud.refuse("GET", path, 503, "ServerTimeout", times=1000, then=wait)
        world.now += 120.0
        assert only(provider).cause == "capacity"
        assert len(asked) == 1

    def test_the_clouds_clock_is_read(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.skew_s = 3600.0
        assert provider.cloud_time() == pytest.approx(world.now + 3600.0, abs=1)
        launch_and_wait(world, provider, "c1")

    def test_a_console_without_an_address_is_asked_for_again(self, world: AzureWorld, provider: AzureProvider) -> None:
        (made,) = launch_and_wait(world, provider, "c1")
        world.cloud.machines[made.id].said["properties"]["provisioningState"] = "Creating"
        assert provider.console(made.id) == ""
        world.now += 10.0
        assert provider.console(made.id) != ""

    def test_an_address_that_the_storage_refuses_is_not_kept(self, world: AzureWorld, provider: AzureProvider) -> None:
        (made,) = launch_and_wait(world, provider, "c1")
        world.until(lambda: provider.console(made.id) != "")
        world.cloud.console_key = "ANOTHER-SECRET"
        with pytest.raises(CloudUnavailable, match="HTTP 403"):
            provider.console(made.id)
        assert provider.console(made.id) != ""

    def test_the_console_is_read_without_our_token_and_its_key_is_in_no_message(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        (made,) = launch_and_wait(world, provider, "c1")
        world.until(lambda: provider.console(made.id) != "")
        before = world.cloud.calls["POST virtualMachines"]
        provider.console(made.id)
        assert world.cloud.calls["POST virtualMachines"] == before, "the address is good for an hour"
        world.now += 3001.0
        world.cloud.url = "https://127.0.0.1:9"
        with pytest.raises(CloudUnavailable) as refused:
            provider.console(made.id)
        assert "SECRET" not in f"{refused.value}{refused.value.__cause__}"


class TestLeftovers:
    def strangers(self, world: AzureWorld) -> list[dict[str, Any]]:
        """Things of others: of a cluster whose name begins as ours, of one in other letters, of nobody."""
        for place, tag in enumerate((OTHER_CLUSTER, f"{CLUSTER}-2", CLUSTER.upper(), None)):
            world.leave(f"strange-{place}", {} if tag is None else {TAG_CLUSTER: tag, TAG_CLAIM: "c1"})
        return [dict(things) for things in world.cloud.things.values()]

    def test_all_that_is_ours_goes_and_nothing_else(self, world: AzureWorld) -> None:
        provider = world.provider(CLUSTER, public_address=True)
        before = self.strangers(world)
        (made,) = launch_and_wait(world, provider, "c1")
        assert list(provider.leftovers()) == []
        world.cloud.leaks = [DISKS, INTERFACES, ADDRESSES]
        provider.terminate([made.id])
        world.until(lambda: not list(provider.instances()))
        left = list(provider.leftovers())
        assert {(one.kind, one.claim_id, one.attached_to) for one in left} == {
            ("network-interface", "c1", ""), ("public-ip-address", "c1", ""), ("disk", "c1", ""),
        }  # fmt: skip
        provider.remove(left)
        provider.remove(left)
        assert list(provider.leftovers()) == []
        assert [dict(things) for things in world.cloud.things.values()] == before

    def test_what_names_a_machine_that_is_gone_is_found(self, world: AzureWorld) -> None:
        provider = world.provider(CLUSTER, public_address=True)
        made, stays = launch_and_wait(world, provider, "c1", "c2")
        world.cloud.leaks, world.cloud.stale = [DISKS, INTERFACES, ADDRESSES], True
        provider.terminate([made.id])
        world.until(lambda: len(list(provider.instances())) == 1)
        kept = {(kind, 1) for kind in (MACHINES, DISKS, INTERFACES, ADDRESSES)}
        found = list(provider.leftovers())
        assert {(one.kind, one.claim_id) for one in found} == {("network-interface", "c1"), ("disk", "c1")}
        provider.remove(found)
        (address,) = provider.leftovers()
        assert (address.kind, address.claim_id) == ("public-ip-address", "c1"), "once what it was on is gone"
        provider.remove([address])
        assert set(held(world).items()) == kept
        assert only(provider).id == stays.id

    def test_what_is_on_a_machine_of_another_group_is_no_leftover(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        world.leave("lent", {TAG_CLUSTER: CLUSTER}, kinds=(DISKS,))
        world.cloud.things[DISKS]["lent"]["managedBy"] = f"{ROOT}/resourceGroups/theirs/providers/{MACHINES}/m"
        assert list(provider.leftovers()) == []

    def test_what_is_half_made_is_found(self, world: AzureWorld, provider: AzureProvider) -> None:
        """A network interface whose machine Azure never made, as other tools leak them."""
        world.leave("half", {TAG_CLUSTER: CLUSTER, TAG_CLAIM: "c7"}, kinds=(INTERFACES,))
        (left,) = provider.leftovers()
        assert (left.kind, left.claim_id) == ("network-interface", "c7")
        world.cloud.refuse("DELETE", INTERFACES, 400, "NicReservedForAnotherVm", "reserved for 180 seconds")
        with pytest.raises(ProviderError, match="180 seconds"):
            provider.remove([left])
        provider.remove([left])
        assert held(world) == {}

    def test_what_is_not_ours_is_refused_with_all_that_is_named_beside(
        self, world: AzureWorld, provider: AzureProvider
    ) -> None:
        self.strangers(world)
        world.leave("mine", {TAG_CLUSTER: CLUSTER})
        before = held(world)
        ours = next(provider.leftovers())
        for theirs in world.provider(OTHER_CLUSTER).leftovers():
            with pytest.raises(BadRequest, match=f"tag of cluster {CLUSTER}"):
                provider.remove([ours, theirs])
        assert held(world) == before


class TestImages:
    def test_versions_that_cannot_be_used_here_are_none(self, world: AzureWorld, provider: AzureProvider) -> None:
        day = "2026-11-{:02}T00:00:00.0000000+00:00".format
        world.cloud.versions.clear()
        world.cloud.publish("1.9.0", day(1))
        newest = world.cloud.publish("1.10.0", day(1))
        world.cloud.publish("1.11.0", day(2), excludeFromLatest=True)
        world.cloud.publish("1.12.0", day(3), targetRegions=[{"name": "East US"}])
        world.cloud.publish("1.13.0", day(4), targetRegions=[{"name": "westeurope", "excludeFromLatest": True}])
        failed = world.cloud.publish("1.14.0", day(5))
        world.cloud.versions[failed]["properties"]["provisioningState"] = "Failed"
        assert [one.rpartition("/")[2] for one in provider.images(DEFINITION)] == ["1.10.0", "1.9.0"]
        request = replace(launch_request(world, provider, "c1"), image=DEFINITION)
        provider.launch([request])
        (machine,) = world.cloud.machines.values()
        assert machine.said["properties"]["storageProfile"]["imageReference"] == {"id": newest}

    @pytest.mark.parametrize("image", [MANAGED, MARKETPLACE, f"{DEFINITION}/versions/1.0.0"])
    def test_what_has_no_versions_is_its_own(self, provider: AzureProvider, image: str) -> None:
        assert provider.images(image) == (image,)

    @pytest.mark.parametrize("image", [f"{DEFINITION}x", "", "Debian:debian-12", "/etc/passwd"])
    def test_what_is_no_image_is_refused(self, world: AzureWorld, image: str) -> None:
        with pytest.raises(BadRequest):
            world.provider(CLUSTER, image="").images(image)


class TestVolumes:
    def test_what_a_disk_is_made_of(self, world: AzureWorld) -> None:
        key = {"type": "Premium_ZRS", "encryption_set": ENCRYPTION_SET}
        provider = world.provider(CLUSTER, disk=key, tags={"owner": "ada"})
        provider.create_disk(DiskRequest("v1", f"{LOCATION}-2", 10 << 30, {"burstd-volume-name": "corpus"}))
        (made,) = world.cloud.things[DISKS].values()
        assert (made["sku"], made.get("zones")) == ({"name": "Premium_ZRS"}, None)
        about = made["properties"]
        assert (about["networkAccessPolicy"], about["publicNetworkAccess"]) == ("DenyAll", "Disabled")
        assert about["encryption"]["diskEncryptionSetId"] == ENCRYPTION_SET
        assert made["tags"] == {
            "owner": "ada", "burstd-volume-name": "corpus", "burstd-volume-cluster": CLUSTER, "burstd-volume": "v1",
        }  # fmt: skip
        (disk,) = provider.disks()
        assert (disk.zone, disk.size_bytes, disk.ready) == ("", 10 << 30, False)

    def test_in_another_zone_it_is_not_attached(self, world: AzureWorld, provider: AzureProvider) -> None:
        (machine,) = launch_and_wait(world, provider, "c1")
        assert machine.zone == f"{LOCATION}-1"
        provider.create_disk(DiskRequest("v1", f"{LOCATION}-2", 1 << 30, {}))
        (disk,) = provider.disks()
        with pytest.raises(BadRequest, match="not in the same zone"):
            provider.attach_disk(disk.id, machine.id)
        with pytest.raises(BadRequest, match="volume tag of cluster"):
            provider.attach_disk(f"{machine.id}-os", machine.id)


class TestOffers:
    ALL = ("Standard_*",)

    def test_zones_markets_prices_and_gpus(self, world: AzureWorld) -> None:
        provider = world.provider(CLUSTER, instance_types=self.ALL, gpus={"Standard_NV*": "a10.6"})
        found = {(one.instance_type, one.zone, one.market): one for one in provider.offers()}
        t4 = found["Standard_NC4as_T4_v3", f"{LOCATION}-1", "on-demand"]
        assert (str(t4.shape.gres[0].type), t4.shape.gres[0].count, t4.hardware.gpu_memory_mib) == ("t4", 1, 16384)
        assert (t4.price, t4.currency, t4.price_source) == (Decimal("0.6"), "USD", "price list")
        assert found["Standard_NC4as_T4_v3", f"{LOCATION}-2", "spot"].price == Decimal("0.15")
        zones = {zone for name, zone, _ in found if name == "Standard_NC4as_T4_v3"}
        assert zones == {f"{LOCATION}-1", f"{LOCATION}-2"}, "the third is withheld from this subscription"
        assert {zone for name, zone, _ in found if "A100" in name} == {LOCATION}
        regional = next(one for one in found.values() if one.instance_type == "Standard_NC6s_v3")
        assert regional.zone == LOCATION, "each zone is withheld, and not the location"
        assert isinstance(
            provider.launch([replace(launch_request(world, provider, "c1"), offer=regional)])[0].result, Instance
        )
        assert found["Standard_D2ps_v5", f"{LOCATION}-1", "spot"].hardware.architecture == "aarch64"
        assert found["Standard_D4ads_v5", f"{LOCATION}-1", "spot"].hardware.local_disk_gib == 150
        assert found["Standard_NV6ads_A10_v5", LOCATION, "on-demand"].shape.gres[0].type == "a10.6"
        assert ("Standard_NV6ads_A10_v5", LOCATION, "spot") not in found
        assert not [name for name, *_ in found if "H100" in name], "withheld everywhere"

    def test_without_the_price_list_those_that_the_settings_price_are_offered(self, world: AzureWorld) -> None:
        world.cloud.prices_down = True
        provider = world.provider(CLUSTER, prices={"Standard_D2s_v5": "0.1"})
        assert {(one.instance_type, one.market) for one in provider.offers()} == {("Standard_D2s_v5", "on-demand")}
        with pytest.raises(BadRequest, match=r"no price is known .*HTTP 503"):
            world.provider(CLUSTER).offers()

    def test_prices_and_sizes_are_kept(self, world: AzureWorld, provider: AzureProvider) -> None:
        provider.offers()
        before = world.calls()
        world.now += 3600.0
        provider.offers()
        assert world.calls() == before
        world.now += 7 * 3600.0
        world.cloud.prices_down = True
        assert {one.price_source for one in provider.offers()} == {"price list"}

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ({"instance_types": ["Standard_X*"]}, "look at instance_types"),
            ({"instance_types": ["Standard_ND96isr_H100_v5"]}, "NotAvailableForSubscription: ask Azure's support"),
            ({"instance_types": ["Standard_NC24*"], "zones": ["1"]}, "look at instance_types and zones"),
        ],
    )
    def test_no_offers_say_why(self, world: AzureWorld, words: dict[str, Any], says: str) -> None:
        with pytest.raises(BadRequest, match=says):
            world.provider(CLUSTER, **words).offers()

    def test_quotas_are_those_that_bear_on_the_sizes(self, world: AzureWorld, provider: AzureProvider) -> None:
        world.cloud.usages["standardDSv5Family"] = (10, 12)
        found = {one.name: one for one in provider.quotas()}
        assert set(found) == {
            f"{name} here"
            for name in (
                "cores",
                "lowPriorityCores",
                "virtualMachines",
                "standardDSv5Family",
                "Standard NCASv3_T4 Family",
            )
        }
        assert (found["standardDSv5Family here"].used, found["standardDSv5Family here"].limit) == (10, 12)
