"""The AWS provider on the mock of EC2, under burstd's policy: the contract, and what a provider must survive."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from burstd.domain.cloud.instance import TAG_BATCH, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    ClientTokenSpent,
    InsufficientCapacity,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest, NoticeKind
from burstd.testing.cloud_world import (
    CLUSTER,
    OTHER_CLUSTER,
    launch_and_wait,
    launch_request,
    live_instances,
    prepare_and_launch,
    recorded_requests,
    terminate_all,
)
from burstd.testing.provider_contract import FaultContract, ProviderContract
from burstd.testing.volume_contract import VolumeContract
from providers.aws.calls import _READ_ATTEMPTS
from providers.aws.launch.launch import MAX_PARALLEL_BATCHES
from providers.aws.provider import AwsProvider
from tests.lab.aws.mock import THROTTLED, Ec2Mock
from tests.lab.aws.world import AwsWorld

pytestmark = pytest.mark.clouds


@pytest.fixture(scope="module")
def mock() -> Iterator[Ec2Mock]:
    with Ec2Mock() as running:
        yield running


@pytest.fixture
def world(mock: Ec2Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    made = AwsWorld(mock, tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def lawless(mock: Ec2Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    """Without a policy, so that nothing but the provider itself keeps it from what is not ours."""
    made = AwsWorld(mock, tmp_path, monkeypatch, policy=False)
    yield made
    made.close()


class TestAws(ProviderContract, FaultContract, VolumeContract):
    @pytest.fixture
    def world(self, world: AwsWorld) -> AwsWorld:
        return world


def launched_offers(outcomes: list[LaunchOutcome]) -> list[Instance]:
    return [one.result for one in outcomes if isinstance(one.result, Instance)]


def count_by_type(outcomes: list[LaunchOutcome]) -> Counter[str]:
    return Counter(type(one.result).__name__ for one in outcomes)


def launch_requests(world: AwsWorld, provider: AwsProvider, count: int, **words: Any) -> list[LaunchRequest]:
    """Requests for the first offer, written down."""
    made = provider.prepare([replace(launch_request(world, provider, f"c{n}"), **words) for n in range(count)])
    return [one for one in made if isinstance(one, LaunchRequest)]


def resource_owner(world: AwsWorld, service: str = "ec2") -> Any:
    return boto3.client(service, **world.mock.client_words(world.account))


def launches(world: AwsWorld) -> int:
    return world.mock.calls(world.account)["CreateFleet"]


class TestNewInstances:
    def test_one_that_is_not_found_yet_is_no_error(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        world.mock.faults(world.account, hide_s=60)
        (made,) = launched_offers(prepare_and_launch(provider, [launch_request(world, provider, "c1")]))
        assert list(provider.instances()) == []
        with pytest.raises(NotFound):
            provider.console(made.id)
        provider.terminate([made.id])
        world.mock.clear(world.account)
        assert [one.id for one in live_instances(provider)] == [made.id]
        terminate_all(world, provider)

    def test_one_without_an_address_is_still_known(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        world.mock.faults(world.account, noip_s=60)
        (made,) = launch_and_wait(world, provider, "c1")
        world.until(lambda: live_instances(provider)[0].state is InstanceState.RUNNING)
        assert [(one.id, one.address) for one in live_instances(provider)] == [(made.id, "")]
        world.mock.clear(world.account)
        assert live_instances(provider)[0].address.startswith("10.77.")

    def test_one_that_switches_itself_off_is_gone(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        (made,) = launch_and_wait(world, provider, "c1")
        world.mock.halt(world.account, made.id)
        world.until(lambda: not live_instances(provider))
        assert list(provider.leftovers()) == []


class TestThrottling:
    def test_an_empty_fleet_is_no_stockout_and_spends_the_token(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        world.empty_fleet("RequestLimitExceeded")
        first = launch_requests(world, provider, 3)
        for _ in range(2):
            assert count_by_type(list(provider.launch(first))) == {"ClientTokenSpent": 3}
        anew = recorded_requests(world, provider, "n0", "n1", "n2")
        assert len(launched_offers(list(provider.launch(anew)))) == 3
        terminate_all(world, provider)

    def test_a_refused_batch_is_one_call(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        world.mock.refuse(world.account, "CreateFleet", **THROTTLED, times=100)
        assert count_by_type(list(provider.launch(launch_requests(world, provider, 6)))) == {"RateLimited": 6}
        assert launches(world) == 1

    def test_batches_behind_a_refused_one_are_not_asked_for(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER, batch=1)
        world.mock.refuse(world.account, "CreateFleet", **THROTTLED, times=100)
        assert count_by_type(list(provider.launch(launch_requests(world, provider, 40)))) == {"RateLimited": 40}
        assert launches(world) <= 2 * MAX_PARALLEL_BATCHES

    def test_reads_are_repeated_a_few_times_and_no_more(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1")
        world.mock.refuse(world.account, "DescribeInstances", **THROTTLED, times=2)
        assert len(live_instances(provider)) == 1
        world.mock.refuse(world.account, "DescribeInstances", **THROTTLED, times=100)
        before = world.calls()
        with pytest.raises(RateLimited):
            list(provider.instances())
        assert world.calls() - before == _READ_ATTEMPTS


class TestFleets:
    def others(self, world: AwsWorld, provider: AwsProvider) -> tuple[Offer, tuple[Offer, ...]]:
        first, *rest = world.offers(provider)
        return first, tuple(rest)

    def test_another_zone_then_another_type(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        first, others = self.others(world, provider)
        world.mock.faults(world.account, ice=[f"{first.instance_type}@{first.zone}"])
        outcomes = list(provider.launch(launch_requests(world, provider, 2, offer=first, others=others)))
        assert [one.offer for one in outcomes] == [others[0]] * 2
        assert [(offer, type(error)) for offer, error in outcomes[0].warnings] == [(first, InsufficientCapacity)]
        assert outcomes[1].warnings == ()
        world.mock.faults(world.account, ice=[first.instance_type])
        more = [replace(launch_request(world, provider, "d1"), offer=first, others=others)]
        (outcome,) = prepare_and_launch(provider, more)
        assert outcome.offer is not None
        assert outcome.offer.instance_type != first.instance_type
        assert {offer.instance_type for offer, _ in outcome.warnings} == {first.instance_type}
        listed = {one.id: (one.instance_type, one.zone) for one in live_instances(provider)}
        assert listed[launched_offers([outcome])[0].id] == (outcome.offer.instance_type, outcome.offer.zone)

    def test_one_fleet_of_several_offers(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        first, others = self.others(world, provider)
        world.mock.faults(world.account, cap={f"{first.instance_type}@{first.zone}": 1})
        outcomes = list(provider.launch(launch_requests(world, provider, 3, offer=first, others=others)))
        assert Counter((one.offer or first).zone for one in outcomes) == {first.zone: 1, others[0].zone: 2}
        where = {one.id: one.zone for one in live_instances(provider)}
        assert all(
            where[i.id] == (o.offer or first).zone for o, i in zip(outcomes, launched_offers(outcomes), strict=True)
        )
        assert launches(world) == 1

    def test_a_part_of_what_was_asked_for(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        world.mock.faults(world.account, cap={world.offer(provider).instance_type: 2})
        wanted = launch_requests(world, provider, 5)
        outcomes = list(provider.launch(wanted))
        assert [isinstance(one.result, Instance) for one in outcomes] == [True, True, False, False, False]
        again = list(world.provider(CLUSTER).launch(wanted[1:]))
        assert [one.id for one in launched_offers(again)] == [launched_offers(outcomes)[1].id]
        assert count_by_type(again) == {"Instance": 1, "InsufficientCapacity": 3}

    @pytest.mark.parametrize(
        ("code", "spot", "error"),
        [
            ("VcpuLimitExceeded", False, QuotaExceeded),
            ("MaxSpotInstanceCountExceeded", True, QuotaExceeded),
            ("UnfulfillableCapacity", True, InsufficientCapacity),
            ("InvalidSubnetID.NotFound", False, InsufficientCapacity),
            ("UnauthorizedOperation", False, NotAllowed),
            ("AuthFailure", False, AuthFailed),
            ("InvalidLaunchTemplateName.NotFoundException", False, ClientTokenSpent),
        ],
    )
    def test_errors_of_an_empty_fleet(self, world: AwsWorld, code: str, spot: bool, error: type[ProviderError]) -> None:
        provider = world.provider(CLUSTER)
        world.empty_fleet(code)
        (wanted,) = launch_requests(world, provider, 1, offer=world.offers(provider, spot=spot)[0])
        (outcome,) = provider.launch([wanted])
        assert type(outcome.result) is error, repr(outcome.result)

    @pytest.mark.parametrize(
        ("kind", "words", "interface", "grouped"),
        [
            ("c5n.18xlarge", {"fabric": "efa"}, "efa", False),
            ("c5n.18xlarge", {"gang": "job 7"}, "efa", True),
            ("c5n.18xlarge", {}, "interface", False),
            ("t3.micro", {"gang": "job 7"}, "interface", False),
        ],
    )
    def test_a_machine_has_what_its_offer_says_binds_it(
        self, world: AwsWorld, kind: str, words: dict[str, str], interface: str, grouped: bool
    ) -> None:
        provider = world.provider(CLUSTER, instance_types=[kind], prices={kind: "1"})
        offer = world.offers(provider)[0]
        assert offer.hardware.binding == {"c5n.18xlarge": "placement-group+efa", "t3.micro": "none"}[kind]
        (outcome,) = provider.launch(launch_requests(world, provider, 1, offer=offer, **words))
        assert isinstance(outcome.result, Instance), outcome.result
        (held,) = resource_owner(world).describe_instances(InstanceIds=[outcome.result.id])["Reservations"]
        (made,) = held["Instances"]
        assert [one["InterfaceType"] for one in made["NetworkInterfaces"]] == [interface]
        assert bool(made["Placement"]["GroupName"]) is grouped

    def test_a_gang_is_all_in_one_zone_or_nothing(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        first, others = self.others(world, provider)
        words: dict[str, Any] = {"offer": first, "others": others, "gang": "job 7"}
        world.mock.faults(world.account, cap={first.instance_type: 3, others[-1].instance_type: 3})
        outcomes = list(provider.launch(launch_requests(world, provider, 4, **words)))
        assert count_by_type(outcomes) == {"InsufficientCapacity": 4}
        assert list(provider.instances()) == []
        world.mock.clear(world.account)
        world.mock.faults(world.account, cap={f"{first.instance_type}@{first.zone}": 3})
        anew = [replace(launch_request(world, provider, f"n{n}"), **words) for n in range(4)]
        made = launched_offers(prepare_and_launch(provider, anew))
        assert len(made) == 4
        assert {one.zone for one in live_instances(provider)} == {others[0].zone}
        shown = resource_owner(world).describe_instances(InstanceIds=[one.id for one in made])["Reservations"]
        groups = {one["Placement"]["GroupName"] for r in shown for one in r["Instances"]}
        assert len(groups) == 1
        assert groups != {""}

    def test_what_a_machine_is_made_of(self, world: AwsWorld) -> None:
        """Encrypted root that goes with it, IMDSv2, its role, tags on all that was made."""
        provider = world.provider(CLUSTER)
        (made,) = launched_offers(
            prepare_and_launch(
                provider, [replace(launch_request(world, provider, "c1"), offer=world.offers(provider, spot=True)[0])]
            )
        )
        ec2 = resource_owner(world)
        one = ec2.describe_instances(InstanceIds=[made.id])["Reservations"][0]["Instances"][0]
        assert one["MetadataOptions"]["HttpTokens"] == "required"
        assert one["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
        assert one["IamInstanceProfile"]["Arn"].endswith(world.user(CLUSTER).role)
        assert [group["GroupId"] for group in one["NetworkInterfaces"][0]["Groups"]] == [world.account.security_group]
        (volume,) = ec2.describe_volumes()["Volumes"]
        assert volume["Encrypted"]
        assert volume["VolumeType"] == "gp3"
        (interface,) = ec2.describe_network_interfaces()["NetworkInterfaces"]
        (spot,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
        (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
        for tags in (one["Tags"], volume["Tags"], interface["TagSet"], spot["Tags"], template["Tags"]):
            assert {"Key": TAG_CLUSTER, "Value": CLUSTER} in tags

    @pytest.mark.parametrize("block", [False, True])
    def test_a_reservation_is_launched_in(self, world: AwsWorld, block: bool) -> None:
        kind, zone = "c5.large", "us-east-1b"
        reserved = world.mock.reserve(world.account, kind, zone, 2, block=block)
        provider = world.provider(CLUSTER, reservations=[reserved])
        offer = next(o for o in world.offers(provider) if (o.instance_type, o.zone) == (kind, zone))
        outcomes = list(provider.launch(launch_requests(world, provider, 3, offer=offer)))
        assert count_by_type(outcomes) == {"Instance": 2, "InsufficientCapacity": 1}
        calls = world.mock.calls(world.account)
        assert (calls["RunInstances"], calls["CreateFleet"]) == (1, 0)
        shown = resource_owner(world).describe_instances()["Reservations"]
        assert {one["CapacityReservationId"] for r in shown for one in r["Instances"]} == {reserved}


class TestRepeats:
    @pytest.mark.parametrize("how", ["cut", "InternalError"])
    def test_word_for_word_by_another_process(self, world: AwsWorld, how: str) -> None:
        provider = world.provider(CLUSTER)
        world.mock.faults(world.account, lost=[{"action": "CreateFleet", "code": how}])
        wanted = launch_requests(world, provider, 3)
        assert count_by_type(list(provider.launch(wanted))) == {"OutcomeUnknown": 3}
        first = launched_offers(list(world.provider(CLUSTER).launch(wanted)))
        assert [one.id for one in first] == [one.id for one in launched_offers(list(provider.launch(wanted)))]
        assert {one.id for one in live_instances(provider)} == {one.id for one in first}
        assert {one.batch for one in live_instances(provider)} == {wanted[0].claim_id}

    def test_with_other_words_makes_none(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        (wanted,) = launch_requests(world, provider, 1)
        (made,) = launched_offers(list(provider.launch([wanted])))
        recipe = json.loads(wanted.recipe)
        recipe["words"]["TargetCapacitySpecification"].update(TotalTargetCapacity=2, OnDemandTargetCapacity=2)
        changed = replace(wanted, recipe=json.dumps(recipe))
        (outcome,) = world.provider(CLUSTER).launch([changed])
        assert isinstance(outcome.result, OutcomeUnknown), repr(outcome.result)
        assert [one.id for one in live_instances(provider)] == [made.id]

    def test_a_template_that_vanished_is_made_again(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, "c1")
        ec2 = resource_owner(world)
        for one in ec2.describe_launch_templates()["LaunchTemplates"]:
            ec2.delete_launch_template(LaunchTemplateId=one["LaunchTemplateId"])
        assert len(launch_and_wait(world, provider, "c2")) == 1


class TestSpot:
    def test_an_interruption_is_announced_and_then_shown(self, world: AwsWorld) -> None:
        provider = world.provider(CLUSTER)
        spot = world.offers(provider, spot=True)[0]
        (made,) = launched_offers(
            prepare_and_launch(provider, [replace(launch_request(world, provider, "c1"), offer=spot)])
        )
        world.mock.send(world.account, "no event at all")
        world.mock.interrupt(world.account, [made.id], kind="rebalance")
        world.mock.interrupt(world.account, [made.id], notice_s=120)
        heard: dict[NoticeKind, float | None] = {}

        def both() -> bool:
            notices = provider.notices()
            heard.update((one.kind, one.deadline) for one in notices if one.instance_id == made.id)
            provider.acknowledge(notices)
            return set(heard) == {NoticeKind.INTERRUPTION, NoticeKind.REBALANCE}

        world.until(both)
        assert heard[NoticeKind.INTERRUPTION] is not None
        assert live_instances(provider)[0].error == ""
        world.mock.interrupt(world.account, [made.id])
        world.until(lambda: not live_instances(provider))
        (ended,) = provider.instances()
        assert (ended.id, ended.spot) == (made.id, True)
        assert "spot" in ended.error.lower()
        assert list(provider.notices()) == []


class TestNeighbours:
    STRANGERS = (OTHER_CLUSTER, f"{CLUSTER}-2", f" {CLUSTER}", CLUSTER.upper(), None)
    """Tags of others: two that begin as ours, one that looks alike, one of other letters, none."""

    def make(self, world: AwsWorld, tag: str | None) -> set[str]:
        """A volume, an interface, a template, a group and an instance of somebody; their ids."""
        ec2, account = resource_owner(world), world.account
        zone, subnet = next(iter(account.subnets.items()))
        word = f"burstd-{CLUSTER}-{abs(hash(tag)):x}"

        def tags(kind: str) -> list[dict[str, Any]]:
            said = [{"Key": TAG_CLUSTER, "Value": tag}] if tag is not None else [{"Key": "owner", "Value": CLUSTER}]
            return [{"ResourceType": kind, "Tags": [*said, {"Key": TAG_BATCH, "Value": "c1"}]}]

        volume = ec2.create_volume(AvailabilityZone=zone, Size=1, TagSpecifications=tags("volume"))["VolumeId"]
        interface = ec2.create_network_interface(SubnetId=subnet, TagSpecifications=tags("network-interface"))
        data = {"ImageId": account.image}
        ec2.create_launch_template(
            LaunchTemplateName=word, LaunchTemplateData=data, TagSpecifications=tags("launch-template")
        )
        ec2.create_placement_group(GroupName=word, Strategy="cluster", TagSpecifications=tags("placement-group"))
        run = ec2.run_instances(
            ImageId=account.image, InstanceType="c5.large", SubnetId=subnet, MinCount=1, MaxCount=1,
            TagSpecifications=tags("instance"),
        )  # fmt: skip
        eni = interface["NetworkInterface"]["NetworkInterfaceId"]
        return {volume, eni, word, run["Instances"][0]["InstanceId"]}

    def seen(self, world: AwsWorld) -> set[str]:
        """All that the account holds and that is not gone."""
        ec2 = resource_owner(world)
        found = {one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]}
        found |= {one["NetworkInterfaceId"] for one in ec2.describe_network_interfaces()["NetworkInterfaces"]}
        found |= {one["LaunchTemplateName"] for one in ec2.describe_launch_templates()["LaunchTemplates"]}
        found |= {one["GroupName"] for one in ec2.describe_placement_groups()["PlacementGroups"]}
        return found | {
            one["InstanceId"]
            for r in ec2.describe_instances()["Reservations"]
            for one in r["Instances"]
            if one["State"]["Name"] != "terminated"
        }

    def test_all_that_we_leak_is_removed_and_nothing_else(self, lawless: AwsWorld) -> None:
        world = lawless
        strangers = set().union(*(self.make(world, tag) for tag in self.STRANGERS))
        before = self.seen(world)
        assert strangers <= before
        provider = world.provider(CLUSTER, unused_s=0)
        words: dict[str, Any] = {"gang": "job 7", "offer": world.offers(provider, spot=True)[0]}
        outcomes = prepare_and_launch(
            provider, [replace(launch_request(world, provider, f"c{n}"), **words) for n in range(2)]
        )
        ids = [one.id for one in launched_offers(outcomes)]
        kinds = {"volume": 1, "network-interface": 1, "spot-instances-request": 1}
        world.mock.faults(world.account, leak=kinds)
        provider.terminate(ids)
        world.until(lambda: not live_instances(provider) and len({one.kind for one in provider.leftovers()}) == 5)
        left = list(provider.leftovers())
        assert all(one.attached_to == "" for one in left)
        provider.remove(left)
        provider.remove(left)
        world.until(lambda: not list(provider.leftovers()))
        assert self.seen(world) == before

    def test_theirs_are_refused(self, lawless: AwsWorld) -> None:
        world = lawless
        provider, neighbour = world.provider(CLUSTER), world.provider(OTHER_CLUSTER, unused_s=0)
        (theirs,) = launch_and_wait(world, neighbour, "t1", cluster=OTHER_CLUSTER)
        world.mock.faults(world.account, leak={"volume": 1, "network-interface": 1})
        neighbour.terminate([theirs.id])
        world.until(lambda: not live_instances(neighbour))
        before = self.seen(world)
        for left in neighbour.leftovers():
            with pytest.raises(BadRequest):
                provider.remove([left])
        assert self.seen(world) == before

    def test_the_policy_keeps_a_cluster_from_anothers_machines(self, world: AwsWorld) -> None:
        provider, neighbour = world.provider(CLUSTER), world.provider(OTHER_CLUSTER)
        (theirs,) = launch_and_wait(world, neighbour, "t1", cluster=OTHER_CLUSTER)
        with pytest.raises(ProviderError):
            provider.terminate([theirs.id])
        assert [one.id for one in live_instances(neighbour)] == [theirs.id]
