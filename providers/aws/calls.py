"""The only speaker of boto3: clients, retries, pages, time limits, and errors as the interface has them.

Reading is repeated by botocore itself (adaptive: it slows down where Amazon throttles). A call that changes something
is sent once: what is tried again, and when, is burstd's business, and a launch repeated unseen would hide it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from burstd.model.errors import (
    AuthFailed,
    CloudUnavailable,
    OutcomeUnknown,
    ProviderError,
)
from providers.aws.errors import of_code
from providers.aws.settings import AwsSettings

_READ_ATTEMPTS = 5
_CONNECT_S = 5.0
_PRICE_REGIONS = {"eu": "eu-central-1", "ap": "ap-south-1"}
"""Amazon's price list is served from three regions only; any of them knows all."""


class Calls:
    """One account and region. Used from many threads; makes no call before the first ``ask`` or ``tell``."""

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, bool], Any] = {}
        self.made: Counter[str] = Counter()
        """Calls so far, by the operation's name in snake case; botocore's own repeats are not counted."""

    def ask(self, service: str, operation: str, **words: Any) -> Mapping[str, Any]:
        """A call that changes nothing. Without an answer the cloud is unavailable."""
        return self._call(service, operation, words, changes=False)

    def tell(self, service: str, operation: str, **words: Any) -> Mapping[str, Any]:
        """A call that changes something, sent once. Without a clear answer its outcome is unknown."""
        return self._call(service, operation, words, changes=True)

    def pages(
        self, service: str, operation: str, key: str, *, limit: int | None = None, **words: Any
    ) -> Iterator[Mapping[str, Any]]:
        """The things under ``key`` of every page, each page asked for when it is needed; ends early only by raising."""
        more: dict[str, Any] = {} if limit is None else {"MaxResults": limit}
        while True:
            answer = self.ask(service, operation, **words, **more)
            yield from answer.get(key, ())
            token = answer.get("NextToken")
            if not token:
                return
            more["NextToken"] = token

    def close(self) -> None:
        """Gives connections back."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _call(self, service: str, operation: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a site without AWS has none

        unclear = OutcomeUnknown if changes else CloudUnavailable
        try:
            client = self._client(service, changes)
            self.made[operation] += 1
            answer: Mapping[str, Any] = getattr(client, operation)(**words)
        except ClientError as error:
            said = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            raise of_code(said.get("Code", ""), said.get("Message", ""), status, unclear) from error
        except BotoCoreError as error:
            raise _unsent(error, unclear) from error
        return answer

    def _client(self, service: str, changes: bool) -> Any:
        with self._lock:
            known = self._clients.get((service, changes))
            if known is None:
                known = self._clients[service, changes] = self._make(service, changes)
            return known

    def _make(self, service: str, changes: bool) -> Any:
        import boto3  # noqa: PLC0415 - see above
        from botocore.config import Config  # noqa: PLC0415

        settings = self._settings
        if self._session is None:
            self._session = boto3.Session(profile_name=settings.profile or None, region_name=settings.region)
        retries = {"mode": "adaptive", "total_max_attempts": 1 if changes else _READ_ATTEMPTS}
        config = Config(
            retries=retries, connect_timeout=_CONNECT_S, read_timeout=settings.timeout_s, max_pool_connections=16,
            user_agent_extra="burstd",
        )  # fmt: skip
        region = settings.region
        if service == "pricing":
            region = _PRICE_REGIONS.get(settings.region.partition("-")[0], "us-east-1")
        return self._session.client(
            service, region_name=region, config=config, endpoint_url=settings.endpoint_url or None
        )


def _unsent(error: Exception, unclear: type[ProviderError]) -> ProviderError:
    """The error where no answer came: whether the call went out decides."""
    from botocore import exceptions as e  # noqa: PLC0415 - see above

    text = " ".join(str(error).split())
    no_credentials = (
        e.NoCredentialsError, e.PartialCredentialsError, e.CredentialRetrievalError, e.ProfileNotFound,
        e.TokenRetrievalError, e.UnauthorizedSSOTokenError, e.SSOError, e.NoAuthTokenError,
    )  # fmt: skip
    if isinstance(error, no_credentials):
        return AuthFailed(f"boto3 finds no credentials for burstd's user: {text}")
    # Never sent: no connection, or words that botocore itself refuses.
    never = (e.EndpointConnectionError, e.ConnectTimeoutError, e.ProxyConnectionError, e.SSLError, e.NoRegionError)
    if isinstance(error, never):
        return CloudUnavailable(f"Amazon cannot be reached: {text}")
    if isinstance(error, (e.ParamValidationError, e.UnknownParameterError)):
        return of_code("ParamValidation", text, 400, unclear)
    return unclear(f"no answer came: {text}")
