"""Amazon's error codes as the errors of the interface.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html, and those in CreateFleet's answer.
"""

from __future__ import annotations

import re

from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    ClientTokenSpent,
    CloudUnavailable,
    InsufficientCapacity,
    NoSuchImage,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)

# Zone by zone: a type that a zone does not have, and a subnet without addresses, are a matter of that zone; so is a
# reservation that has not begun, or has ended.
_CAPACITY = (
    "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity", "InsufficientCapacityOnHost", "InsufficientFreeAddressesInSubnet", "UnfulfillableCapacity",
    "ReservationCapacityExceeded", "Unsupported", "SpotMaxPriceTooLow",
    "VolumeTypeNotAvailableInZone", "CapacityReservationNotActive", "InvalidCapacityReservationState",
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
    "AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "ExpiredToken", "ExpiredTokenException",
    "RequestExpired", "OptInRequired", "SignatureDoesNotMatch", "InvalidSignatureException",
    "MissingAuthenticationToken", "IncompleteSignature", "Blocked", "PendingVerification", "InvalidAccessKeyId",
)  # fmt: skip
# The credentials are good. The role that is missing in the second is that of spot alone, or of fleets alone.
_DENIED = (
    "UnauthorizedOperation", "AuthFailure.ServiceLinkedRoleCreationNotPermitted", "AccessDenied",
    "AccessDeniedException", "NotAuthorized",
)  # fmt: skip
_GONE = ("InvalidInstanceID.NotFound", "InvalidVolume.NotFound", "InvalidNetworkInterfaceID.NotFound",
    "InvalidPlacementGroup.Unknown", "InvalidSpotInstanceRequestID.NotFound", "ParameterNotFound",
    "InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound",
    "InvalidInstanceID.Malformed",
)  # fmt: skip
_ALREADY_EXISTS = ("InvalidPlacementGroup.Duplicate", "InvalidLaunchTemplateName.AlreadyExistsException")
# "The server is overloaded and can't handle the request": EC2's own word for what it has not begun. A 503 of another
# code, or of no code (a balancer, a proxy), may come after the work: "a temporary failure of the server".
_DOWN = ("Unavailable",)
_UNCLEAR = (
    "InternalError", "InternalFailure", "InternalServerError", "InternalServiceError", "ServiceUnavailable",
    "ServiceUnavailableException", "RequestTimeout", "RequestTimeoutException",
)  # fmt: skip
_TIMEOUT = 408


class AwsAlreadyExists(BadRequest):
    """A thing of that name exists."""


_KINDS: dict[str, type[ProviderError]] = {
    **dict.fromkeys(_CAPACITY, InsufficientCapacity),
    **dict.fromkeys(_QUOTA, QuotaExceeded),
    **dict.fromkeys(_RATE, RateLimited),
    **dict.fromkeys(_AUTH, AuthFailed),
    **dict.fromkeys(_DENIED, NotAllowed),
    **dict.fromkeys(_GONE, NotFound),
    **dict.fromkeys(_DOWN, CloudUnavailable),
    **dict.fromkeys(_ALREADY_EXISTS, AwsAlreadyExists),
    "InvalidAMIID.NotFound": NoSuchImage,
    "InvalidAMIID.Unavailable": NoSuchImage,
    # The token was used with another request: what came of that one a listing must show.
    "IdempotentParameterMismatch": OutcomeUnknown,
    # The token's machines were made and have ended: no fault of their type, and only a new token makes others.
    "IdempotentInstanceTerminated": ClientTokenSpent,
}
_LONG = re.compile(r"Encoded authorization failure message: \S+")
_LIMIT = 400


def error_for_code(code: str, text: str, status: int, unclear: type[ProviderError]) -> ProviderError:
    """The error for a code of Amazon's; ``unclear`` where the answer says nothing of what was done."""
    if not code:
        return unclear(f"the answer is none of Amazon's (HTTP {status}): is there a proxy in between?")
    kind = _KINDS.get(code) or (unclear if code in _UNCLEAR or status >= 500 or status == _TIMEOUT else BadRequest)
    if code == "InvalidFleetConfiguration" and "not supported in your requested Availability Zone" in text:
        kind = InsufficientCapacity  # A fleet's word for Unsupported.
    return kind(error_message(code, text))


def error_message(code: str, text: str) -> str:
    """What Amazon said, in one line of bearable length."""
    words = " ".join(_LONG.sub("", text).split()).rstrip(". ")
    return f"{words[:_LIMIT]} ({code})" if words else code
