"""Lists as EC2 gives them: filters, pages, and new instances that do not show yet."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.lab.aws.faults import MockRefused
from tests.lab.aws.worlds import MockInstance, World

INSTANCE_ID = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")


@dataclass(frozen=True)
class Page:
    """How a list is paged. Limits: "MaxResults" of each action in the EC2 API reference."""

    key: str
    least: int = 5
    most: int = 1000
    unasked: int = 1000
    """Things to a page where MaxResults is not given."""
    clamps: bool = False
    """Whether more than ``most`` is taken for ``most``, and not refused."""


PAGES = {
    "DescribeInstances": Page("Instances"),
    "DescribeVolumes": Page("Volumes", most=500, clamps=True),
    "DescribeNetworkInterfaces": Page("NetworkInterfaces"),
    "DescribeLaunchTemplates": Page("LaunchTemplates", least=1, most=200, unasked=200),
    "DescribeLaunchTemplateVersions": Page("LaunchTemplateVersions", least=1, most=200, unasked=200),
    "DescribeSpotPriceHistory": Page("SpotPriceHistory", least=1),
    "DescribeSpotInstanceRequests": Page("SpotInstanceRequests"),
    "DescribeInstanceTypes": Page("InstanceTypes", most=100, unasked=100),
    "DescribeInstanceTypeOfferings": Page("InstanceTypeOfferings"),
    "DescribeCapacityReservations": Page("CapacityReservations", least=1),
    "DescribeImages": Page("Images", least=1),
    "DescribeSubnets": Page("Subnets"),
    "DescribeSecurityGroups": Page("SecurityGroups"),
}
_BY_ID = {
    "DescribeInstances": "InstanceIds",
    "DescribeVolumes": "VolumeIds",
    "DescribeNetworkInterfaces": "NetworkInterfaceIds",
    "DescribeInstanceTypes": "InstanceTypes",
}
"""What cannot be asked for beside MaxResults."""


def page(action: str, words: Mapping[str, Any], things: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
    """The things of this page and the token of the next. Raises Refused."""
    rule = PAGES[action]
    limit = words.get("MaxResults")
    if limit is not None:
        limit = int(limit)
        if words.get(_BY_ID.get(action, "")):
            text = f"The parameter {_BY_ID[action]} cannot be used with the parameter maxResults"
            raise MockRefused("InvalidParameterCombination", text)
        if limit < rule.least or (limit > rule.most and not rule.clamps):
            text = (
                f"Value ( {limit} ) for parameter maxResults is invalid: it must be from {rule.least} to {rule.most}."
            )
            raise MockRefused("InvalidParameterValue", text)
    size = min(limit or rule.unasked, rule.most)
    asked = {key: value for key, value in words.items() if key not in ("MaxResults", "NextToken")}
    query_digest = hashlib.sha256(json.dumps([action, asked], sort_keys=True, default=str).encode()).hexdigest()[:16]
    start = 0
    if words.get("NextToken"):
        start = _read(str(words["NextToken"]), query_digest)
    end = start + size
    return things[start:end], _token(query_digest, end) if end < len(things) else None


def _token(mark: str, start: int) -> str:
    return base64.urlsafe_b64encode(f"{mark}:{start}".encode()).decode()


def _read(token: str, mark: str) -> int:
    try:
        said, _, start = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
        if said == mark:
            return int(start)
    except (ValueError, binascii.Error):
        pass
    raise MockRefused("InvalidParameterValue", "Unable to parse pagination token")


def filters(words: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name -> values. Raises Refused."""
    given = words.get("Filters") or ()
    if any(not one.get("Name") or not one.get("Values") for one in given):
        raise MockRefused("InvalidParameterValue", "The filter 'null' is invalid")
    return {one["Name"]: list(one["Values"]) for one in given}


def fits(values: Iterable[str], patterns: Sequence[str]) -> bool:
    """Whether one of the values fits one of the patterns. ``*`` and ``?`` are special, a backslash makes them plain."""
    return any(map(fitting(patterns), values))


def fitting(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Tells of a value whether it fits one of the patterns."""
    known = [_regex(pattern) for pattern in patterns]
    return lambda value: any(one.fullmatch(value) for one in known)


@functools.cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    special = {"*": ".*", "?": "."}
    return re.compile("".join(special.get(one) or re.escape(one[-1]) for one in parts), re.DOTALL)


def tags_fit(tags: Mapping[str, str], name: str, patterns: Sequence[str]) -> bool | None:
    """Whether the tags pass a filter on tags; None: it is another filter."""
    if name.startswith("tag:"):
        return name[4:] in tags and fits([tags[name[4:]]], patterns)
    if name == "tag-key":
        return fits(tags, patterns)
    return None


_FILTERS: dict[str, Callable[[MockInstance], str]] = {
    "instance-id": lambda made: made.id,
    "instance-state-name": lambda made: made.instance.state,
    "instance-state-code": lambda made: str(made.instance.state_code),
    "instance-type": lambda made: made.instance.instance_type,
    "instance-lifecycle": lambda made: made.instance.lifecycle or "",
    "availability-zone": lambda made: made.zone,
    "image-id": lambda made: made.instance.image_id,
    "subnet-id": lambda made: made.instance.subnet_id or "",
    "vpc-id": lambda made: made.instance.vpc_id or "",
    "client-token": lambda made: made.client_token,
    "placement-group-name": lambda made: made.instance.placement.group_name,
    "reservation-id": lambda made: made.reservation.id,
    "spot-instance-request-id": lambda made: made.spot_request,
    "private-ip-address": lambda made: made.instance.private_ip or "",
}


def instances(world: World, words: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeInstances. A reservation goes on on the next page where it must."""
    asked, given = words.get("InstanceIds") or [], filters(words)
    for name in given:
        if name not in _FILTERS and name != "tag-key" and not name.startswith("tag:"):
            raise MockRefused("InvalidParameterValue", f"The filter '{name}' is invalid")
    found = known(world, asked) if asked else [one for one in world.made.values() if not hidden(world, one)]
    for name, patterns in given.items():
        of = _FILTERS.get(name)
        if of is not None:
            found = [one for one in found if fits([of(one)], patterns)]
        else:
            found = [one for one in found if tags_fit(world.backend.tags.get(one.id, {}), name, patterns)]
    here, more = page("DescribeInstances", words, found)
    by_reservation: dict[str, list[MockInstance]] = {}
    for one in here:
        by_reservation.setdefault(one.reservation.id, []).append(one)
    return {
        "Reservations": [
            {
                "ReservationId": key,
                "OwnerId": world.number,
                "Groups": [],
                "Instances": [shown(world, one) for one in many],
            }
            for key, many in by_reservation.items()
        ],
        "NextToken": more,
    }


def hidden(world: World, made: MockInstance) -> bool:
    """Whether it is too new to be seen."""
    return time.monotonic() - made.born < world.faults.hide_s


def known(world: World, ids: Sequence[str]) -> list[MockInstance]:
    """Raises Refused where one of them is malformed or unknown."""
    bad = [one for one in ids if not INSTANCE_ID.fullmatch(one)]
    if bad:
        raise MockRefused("InvalidInstanceID.Malformed", f'Invalid id: "{bad[0]}"')
    missing = [one for one in ids if one not in world.made or hidden(world, world.made[one])]
    if missing:
        what = f"ID '{missing[0]}' does" if len(missing) == 1 else f"IDs '{', '.join(missing)}' do"
        raise MockRefused("InvalidInstanceID.NotFound", f"The instance {what} not exist")
    return [world.made[one] for one in dict.fromkeys(ids)]


def shown(world: World, made: MockInstance) -> dict[str, Any]:
    """An instance in the API's own words, from moto's state."""
    i, gone = made.instance, made.instance.state == "terminated"
    young = time.monotonic() - made.born < world.faults.noip_s
    address = None if gone or young else i.private_ip
    groups = [{"GroupId": one.id, "GroupName": one.name} for one in i.security_groups]
    options = i.metadata_options
    words = {
        "InstanceId": made.id,
        "ImageId": i.image_id,
        "State": {"Code": i.state_code, "Name": i.state},
        "StateTransitionReason": i.state_transition_reason or "",
        "PrivateDnsName": i.private_dns_name if address else "",
        "PrivateIpAddress": address,
        "AmiLaunchIndex": i.ami_launch_index,
        "InstanceType": i.instance_type,
        "LaunchTime": i.launch_time,
        "Placement": {"AvailabilityZone": made.zone, "GroupName": i.placement.group_name, "Tenancy": "default"},
        "Architecture": i.architecture,
        "RootDeviceType": "ebs",
        "RootDeviceName": i.root_device_name,
        "ClientToken": made.client_token,
        "Monitoring": {"State": i.monitoring_state},
        "Tags": [{"Key": key, "Value": value} for key, value in world.backend.tags.get(made.id, {}).items()],
        "SecurityGroups": [] if gone else groups,
        "BlockDeviceMappings": [] if gone else [_disk(name, one) for name, one in i.block_device_mapping.items()],
        "NetworkInterfaces": [] if gone else [_interface(one, young=young) for one in i.nics.values()],
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": options.http_tokens,
            "HttpPutResponseHopLimit": options.http_put_response_hop_limit,
            "HttpEndpoint": options.http_endpoint,
            "HttpProtocolIpv6": options.http_protocol_ipv6,
            "InstanceMetadataTags": options.instance_metadata_tags,
        },
    }
    if not gone:
        words |= {"SubnetId": i.subnet_id, "VpcId": i.vpc_id}
    optional = {
        "KeyName": i.key_name,
        "InstanceLifecycle": i.lifecycle,
        "SpotInstanceRequestId": made.spot_request,
        "CapacityReservationId": made.capacity_reservation,
        "IamInstanceProfile": i.iam_instance_profile,
    }
    words |= {key: value for key, value in optional.items() if value}
    if i.state_reason.code:
        words["StateReason"] = {"Code": i.state_reason.code, "Message": i.state_reason.message}
    return words


def _disk(name: str, one: Any) -> dict[str, Any]:
    made: datetime = one.attach_time
    ebs = {"VolumeId": one.volume_id, "Status": "attached", "AttachTime": made}
    return {"DeviceName": name, "Ebs": {**ebs, "DeleteOnTermination": one.delete_on_termination}}


def _interface(eni: Any, *, young: bool) -> dict[str, Any]:
    return {
        "NetworkInterfaceId": eni.id,
        "InterfaceType": eni.interface_type,
        "Status": eni.status,
        "MacAddress": eni.mac_address,
        "SubnetId": eni.subnet.id,
        "VpcId": eni.subnet.vpc_id,
        "PrivateIpAddress": None if young else eni.private_ip_address,
        "Groups": [{"GroupId": one.id, "GroupName": one.name} for one in eni._group_set],
        "Attachment": {
            "AttachmentId": eni.attachment_id,
            "AttachTime": eni.attach_time,
            "DeleteOnTermination": eni.delete_on_termination,
            "DeviceIndex": eni.device_index,
            "NetworkCardIndex": getattr(eni, "network_card_index", 0),
            "Status": "attached",
        },
    }
