"""What one launch is to be: a launch template with the words of a call over it, and what EC2 refuses in it."""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Mapping
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix
from moto.iam.models import iam_backends

from tests.lab.aws.faults import MockRefused
from tests.lab.aws.worlds import World

TEMPLATE_NAME = re.compile(r"[a-zA-Z0-9().\-/_]+")
ROOT_GIB = 15
"""Of moto's images."""
_USER_DATA_LIMIT = 16384
_MERGED = (
    "MetadataOptions",
    "Placement",
    "IamInstanceProfile",
    "InstanceMarketOptions",
    "CapacityReservationSpecification",
)
Spec = dict[str, Any]
"""In the words of RunInstances; ``Tags`` holds kind -> key -> value, ``Template`` id and version."""


def template(world: World, words: Mapping[str, Any]) -> tuple[Any, int, dict[str, Any]]:
    """Moto's launch template, the version's number and data. Raises Refused."""
    backend = world.backend
    name, template_id = words.get("LaunchTemplateName"), words.get("LaunchTemplateId")
    if name and name not in backend.launch_template_name_to_ids:
        raise MockRefused(
            "InvalidLaunchTemplateName.NotFoundException",
            f"The specified launch template, with template name {name}, does not exist.",
        )
    found = backend.launch_templates.get(backend.launch_template_name_to_ids[name] if name else template_id)
    if found is None:
        raise MockRefused(
            "InvalidLaunchTemplateId.NotFound",
            f"The specified launch template, with template ID {template_id}, does not exist.",
        )
    wanted = str(words.get("Version") or "$Default")
    numbers = {"$Latest": len(found.versions), "$Default": found.default_version_number}
    number = numbers.get(wanted) or (int(wanted) if wanted.isdigit() else 0)
    if not 1 <= number <= len(found.versions):
        text = f"Could not find launch template version {wanted} for launch template {found.id}"
        raise MockRefused("InvalidLaunchTemplateId.VersionNotFound", text)
    return found, number, dict(found.versions[number - 1].data)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Spec:
    """The words of ``over`` win; tags add up."""
    spec = {key: value for key, value in {**base, **over}.items() if value is not None and key != "TagSpecifications"}
    for key in _MERGED:
        if isinstance(base.get(key), dict) and isinstance(over.get(key), dict):
            spec[key] = {**base[key], **over[key]}
    tags: dict[str, dict[str, str]] = {}
    for one in (*(base.get("TagSpecifications") or ()), *(over.get("TagSpecifications") or ())):
        tags.setdefault(one["ResourceType"], {}).update({tag["Key"]: tag.get("Value", "") for tag in one["Tags"]})
    spec["Tags"] = tags
    return spec


def tag_words(specifications: Any, *kinds: str) -> dict[str, dict[str, str]]:
    """The tags of a call by kind. Raises Refused for kinds that the call does not make, and for bad tags."""
    tags: dict[str, dict[str, str]] = {}
    for one in specifications or ():
        kind = one.get("ResourceType", "")
        if kind not in kinds:
            text = f"'{kind}' is not a valid taggable resource type for this operation."
            raise MockRefused("InvalidParameterValue", text)
        given = [(tag["Key"], tag.get("Value", "")) for tag in one.get("Tags", ())]
        if kind in tags or len(dict(given)) != len(given):
            raise MockRefused("InvalidParameterValue", "Duplicate tag keys or resource types are not allowed.")
        if any(key.lower().startswith("aws:") or len(key) > 128 or len(value) > 256 for key, value in given):
            raise MockRefused("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
        if len(given) > 50:
            raise MockRefused("TagLimitExceeded", "More than 50 tags specified")
        tags[kind] = dict(given)
    return tags


def subnet_of(world: World, spec: Spec) -> Any:
    """Moto's subnet. Raises Refused."""
    interfaces = spec.get("NetworkInterfaces") or ()
    subnet_id = spec.get("SubnetId") or next((n["SubnetId"] for n in interfaces if n.get("SubnetId")), None)
    if not subnet_id:
        raise MockRefused("MissingInput", "No subnets found for the default VPC. Please specify a subnet.")
    for by_id in world.backend.subnets.values():
        if subnet_id in by_id:
            return by_id[subnet_id]
    raise MockRefused("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")


def groups_of(spec: Spec) -> list[str]:
    """The ids of the security groups of the first network interface."""
    interfaces = spec.get("NetworkInterfaces") or ()
    first: Mapping[str, Any] = next((n for n in interfaces if int(n.get("DeviceIndex", 0)) == 0), {})
    return list(first.get("Groups") or spec.get("SecurityGroupIds") or ())


def user_data_of(spec: Spec) -> bytes:
    """Decoded. Raises Refused."""
    text = spec.get("UserData")
    if text is None:
        return b""
    encoded = text.as_bytes() if hasattr(text, "as_bytes") else str(text).encode()
    try:
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise MockRefused("InvalidParameterValue", "Invalid BASE64 encoding of user data.") from error
    if len(data) > _USER_DATA_LIMIT:
        raise MockRefused("InvalidParameterValue", f"User data is limited to {_USER_DATA_LIMIT} bytes")
    return data


def base64_text(text: str) -> Base64EncodedString:
    """As moto's answers hold it."""
    return Base64EncodedString(base64.b64encode(text.encode()).decode())


def kind_of(resource: str) -> str:
    """``instance``, ``volume`` ... by the id; empty: not known."""
    return str(EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource), ""))


def check(world: World, spec: Spec, *, spot: bool) -> Any:
    """The subnet of a launch that EC2 would try. Raises Refused with EC2's codes."""
    backend, wanted = world.backend, spec.get("InstanceType", "")
    if wanted not in INSTANCE_TYPES:
        raise MockRefused("InvalidParameterValue", f"Invalid value '{wanted}' for InstanceType.")
    image = backend.amis.get(spec.get("ImageId"))
    if image is None:
        code = "InvalidAMIID.NotFound" if str(spec.get("ImageId")).startswith("ami-") else "InvalidAMIID.Malformed"
        raise MockRefused(code, f"The image id '[{spec.get('ImageId')}]' does not exist")
    known = INSTANCE_TYPES[wanted]
    kinds = known["ProcessorInfo"]["SupportedArchitectures"]
    if image.architecture not in kinds:
        raise MockRefused(
            "InvalidParameterValue",
            f"The architecture '{','.join(kinds)}' of the specified instance type does not match the architecture"
            f" '{image.architecture}' of the specified AMI.",
        )
    subnet = subnet_of(world, spec)
    zone = subnet.availability_zone
    if (wanted, zone) not in offered(world.region):
        raise MockRefused(
            "Unsupported",
            f"Your requested instance type ({wanted}) is not supported in your requested Availability Zone ({zone}).",
        )
    _check_network(world, spec, known)
    user_data_of(spec)
    _check_disks(spec, image)
    profile_of(world, spec)
    group = spec.get("Placement", {}).get("GroupName")
    if group and group not in world.groups:
        raise MockRefused("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
    if "spot-instances-request" in spec["Tags"] and not spot:
        text = "The resource type 'spot-instances-request' can be tagged only where a Spot Instance is launched."
        raise MockRefused("InvalidParameterCombination", text)
    return subnet


@functools.cache
def offered(region: str) -> frozenset[tuple[str, str]]:
    """(type, zone) of all that the region has."""
    return frozenset(
        (one["InstanceType"], one["Location"]) for one in INSTANCE_TYPE_OFFERINGS["availability-zone"][region]
    )


def profile_of(world: World, spec: Spec) -> Any:
    """Moto's instance profile, or None. Raises Refused."""
    words = spec.get("IamInstanceProfile") or {}
    if not words:
        return None
    for one in iam_backends[world.number]["aws"].instance_profiles.values():
        if words.get("Name", one.name) == one.name and words.get("Arn", one.arn) == one.arn:
            return one
    key, value = next(iter(words.items()))
    raise MockRefused(
        "InvalidParameterValue", f"Value ({value}) for parameter iamInstanceProfile.{key.lower()} is invalid."
    )


def _check_network(world: World, spec: Spec, known: Mapping[str, Any]) -> None:
    interfaces = spec.get("NetworkInterfaces") or ()
    if interfaces and spec.get("SecurityGroupIds"):
        text = "Network interfaces and an instance-level security groups may not be specified on the same request"
        raise MockRefused("InvalidParameterCombination", text)
    for group in {*groups_of(spec), *(g for n in interfaces for g in n.get("Groups") or ())}:
        try:
            found = world.backend.get_security_group_from_id(group)
        except EC2ClientError:
            found = None
        if found is None:
            raise MockRefused("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
    network = known["NetworkInfo"]
    fabrics = sum(one.get("InterfaceType") in ("efa", "efa-only") for one in interfaces)
    limit = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1) if network.get("EfaSupported") else 0
    if fabrics > limit or len(interfaces) > max(limit, network.get("MaximumNetworkInterfaces", 1)):
        text = f"Instance type {spec['InstanceType']} has at most {limit} EFA interfaces; {fabrics} were asked for."
        raise MockRefused("InvalidParameterCombination", text)
    places = [(one.get("NetworkCardIndex", 0), one.get("DeviceIndex", 0)) for one in interfaces]
    if len(set(places)) != len(places) or (interfaces and (0, 0) not in places):
        text = "Each network interface requires a network card and device index of its own, the first one 0 and 0."
        raise MockRefused("InvalidParameterValue", text)
    cards = {one["NetworkCardIndex"]: one for one in network.get("NetworkCards") or ()} or {0: {}}
    for one in interfaces:
        card = cards.get(int(one.get("NetworkCardIndex", 0)), {"InterfaceTypes": ()})
        if one.get("InterfaceType", "interface") not in card.get("InterfaceTypes", ("interface", "efa", "efa-only")):
            text = f"Network card {one.get('NetworkCardIndex', 0)} of {spec['InstanceType']} bears no such interface."
            raise MockRefused("InvalidParameterCombination", text)
        if int(one.get("DeviceIndex", 0)) >= card.get("MaximumNetworkInterfaces", 1):
            raise MockRefused("AttachmentLimitExceeded", "Interface count exceeds the limit of the network card.")
    if len(interfaces) > 1 and any(one.get("AssociatePublicIpAddress") for one in interfaces):
        text = "The associatePublicIPAddress parameter cannot be specified with multiple network interfaces."
        raise MockRefused("InvalidParameterCombination", text)


def _check_disks(spec: Spec, image: Any) -> None:
    for one in spec.get("BlockDeviceMappings") or ():
        disk = one.get("Ebs") or {}
        size = disk.get("VolumeSize")
        if one.get("DeviceName") == image.root_device_name and size is not None and size < ROOT_GIB:
            text = f"Volume of size {size}GB is smaller than its snapshot, expect size >= {ROOT_GIB}GB"
            raise MockRefused("InvalidBlockDeviceMapping", text)
        if disk.get("KmsKeyId") and not disk.get("Encrypted"):
            raise MockRefused(
                "InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted to be set."
            )
