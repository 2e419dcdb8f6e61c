"""How the sandbox cloud says no: one class, and a code and HTTP status for each reason."""

from __future__ import annotations

from enum import StrEnum


class RefusalCode(StrEnum):
    """Reason of a refusal, as it stands in the answer's body."""

    CAPACITY = "InsufficientCapacity"
    QUOTA = "QuotaExceeded"
    BAD_REQUEST = "BadRequest"
    TOKEN_REUSED = "IdempotencyTokenReused"
    IN_USE = "InUse"
    RATE = "RateLimited"
    AUTH = "AuthFailed"
    NOT_FOUND = "NotFound"
    INTERNAL = "InternalError"
    """Something broke; whether it was done is not said."""
    UNAVAILABLE = "Unavailable"
    """Nothing was done."""


HTTP_STATUS = {
    RefusalCode.CAPACITY: 409,
    RefusalCode.QUOTA: 403,
    RefusalCode.BAD_REQUEST: 400,
    RefusalCode.TOKEN_REUSED: 409,
    RefusalCode.IN_USE: 409,
    RefusalCode.RATE: 429,
    RefusalCode.AUTH: 401,
    RefusalCode.NOT_FOUND: 404,
    RefusalCode.INTERNAL: 500,
    RefusalCode.UNAVAILABLE: 503,
}


class SandboxRefused(Exception):
    """The cloud answered, and the answer is no. ``retry_after_s``: seconds, 0 when it does not say."""

    def __init__(self, code: RefusalCode, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class AnswerLost(Exception):
    """The call was carried out and its answer never arrives; ``after_s``: seconds until the line is cut."""

    def __init__(self, after_s: float) -> None:
        super().__init__("the answer was lost")
        self.after_s = after_s


class SandboxUnreachable(Exception):
    """Nothing listens there: the call was not even sent."""
