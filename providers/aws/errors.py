"""Amazon's error codes as the errors of the interface.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html, and those in CreateFleet's answer.
"""

from __future__ import annotations

import re

from burstd.model.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)

# Zone by zone: a type that a zone does not have, and a subnet without addresses, are a matter of that zone.
_CAPACITY = (
    "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity", "InsufficientCapacityOnHost", "InsufficientFreeAddressesInSubnet", "UnfulfillableCapacity",
    "ReservationCapacityExceeded", "Unsupported", "SpotMaxPriceTooLow",
)  # fmt: skip
_QUOTA = (
    "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "MaxSpotFleetRequestCountExceeded",
    "VolumeLimitExceeded", "MaxIOPSLimitExceeded", "NetworkInterfaceLimitExceeded", "AttachmentLimitExceeded",
    "AddressLimitExceeded", "PlacementGroupLimitExceeded", "LaunchTemplateLimitExceeded", "InstanceCreditSpecification",
    "PrivateIpAddressLimitExceeded", "ResourceLimitExceeded", "MaxFleetCountExceeded",
)  # fmt: skip
_RATE = (
    "RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
    "RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException", "RequestResourceCountExceeded",
    "PriorRequestNotComplete", "SlowDown", "LimitExceededException",
)  # fmt: skip
_AUTH = (
    "AuthFailure", "UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "InvalidClientTokenId",
    "UnrecognizedClientException", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "OptInRequired",
    "SignatureDoesNotMatch", "InvalidSignatureException", "MissingAuthenticationToken", "IncompleteSignature",
    "Blocked", "PendingVerification", "InvalidAccessKeyId", "NotAuthorized",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
)  # fmt: skip
_GONE = ("InvalidInstanceID.NotFound", "InvalidVolume.NotFound", "InvalidNetworkInterfaceID.NotFound",
    "InvalidPlacementGroup.Unknown", "InvalidSpotInstanceRequestID.NotFound", "ParameterNotFound",
    "InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound",
    "InvalidInstanceID.Malformed",
)  # fmt: skip
_THERE = ("InvalidPlacementGroup.Duplicate", "InvalidLaunchTemplateName.AlreadyExistsException")
_DOWN = ("Unavailable", "ServiceUnavailable", "ServiceUnavailableException")


class AlreadyThere(BadRequest):
    """A thing of that name exists."""


_KINDS: dict[str, type[ProviderError]] = {
    **dict.fromkeys(_CAPACITY, InsufficientCapacity),
    **dict.fromkeys(_QUOTA, QuotaExceeded),
    **dict.fromkeys(_RATE, RateLimited),
    **dict.fromkeys(_AUTH, AuthFailed),
    **dict.fromkeys(_GONE, NotFound),
    **dict.fromkeys(_DOWN, CloudUnavailable),
    **dict.fromkeys(_THERE, AlreadyThere),
    # The token was used with another request: what came of that one a listing must show.
    "IdempotentParameterMismatch": OutcomeUnknown,
}
_LONG = re.compile(r"Encoded authorization failure message: \S+")
_LIMIT = 400


def of_code(code: str, text: str, status: int, unclear: type[ProviderError]) -> ProviderError:
    """The error for a code of Amazon's; ``unclear`` where a server error says nothing of what was done."""
    kind = _KINDS.get(code) or (unclear if status >= 500 else BadRequest)
    if code == "InvalidFleetConfiguration" and "not supported in your requested Availability Zone" in text:
        kind = InsufficientCapacity  # A fleet's word for Unsupported.
    return kind(sentence(code, text))


def sentence(code: str, text: str) -> str:
    """What Amazon said, in one line of bearable length."""
    words = " ".join(_LONG.sub("", text).split()).rstrip(". ")
    return f"{words[:_LIMIT]} ({code})" if words else code
