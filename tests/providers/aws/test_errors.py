from __future__ import annotations

import pytest

from burstd.model.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    OutcomeUnknown,
    ProviderError,
)
from providers.aws.errors import of_code

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
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "no", 403, OutcomeUnknown, AuthFailed),
        ("IdempotentParameterMismatch", "no", 400, CloudUnavailable, OutcomeUnknown),
    ],
)
def test_the_code_counts_before_the_status(
    code: str, text: str, status: int, unclear: type[ProviderError], kind: type[ProviderError]
) -> None:
    found = of_code(code, text, status, unclear)
    assert type(found) is kind
    assert code in str(found)


def test_what_nobody_can_read_is_left_out() -> None:
    found = of_code(
        "UnauthorizedOperation", f"No. Encoded authorization failure message: {'x' * 900}", 403, OutcomeUnknown
    )
    assert str(found) == "No (UnauthorizedOperation)"
