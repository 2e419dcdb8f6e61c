"""What is alike in answers of clouds that speak HTTP, and in what urllib3 and ssl raise where no answer came."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

_MARKUP = re.compile(r"<[^>]*>")
_SECRET = re.compile(r"(bearer\s+)[^\s\"']+|(?<=://)[^/@\s]*@", re.IGNORECASE)
_UNSENT = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})
"""Of urllib3: no connection came about. What keystoneauth calls ConnectTimeout may be any time limit."""
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
"""A certificate is looked at before anything is sent; what is no TLS at all has understood nothing."""


class HttpResponse(NamedTuple):
    """What came back for one request. Names of ``headers`` in small letters."""

    status: int
    headers: Mapping[str, str]
    body: str

    def text(self, message: str, limit: int) -> str:
        """``message``, or where it is empty the body without its markup, in one line with the status."""
        words = short_message(message or _MARKUP.sub(" ", self.body), limit)
        return f"{words} (HTTP {self.status})" if words else f"HTTP {self.status}"


def short_message(text: str, limit: int = 600) -> str:
    """In one line of at most ``limit`` characters, without tokens and users in addresses."""
    return _SECRET.sub(lambda found: found[1] or "", " ".join(text.split()))[:limit].rstrip(". ")


def retry_after_s(*said: Any) -> float:
    """Seconds, of the first that says any: a number, or a date as HTTP has it; 0: none does."""
    for one in map(str, filter(None, said)):
        try:
            return max(0.0, float(one))
        except ValueError:
            pass
        try:
            return max(0.0, (parsedate_to_datetime(one) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError, OverflowError):
            continue
    return 0.0


def surely_unsent(error: BaseException) -> bool:
    """Whether the request that failed so never reached a server that understood it."""
    for one in _causes(error):
        if type(one).__name__ in _UNSENT and type(one).__module__.startswith("urllib3."):
            return True
        if type(one).__name__ in {"SSLError", "SSLCertVerificationError"} and any(w in str(one) for w in _DISTRUST):
            return True
        if isinstance(one, ConnectionRefusedError):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """keystoneauth raises errors of its own without their cause, which is their context then."""
    one: BaseException | None = error
    while one is not None:
        yield one
        wrapped = getattr(one, "original_error", None)
        one = wrapped if isinstance(wrapped, BaseException) else one.__cause__ or one.__context__
