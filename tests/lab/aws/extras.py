"""What moto lacks: placement groups, reservations, spot requests, prices, quotas. All figures are made up."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from tests.lab.aws import lists, specs
from tests.lab.aws.faults import MockRefused
from tests.lab.aws.worlds import Group, Spot, World

PER_VCPU, PER_GPU, SPOT_SHARE = 0.05, 2.0, 0.3
"""USD an hour; no price of Amazon's, but one that grows with the machine."""
QUOTAS = {
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 5000),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 768),
    "L-417A185B": ("Running On-Demand P instances", 384),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 5000),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 768),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 384),
    "L-0263D0A3": ("EC2-VPC Elastic IPs", 5),
}
"""Codes and names are Amazon's, values are made up."""


def price(instance_type: str) -> float:
    """On demand, for an hour."""
    known = INSTANCE_TYPES[instance_type]
    gpus = sum(one.get("Count", 0) for one in known.get("GpuInfo", {}).get("Gpus", []))
    return float(known["VCpuInfo"]["DefaultVCpus"] * PER_VCPU + gpus * PER_GPU)


def create_placement_group(world: World, words: Mapping[str, Any]) -> dict[str, Any]:
    """CreatePlacementGroup."""
    tags = specs.tag_words(words.get("TagSpecifications"), "placement-group")
    name, strategy = words.get("GroupName", ""), words.get("Strategy", "cluster")
    if name in world.groups:
        raise MockRefused("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    if not name or len(name) > 255 or not name.isascii() or strategy not in ("cluster", "spread", "partition"):
        raise MockRefused("InvalidParameterValue", f"Value ({name}) for parameter groupName is invalid.")
    group = world.groups[name] = Group(f"pg-{secrets.token_hex(8)}0", name, strategy)
    world.backend.create_tags([group.id], tags.get("placement-group", {}))
    return {"PlacementGroup": _group(world, group)}


def describe_placement_groups(world: World, words: Mapping[str, Any]) -> dict[str, Any]:
    """DescribePlacementGroups; it has no pages."""
    names, ids = words.get("GroupNames") or (), words.get("GroupIds") or ()
    for one in names:
        if one not in world.groups:
            raise MockRefused("InvalidPlacementGroup.Unknown", f"The Placement Group '{one}' is unknown.")
    found = [one for one in world.groups.values() if one.name in (names or [one.name]) and one.id in (ids or [one.id])]
    for name, patterns in lists.filters(words).items():
        values = {"group-name": "name", "strategy": "strategy"}
        if name in values:
            found = [one for one in found if lists.fits([getattr(one, values[name])], patterns)]
        elif name == "state":
            found = found if lists.fits(["available"], patterns) else []
        else:
            found = [one for one in found if _tagged(world, one.id, name, patterns)]
    return {"PlacementGroups": [_group(world, one) for one in found]}


def delete_placement_group(world: World, words: Mapping[str, Any]) -> None:
    """DeletePlacementGroup."""
    name = words.get("GroupName", "")
    if name not in world.groups:
        raise MockRefused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    for made in world.made.values():
        if made.instance.placement.group_name == name and made.instance.state != "terminated":
            raise MockRefused(
                "InvalidPlacementGroup.InUse", f"The placement group {name} is in use and may not be deleted."
            )
    del world.groups[name]


def describe_capacity_reservations(world: World, words: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All of them; the caller cuts the pages."""
    asked = words.get("CapacityReservationIds") or ()
    for one in asked:
        if one not in world.reservations:
            text = f"The capacity reservation '{one}' does not exist"
            raise MockRefused("InvalidCapacityReservationId.NotFound", text)
    found = [one for one in world.reservations.values() if one.id in (asked or [one.id])]
    for name, patterns in lists.filters(words).items():
        if name == "state":
            found = found if lists.fits(["active"], patterns) else []
        elif name == "instance-type":
            found = [one for one in found if lists.fits([one.instance_type], patterns)]
        else:
            found = [one for one in found if _tagged(world, one.id, name, patterns)]
    now = datetime.now(UTC)
    return [
        {
            "CapacityReservationId": one.id, "OwnerId": world.number, "InstanceType": one.instance_type,
            "InstancePlatform": "Linux/UNIX", "AvailabilityZone": one.zone, "TotalInstanceCount": one.count,
            "AvailableInstanceCount": one.free, "State": "active", "InstanceMatchCriteria": "targeted",
            "ReservationType": "capacity-block" if one.block else "default", "StartDate": now, "CreateDate": now,
            "EndDateType": "limited" if one.block else "unlimited", "Tags": _tags(world, one.id),
        }
        for one in found
    ]  # fmt: skip


def describe_spot_instance_requests(world: World, words: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All of them; the caller cuts the pages."""
    asked = words.get("SpotInstanceRequestIds") or ()
    found = [_spot(world, one) for one in asked] or list(world.spots.values())
    for name, patterns in lists.filters(words).items():
        values = {"state": "state", "instance-id": "instance", "spot-instance-request-id": "id"}
        if name in values:
            found = [one for one in found if lists.fits([getattr(one, values[name])], patterns)]
        else:
            found = [one for one in found if _tagged(world, one.id, name, patterns)]
    return [
        {
            "SpotInstanceRequestId": one.id, "InstanceId": one.instance, "State": one.state, "Type": "one-time",
            "Status": {"Code": one.code, "Message": one.code, "UpdateTime": datetime.fromtimestamp(one.at, UTC)},
            "CreateTime": datetime.fromtimestamp(one.at, UTC), "LaunchedAvailabilityZone": one.zone,
            "ProductDescription": "Linux/UNIX", "InstanceInterruptionBehavior": "terminate",
            "LaunchSpecification": {"InstanceType": one.instance_type}, "Tags": _tags(world, one.id),
        }
        for one in found
    ]  # fmt: skip


def cancel_spot_instance_requests(world: World, words: Mapping[str, Any]) -> dict[str, Any]:
    """CancelSpotInstanceRequests. The instance runs on."""
    found = [_spot(world, one) for one in words.get("SpotInstanceRequestIds") or ()]
    for one in found:
        one.state, one.code = "cancelled", "request-canceled-and-instance-running"
    said = [{"SpotInstanceRequestId": one.id, "State": "cancelled"} for one in found]
    return {"CancelledSpotInstanceRequests": said}


def describe_spot_price_history(world: World, words: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One price for each type and zone, a little different in each; as of now."""
    types = set(words.get("InstanceTypes") or ())
    zone = words.get("AvailabilityZone")
    given = lists.filters(words)
    types |= set(given.get("instance-type", ()))
    zones = set(given.get("availability-zone", ())) | ({zone} if zone else set())
    return [
        {
            "InstanceType": kind, "AvailabilityZone": here, "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{price(kind) * SPOT_SHARE * (1 + 0.05 * (ord(here[-1]) - ord('a'))):.6f}",
            "Timestamp": datetime.fromtimestamp(int(time.time()) - 60, UTC),
        }
        for kind, here in sorted(
            one for one in specs.offered(world.region) if one[0] in (types or one) and one[1] in (zones or one)
        )
    ]  # fmt: skip


def describe_instance_type_offerings(world: World, words: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By zone or region, as moto knows them; the filters may have ``*``."""
    kind = words.get("LocationType", "region")
    given = lists.filters(words)
    if kind not in ("region", "availability-zone") or set(given) - {"location", "instance-type"}:
        raise MockRefused("InvalidParameterValue", f"The location type {kind} or one of the filters is invalid")
    fits, here = lists.fitting(given.get("instance-type", ["*"])), lists.fitting(given.get("location", ["*"]))
    found = {
        (one, zone if kind == "availability-zone" else world.region)
        for one, zone in specs.offered(world.region)
        if fits(one)
    }
    return [
        {"InstanceType": one, "LocationType": kind, "Location": where} for one, where in sorted(found) if here(where)
    ]


def list_service_quotas(words: Mapping[str, Any], region: str, number: str) -> dict[str, Any]:
    """ListServiceQuotas of Service Quotas, for EC2."""
    if words.get("ServiceCode") != "ec2":
        raise MockRefused("NoSuchResourceException", "The request failed because the specified service does not exist.")
    things = [
        {
            "ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)", "QuotaCode": code,
            "QuotaArn": f"arn:aws:servicequotas:{region}:{number}:ec2/{code}", "QuotaName": name, "Value": float(value),
            "Unit": "None", "Adjustable": True, "GlobalQuota": False,
        }
        for code, (name, value) in QUOTAS.items()
    ]  # fmt: skip
    return _json_page("Quotas", things, words, unasked=100)


def get_products(words: Mapping[str, Any]) -> dict[str, Any]:
    """GetProducts of the price list, for EC2 and TERM_MATCH filters."""
    if words.get("ServiceCode") != "AmazonEC2":
        raise MockRefused("InvalidParameterException", "Invalid service code")
    wanted = {one["Field"]: one["Value"] for one in words.get("Filters") or () if one.get("Type") == "TERM_MATCH"}
    things = [json.dumps(one) for one in _products(wanted.get("regionCode", "us-east-1"), wanted)]
    return {"FormatVersion": "aws_v1", **_json_page("PriceList", things, words, unasked=100)}


def _products(region: str, wanted: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    asked = wanted.get("instanceType")
    for kind in sorted(INSTANCE_TYPES):
        if asked not in (None, kind):
            continue
        for system in ("Linux", "Windows"):
            for state in ("Used", "UnusedCapacityReservation"):
                attributes = {
                    "instanceType": kind, "regionCode": region, "operatingSystem": system, "tenancy": "Shared",
                    "preInstalledSw": "NA", "capacitystatus": state, "licenseModel": "No License required",
                    "marketoption": "OnDemand", "operation": "RunInstances", "servicecode": "AmazonEC2",
                    "locationType": "AWS Region",
                }  # fmt: skip
                if any(attributes.get(field) != value for field, value in wanted.items()):
                    continue
                sku = hashlib.sha256(f"{kind}{region}{system}{state}".encode()).hexdigest()[:16].upper()
                usd = f"{price(kind) * (2 if system == 'Windows' else 1):.10f}"
                term = {"unit": "Hrs", "pricePerUnit": {"USD": usd}, "beginRange": "0", "endRange": "Inf"}
                offer = {"sku": sku, "effectiveDate": "2026-01-01T00:00:00Z", "priceDimensions": {f"{sku}.A": term}}
                yield {
                    "product": {"productFamily": "Compute Instance", "sku": sku, "attributes": attributes},
                    "serviceCode": "AmazonEC2", "version": "20260101000000", "publicationDate": "2026-01-01T00:00:00Z",
                    "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": offer}},
                }  # fmt: skip


def _json_page(key: str, things: list[Any], words: Mapping[str, Any], unasked: int) -> dict[str, Any]:
    limit = int(words.get("MaxResults", unasked))
    if not 1 <= limit <= 100:
        raise MockRefused("ValidationException", "maxResults must be between 1 and 100")
    said = str(words.get("NextToken") or "page-0")
    start = int(said.removeprefix("page-")) if said.removeprefix("page-").isdigit() else -1
    if start < 0 or start > len(things):
        raise MockRefused("InvalidPaginationTokenException", "Invalid token")
    answer: dict[str, Any] = {key: things[start : start + limit]}
    if start + limit < len(things):
        answer["NextToken"] = f"page-{start + limit}"
    return answer


def _group(world: World, group: Group) -> dict[str, Any]:
    return {
        "GroupName": group.name, "GroupId": group.id, "Strategy": group.strategy, "State": "available",
        "GroupArn": f"arn:aws:ec2:{world.region}:{world.number}:placement-group/{group.name}",
        "Tags": _tags(world, group.id),
    }  # fmt: skip


def _spot(world: World, request: str) -> Spot:
    if request not in world.spots:
        text = f"The spot instance request ID '{request}' does not exist"
        raise MockRefused("InvalidSpotInstanceRequestID.NotFound", text)
    return world.spots[request]


def _tags(world: World, resource: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in world.tags(resource).items()]


def _tagged(world: World, resource: str, name: str, patterns: list[str]) -> bool:
    said = lists.tags_fit(world.tags(resource), name, patterns)
    if said is None:
        raise MockRefused("InvalidParameterValue", f"The filter '{name}' is invalid")
    return said
