"""RunInstances and CreateFleet of type ``instant``, as EC2 does them.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html and API_CreateFleet.html.
"""

from __future__ import annotations

import base64
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moto.core.types import Base64EncodedString

from tests.lab.aws import specs
from tests.lab.aws.faults import MockRefused
from tests.lab.aws.life import Life
from tests.lab.aws.specs import Spec
from tests.lab.aws.worlds import MockInstance, Spot, World

_IN_ORDER = ("prioritized", "capacity-optimized-prioritized")
Allowed = Callable[[Spec, bool], None]
"""Raises Refused where the caller may not launch this (spot: True)."""


@dataclass
class Pool:
    """One override of a fleet."""

    spec: Spec
    words: Mapping[str, Any]
    """As the answer repeats them."""
    template: Mapping[str, Any]
    zone: str = ""
    error: MockRefused | None = None

    @property
    def type(self) -> str:
        """Instance type."""
        return str(self.spec.get("InstanceType", ""))

    @property
    def priority(self) -> float:
        """Lower is better; none at all comes last."""
        given = self.words.get("Priority")
        return float("inf") if given is None else float(given)

    def failed(self, error: MockRefused, lifecycle: str) -> dict[str, Any]:
        """As in the answer's ``Errors``."""
        return {
            "LaunchTemplateAndOverrides": {"LaunchTemplateSpecification": self.template, "Overrides": self.words},
            "Lifecycle": lifecycle, "ErrorCode": error.code, "ErrorMessage": error.text,
        }  # fmt: skip


def run_instances(world: World, life: Life, words: Mapping[str, Any], allowed: Allowed) -> list[MockInstance]:
    """The instances of one call. Raises Refused."""
    spec = specs.merged({}, words)
    if words.get("LaunchTemplate"):
        found, number, data = specs.template(world, words["LaunchTemplate"])
        spec = specs.merged(data, words)
        spec["Template"] = (found.id, number)
    market = spec.get("InstanceMarketOptions", {}).get("MarketType", "")
    allowed(spec, market == "spot")
    subnet = specs.check(world, spec, spot=market == "spot")
    if words.get("DryRun"):
        raise dry_run()
    zone, kind = subnet.availability_zone, spec["InstanceType"]
    least, most = int(words.get("MinCount", 1)), int(words.get("MaxCount", 1))
    if not 1 <= least <= most:
        raise MockRefused("InvalidParameterValue", f"Value ({least}) for parameter minCount is invalid.")
    reservation = _reservation(world, spec, zone, market)
    if reservation is not None:
        count = min(most, reservation.free, most - world.faults.shortens())
        if count < least:
            text = f"The requested reservation {reservation.id} does not have sufficient capacity for this request."
            raise MockRefused("ReservationCapacityExceeded", text)
        reservation.free -= count
    else:
        count = min(world.faults.available(kind, zone, most), most - world.faults.shortens())
        if count < least:
            raise no_capacity(kind, zone)
        world.faults.took(kind, zone, count)
    lifecycle = market or "on-demand"
    return make(world, life, spec, count, lifecycle, spec["Tags"])


def dry_run() -> MockRefused:
    """The answer to a call with DryRun that would have been carried out."""
    return MockRefused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)


def no_capacity(instance_type: str, zone: str) -> MockRefused:
    """EC2 counts it among its own errors: status 500."""
    text = (
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested ({zone})."
    )
    return MockRefused("InsufficientInstanceCapacity", text, 500)


def create_fleet(world: World, life: Life, words: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
    """The answer of an instant fleet. Raises Refused where EC2 refuses the call, not where it only gives less."""
    if words.get("Type") != "instant":
        raise MockRefused("UnsupportedOperation", "the mock makes fleets of type instant only")
    tags = specs.tag_words(words.get("TagSpecifications"), "fleet", "instance", "volume")
    target = words["TargetCapacitySpecification"]
    total = int(target["TotalTargetCapacity"])
    default = target.get("DefaultTargetCapacityType", "on-demand")
    wanted = {
        "on-demand": int(target.get("OnDemandTargetCapacity") or 0),
        "spot": int(target.get("SpotTargetCapacity") or 0),
    }
    wanted[default] += total - sum(wanted.values())
    options = {"on-demand": words.get("OnDemandOptions") or {}, "spot": words.get("SpotOptions") or {}}
    for one in options.values():
        if one.get("MinTargetCapacity") and not (one.get("SingleInstanceType") or one.get("SingleAvailabilityZone")):
            text = "MinTargetCapacity requires SingleInstanceType or SingleAvailabilityZone."
            raise MockRefused("InvalidParameterCombination", text)
    configs = words.get("LaunchTemplateConfigs") or ()
    found = [
        (specs.template(world, one["LaunchTemplateSpecification"]), one.get("Overrides") or [{}]) for one in configs
    ]
    if not found or total < 1 or min(wanted.values()) < 0:
        raise MockRefused("InvalidFleetConfig", "The fleet request has no launch template or no target capacity.")
    fleet, instances, errors = f"fleet-{_uuid()}", [], []
    world.backend.create_tags([fleet], tags.get("fleet", {}))
    emptied = world.faults.empties_fleet()
    for lifecycle, count in wanted.items():
        if count == 0:
            continue
        pools = [
            _pool(world, one, override, tags, lifecycle, allowed) for one, overrides in found for override in overrides
        ]
        if emptied is not None:
            for pool in pools:
                pool.error = pool.error or MockRefused(emptied.code, emptied.text)
        given, lacking = allocate(world, pools, count, options[lifecycle])
        errors += [pool.failed(error, lifecycle) for pool, error in lacking]
        for pool, number in given:
            world.faults.took(pool.type, pool.zone, number)
            made = make(world, life, pool.spec, number, lifecycle, pool.spec["Tags"], {"aws:ec2:fleet-id": fleet})
            instances.append({
                "LaunchTemplateAndOverrides": {"LaunchTemplateSpecification": pool.template, "Overrides": pool.words},
                "Lifecycle": lifecycle, "InstanceIds": [one.id for one in made], "InstanceType": pool.type,
            })  # fmt: skip
    return {"FleetId": fleet, "Errors": errors, "Instances": instances}


def allocate(
    world: World, pools: Sequence[Pool], wanted: int, options: Mapping[str, Any]
) -> tuple[list[tuple[Pool, int]], list[tuple[Pool, MockRefused]]]:
    """How many come from which pool, and which were tried in vain."""
    lacking = [(pool, pool.error) for pool in pools if pool.error is not None]
    usable = [pool for pool in pools if pool.error is None]
    in_order = options.get("AllocationStrategy") in _IN_ORDER
    if in_order:
        usable.sort(key=lambda pool: pool.priority)
    groups: dict[tuple[str, str], list[Pool]] = {}
    for pool in usable:
        key = (
            pool.type if options.get("SingleInstanceType") else "",
            pool.zone if options.get("SingleAvailabilityZone") else "",
        )
        groups.setdefault(key, []).append(pool)
    budget = wanted - world.faults.shortens()
    best: Counter[int] = Counter()
    for group in groups.values():
        given = _given(world, group, wanted, budget, in_order=in_order)
        lacking += [(pool, no_capacity(pool.type, pool.zone)) for pool in group if given.short(pool)]
        if sum(given.counts.values()) > sum(best.values()):
            best = given.counts
        if sum(best.values()) == wanted:
            break
    if sum(best.values()) < int(options.get("MinTargetCapacity") or 0):
        best = Counter()
    return [(pool, best[id(pool)]) for pool in usable if best[id(pool)]], lacking


@dataclass
class _Given:
    counts: Counter[int]
    tried: set[int]

    def short(self, pool: Pool) -> bool:
        return id(pool) in self.tried


def _given(world: World, group: Sequence[Pool], wanted: int, budget: int, *, in_order: bool) -> _Given:
    """Of pools one after the other, or of all by turns. ``tried`` are those that ran dry before the end."""
    counts: Counter[int] = Counter()
    used: Counter[str] = Counter()
    dry: set[int] = set()
    turns = list(group)
    while turns and sum(counts.values()) < wanted:
        pool = turns[0]
        left = wanted - sum(counts.values())
        step = left if in_order else -(-left // len(turns))
        room = world.faults.available(pool.type, pool.zone, 10**9)
        for key in (pool.type, f"{pool.type}@{pool.zone}"):
            if key in world.faults.cap:
                room = min(room, world.faults.cap[key] - used[key])
        got = max(0, min(step, room, budget - sum(counts.values())))
        counts[id(pool)] += got
        used.update({pool.type: got, f"{pool.type}@{pool.zone}": got})
        if got < step:
            dry.add(id(pool))
        turns.pop(0)
        if not turns and not in_order and sum(counts.values()) < wanted:
            turns = [one for one in group if id(one) not in dry]
    return _Given(counts, dry)


def _pool(
    world: World, found: tuple[Any, int, dict[str, Any]], override: Mapping[str, Any],
    tags: Mapping[str, Mapping[str, str]], lifecycle: str, allowed: Allowed,
) -> Pool:  # fmt: skip
    template, number, data = found
    spec = specs.merged(data, override)
    spec["Template"] = (template.id, number)
    if override.get("SubnetId") and spec.get("NetworkInterfaces"):
        spec["NetworkInterfaces"] = [{**one, "SubnetId": override["SubnetId"]} for one in spec["NetworkInterfaces"]]
    for kind, more in tags.items():
        spec["Tags"][kind] = {**spec["Tags"].get(kind, {}), **more}
    pool = Pool(spec, dict(override), {"LaunchTemplateId": template.id, "Version": str(number)})
    try:
        allowed(spec, lifecycle == "spot")
        pool.zone = specs.check(world, spec, spot=lifecycle == "spot").availability_zone
        pool.words = {**override, "AvailabilityZone": pool.zone}
    except MockRefused as error:
        pool.error = error
    return pool


def make(
    world: World, life: Life, spec: Spec, count: int, lifecycle: str, tags: Mapping[str, Mapping[str, str]],
    own: Mapping[str, str] | None = None,
) -> list[MockInstance]:  # fmt: skip
    """Instances of moto's, with all that the words say. ``own`` are tags of EC2's own."""
    backend, subnet, data = world.backend, specs.subnet_of(world, spec), specs.user_data_of(spec)
    profile, image = specs.profile_of(world, spec), backend.amis[spec["ImageId"]]
    instance_tags = {**tags.get("instance", {}), **(own or {})}
    if "Template" in spec:
        key = "aws:ec2launchtemplate"
        instance_tags |= {f"{key}:id": spec["Template"][0], f"{key}:version": str(spec["Template"][1])}
    reservation = backend.run_instances(
        spec["ImageId"], count, Base64EncodedString(base64.b64encode(data).decode()) if data else None, [],
        instance_type=spec["InstanceType"], is_instance_type_default=False, region_name=world.region,
        subnet_id=subnet.id, security_group_ids=specs.groups_of(spec), key_name=spec.get("KeyName"),
        tags={"instance": instance_tags, "volume": dict(tags.get("volume", {}))},
        metadata_options=spec.get("MetadataOptions") or {}, associate_public_ip=False,
        instance_initiated_shutdown_behavior=spec.get("InstanceInitiatedShutdownBehavior"),
        iam_instance_profile={"Arn": profile.arn, "Id": profile.id} if profile else None,
        block_device_mappings=_disks(spec, image), lifecycle=None if lifecycle == "on-demand" else lifecycle,
        client_token=spec.get("ClientToken", ""),
    )  # fmt: skip
    made = []
    target = spec.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    for instance in reservation.instances:
        instance.root_device_name = image.root_device_name
        instance.placement.group_name = spec.get("Placement", {}).get("GroupName", "")
        one = MockInstance(
            instance, reservation, subnet.availability_zone, data, client_token=spec.get("ClientToken", "")
        )
        one.capacity_reservation = target.get("CapacityReservationId", "")
        _network(world, one, spec, subnet, tags.get("network-interface", {}))
        _tune_disks(world, one, spec)
        if lifecycle == "spot":
            request = Spot(f"sir-{secrets.token_hex(4)}", one.id, one.zone, spec["InstanceType"])
            world.spots[request.id], one.spot_request = request, request.id
            backend.create_tags([request.id], dict(tags.get("spot-instances-request", {})))
        world.made[one.id] = one
        life.begins(world, one)
        made.append(one)
    return made


def _disks(spec: Spec, image: Any) -> list[dict[str, Any]]:
    """The image's root disk with the template's words over it, and the template's others."""
    root = {"VolumeSize": specs.ROOT_GIB, "VolumeType": "gp2", "DeleteOnTermination": False}
    by_name: dict[str, dict[str, Any]] = {image.root_device_name: root}
    for one in spec.get("BlockDeviceMappings") or ():
        name = one["DeviceName"]
        by_name[name] = {**by_name.get(name, {"DeleteOnTermination": True}), **(one.get("Ebs") or {})}
    # Type and IOPS are set afterwards: moto's own way from here to a volume knows only some of them.
    return [{"DeviceName": name, "Ebs": {**disk, "VolumeType": "gp2"}} for name, disk in by_name.items()]


def _tune_disks(world: World, made: MockInstance, spec: Spec) -> None:
    words = {one["DeviceName"]: one.get("Ebs") or {} for one in spec.get("BlockDeviceMappings") or ()}
    for name, mapping in made.instance.block_device_mapping.items():
        volume, said = world.backend.volumes[mapping.volume_id], words.get(name, {})
        volume.volume_type = said.get("VolumeType", "gp2")
        volume.iops = said.get("Iops", 3000 if volume.volume_type == "gp3" else None)
        volume.throughput = said.get("Throughput", 125 if volume.volume_type == "gp3" else None)


def _network(world: World, made: MockInstance, spec: Spec, subnet: Any, tags: Mapping[str, str]) -> None:
    """The first interface is moto's own; the others are made here. All bear the tags."""
    backend, instance = world.backend, made.instance
    words = list(spec.get("NetworkInterfaces") or [{}])
    words.sort(key=lambda one: (one.get("NetworkCardIndex", 0), one.get("DeviceIndex", 0)))
    for place, one in enumerate(words):
        if place == 0:
            eni: Any = instance.nics[0]
        else:
            address = subnet.get_available_subnet_ip(instance=instance)
            eni = backend.create_network_interface(subnet, address, group_ids=list(one.get("Groups") or ()))
            # Moto tells an instance's interfaces apart by device index alone; cards beyond the first repeat it.
            instance.attach_eni(eni, place)
            eni.device_index = int(one.get("DeviceIndex", 1))
        eni.interface_type = one.get("InterfaceType", "interface")
        eni.delete_on_termination = one.get("DeleteOnTermination", True)
        eni.network_card_index = int(one.get("NetworkCardIndex", 0))
        backend.create_tags([eni.id], dict(tags))


def _reservation(world: World, spec: Spec, zone: str, market: str) -> Any:
    target = spec.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    wanted = target.get("CapacityReservationId")
    if not wanted:
        return None
    found = world.reservations.get(wanted)
    if found is None:
        raise MockRefused(
            "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{wanted}' does not exist"
        )
    if (found.instance_type, found.zone) != (spec["InstanceType"], zone):
        text = f"The attributes of {wanted} do not match: it is for {found.instance_type} in {found.zone}."
        raise MockRefused("InvalidParameterValue", text)
    if found.block != (market == "capacity-block"):
        text = (
            f"{wanted} is {'' if found.block else 'not '}a capacity block, but the market type is '{market or 'none'}'."
        )
        raise MockRefused("InvalidParameterValue", text)
    return found


def _uuid() -> str:
    word = secrets.token_hex(16)
    return f"{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}"
