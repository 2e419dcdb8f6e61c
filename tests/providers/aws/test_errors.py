from __future__ import annotations

import pytest

from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    ClientTokenSpent,
    CloudUnavailable,
    InsufficientCapacity,
    NotAllowed,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
)
from providers.aws.errors import error_for_code

ZONE = "Your requested instance type (c5.large) is not supported in your requested Availability Zone (us-east-1e)."


@pytest.mark.parametrize(
    ("code", "text", "status", "unclear", "kind"),
    [
        ("InsufficientInstanceCapacity", "no", 500, OutcomeUnknown, InsufficientCapacity),
        ("InternalError", "no", 500, OutcomeUnknown, OutcomeUnknown),
        ("InternalError", "no", 500, CloudUnavailable, CloudUnavailable),
        ("InvalidParameterValue", "no", 400, OutcomeUnknown, BadRequest),
        ("InvalidFleetConfiguration", ZONE, 400, OutcomeUnknown, InsufficientCapacity),
        ("InvalidFleetConfiguration", "no", 400, OutcomeUnknown, BadRequest),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "no", 403, OutcomeUnknown, NotAllowed),
        ("UnauthorizedOperation", "no", 403, OutcomeUnknown, NotAllowed),
        ("AccessDeniedException", "no", 400, CloudUnavailable, NotAllowed),
        ("AuthFailure", "no", 401, OutcomeUnknown, AuthFailed),
        ("OptInRequired", "no", 403, OutcomeUnknown, AuthFailed),
        ("ExpiredToken", "no", 400, OutcomeUnknown, AuthFailed),
        ("RequestLimitExceeded", "no", 503, OutcomeUnknown, RateLimited),
        ("Unavailable", "no", 503, OutcomeUnknown, CloudUnavailable),
        ("ServiceUnavailable", "no", 503, OutcomeUnknown, OutcomeUnknown),
        ("ServiceUnavailable", "no", 503, CloudUnavailable, CloudUnavailable),
        ("503", "Service Unavailable", 503, OutcomeUnknown, OutcomeUnknown),
        ("InternalError", "no", 400, CloudUnavailable, CloudUnavailable),
        ("RequestTimeout", "no", 408, OutcomeUnknown, OutcomeUnknown),
        ("408", "no", 408, OutcomeUnknown, OutcomeUnknown),
        ("IdempotentInstanceTerminated", "no", 400, OutcomeUnknown, ClientTokenSpent),
        ("CapacityReservationNotActive", "no", 400, OutcomeUnknown, InsufficientCapacity),
        ("InvalidCapacityReservationState", "no", 400, OutcomeUnknown, InsufficientCapacity),
        ("VolumeTypeNotAvailableInZone", "no", 400, OutcomeUnknown, InsufficientCapacity),
        ("InvalidSubnetID.NotFound", "no", 400, OutcomeUnknown, BadRequest),
        ("IdempotentParameterMismatch", "no", 400, CloudUnavailable, OutcomeUnknown),
    ],
)
def test_the_code_counts_before_the_status(
    code: str, text: str, status: int, unclear: type[ProviderError], kind: type[ProviderError]
) -> None:
    found = error_for_code(code, text, status, unclear)
    assert type(found) is kind
    assert code in str(found)


def test_what_nobody_can_read_is_left_out() -> None:
    found = error_for_code(
        "UnauthorizedOperation", f"No. Encoded authorization failure message: {'x' * 900}", 403, OutcomeUnknown
    )
    assert str(found) == "No (UnauthorizedOperation)"


@pytest.mark.parametrize("unclear", [OutcomeUnknown, CloudUnavailable])
@pytest.mark.parametrize("status", [400, 403, 407])
def test_an_answer_without_a_code_is_none_of_amazons(status: int, unclear: type[ProviderError]) -> None:
    found = error_for_code("", "", status, unclear)
    assert type(found) is unclear
    assert f"HTTP {status}" in str(found)
