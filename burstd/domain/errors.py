"""Errors that cross an interface. Each message is a sentence for the administrator, without secrets."""

from __future__ import annotations

from burstd.domain.cloud.bounds import MAX_RETRY_AFTER_S, clamped
from burstd.domain.cloud.quoting import one_line


class BurstdError(Exception):
    """Base of all errors that burstd raises on purpose."""


class NoAnswer(BurstdError):
    """Whoever was asked did not take the request in time, or is ending; nothing was done."""


class _QuotingError(BurstdError):
    """Its message may repeat what a cloud or a node said: it is one line, of bounded length, that no terminal obeys."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class ProviderError(_QuotingError):
    """A cloud did not do what was asked. ``cause`` is the short word that the breaker and the events use."""

    cause = "provider"

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = clamped(retry_after_s, MAX_RETRY_AFTER_S)
        """Seconds before which the same call makes no sense, an hour at most; 0: the provider did not say."""


class InsufficientCapacity(ProviderError):
    """The zone has none of this type now."""

    cause = "capacity"


class QuotaExceeded(ProviderError):
    """A limit of the account is reached."""

    cause = "quota"


class RateLimited(ProviderError):
    """Too many calls; nothing was done, and the same request may be sent again."""

    cause = "rate"


class ClientTokenSpent(RateLimited):
    """Too many calls inside the cloud: nothing was made, and the same request would get this same answer for ever."""


class BadRequest(ProviderError):
    """The request can never succeed as it is (image, type, subnet ...)."""

    cause = "request"


class NoSuchImage(BadRequest):
    """The image is not there, or not ready: the offer is not to blame."""

    cause = "image"


class AuthFailed(ProviderError):
    """The credentials are missing, wrong or lack a right."""

    cause = "auth"


class NotAllowed(AuthFailed):
    """The credentials are good and lack a right for what was asked, which need not be so for another type or market."""

    cause = "denied"


class NotFound(ProviderError):
    """The thing named is not (or not yet) there."""

    cause = "notfound"


class CloudUnavailable(ProviderError):
    """The cloud is down, unreachable or answers nonsense; nothing was done."""

    cause = "unavailable"


class OutcomeUnknown(ProviderError):
    """The call may or may not have been carried out: the answer was lost."""

    cause = "unknown"


class SchedulerUnavailable(BurstdError):
    """slurmctld does not answer."""


class SchedulerRefused(BurstdError):
    """slurmctld answered no."""


class NodeNotReady(_QuotingError):
    """The machine cannot be reached, or validated, yet: another attempt makes sense."""

    cause = ""
    """A short word where it is the machine's own fault, and will be in the end: that of the claim's error then."""


class NodeRefused(_QuotingError):
    """The machine is not what the site needs: the difference is named in the message."""

    def __init__(self, message: str, *, cause: str = "validation") -> None:
        super().__init__(message)
        self.cause = cause
        """Short word for the breaker and the events."""


class PolicyBroken(BurstdError):
    """A policy cannot be loaded, raised or overran its time; the text names file, line and what is wrong."""
