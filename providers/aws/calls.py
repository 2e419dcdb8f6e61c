"""The only speaker of boto3: clients, retries, pages, time limits, and errors as the interface has them.

Reading is repeated by botocore itself (adaptive: it slows down where Amazon throttles). A call that changes something
is sent once: what is tried again, and when, is burstd's business, and a launch repeated unseen would hide it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from burstd.domain.cloud.read_limits import AnswerTooLarge, BoundedList, read_bounded
from burstd.domain.errors import AuthFailed, CloudUnavailable, OutcomeUnknown, ProviderError, RateLimited
from providers.aws.errors import error_for_code
from providers.aws.settings import AwsSettings
from providers.parsing import read_date

_READ_ATTEMPTS = 5
_CONNECT_S = 5.0
_NO_CREDENTIALS = "boto3 has no credentials for burstd's user"
_PRICE_REGIONS = {"eu": "eu-central-1", "ap": "ap-south-1"}
"""Amazon's price list is served from three regions only; any of them knows all."""


class AwsCalls:
    """One account and region. Used from many threads; makes no call before the first ``ask`` or ``tell``."""

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, bool], Any] = {}
        self._thread_state = threading.local()
        """``sent``: whether the call that this thread makes has gone out, as far as botocore knows."""
        self.call_counts: Counter[str] = Counter()
        """Calls so far, by the operation's name in snake case; botocore's own repeats are not counted."""

    def query(self, service: str, operation: str, **words: Any) -> Mapping[str, Any]:
        """A call that changes nothing. Without an answer the cloud is unavailable."""
        return self._call(service, operation, words, changes=False)

    def mutate(self, service: str, operation: str, **words: Any) -> Mapping[str, Any]:
        """A call that changes something, sent once. Without a clear answer its outcome is unknown."""
        return self._call(service, operation, words, changes=True)

    def pages(
        self, service: str, operation: str, key: str, *, limit: int | None = None, **words: Any
    ) -> Iterator[Mapping[str, Any]]:
        """The things under ``key`` of every page, each page asked for when it is needed; ends early only by raising."""
        more: dict[str, Any] = {} if limit is None else {"MaxResults": limit}
        seen: set[str] = set()
        reading = BoundedList(operation)
        while True:
            with reading.page():
                answer = self.query(service, operation, **words, **more)
            yield from reading.items(answer.get(key, []))
            token = answer.get("NextToken")
            if not token:
                return
            if token in seen:
                raise CloudUnavailable(f"cannot {operation}: the list has no end: is there a proxy in between?")
            seen.add(token)
            more["NextToken"] = token

    def server_time(self) -> float:
        """Seconds since 1970 by Amazon's clock, to the second. Needs no permission."""
        return read_date(self.query("sts", "get_caller_identity")["ResponseMetadata"]["HTTPHeaders"]["date"])

    def close(self) -> None:
        """Gives connections back."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _call(self, service: str, operation: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a site without AWS has none

        unclear = OutcomeUnknown if changes else CloudUnavailable
        self._thread_state.sent = False
        try:
            client = self._client(service, changes)
            self.call_counts[operation] += 1
            answer: Mapping[str, Any] = getattr(client, operation)(**words)
        except ClientError as error:
            raise self._client_error(error, unclear) from error
        except BotoCoreError as error:
            # Without the cause: what a credential process wrote is in it, and would be in a traceback.
            raise _without_answer(error, unclear, sent=self._thread_state.sent) from None
        except AnswerTooLarge as error:
            raise unclear(f"the answer is none of Amazon's: {error}") from None
        except Exception as error:  # noqa: BLE001 - boto3 lets through whatever credentials, files and parsers raise
            raise _unexpected_error(error, unclear, sent=self._thread_state.sent) from None
        return answer

    def _client_error(self, error: Any, unclear: type[ProviderError]) -> ProviderError:
        said = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        code, text = said.get("Code", ""), said.get("Message", "")
        if self._thread_state.sent:
            return error_for_code(code, text, status, unclear)
        # It is boto3's own call for credentials, such as AssumeRole, that was refused.
        found = error_for_code(code, text, status, CloudUnavailable)
        return found if isinstance(found, RateLimited | CloudUnavailable) else AuthFailed(f"{_NO_CREDENTIALS}: {found}")

    def _before_send(self, **_: Any) -> None:
        """For botocore's event, between the signing of a request and its way out."""
        self._thread_state.sent = True

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
        made = self._session.client(
            service, region_name=region, config=config, endpoint_url=settings.endpoint_url or None
        )
        made.meta.events.register("before-send", self._before_send)
        limit_answers(made)
        return made


def limit_answers(client: Any) -> None:
    """Has a client's answers read up to a limit."""
    session = client._endpoint.http_session  # noqa: SLF001 - botocore has no public way to it
    send = session.send

    def bounded(request: Any) -> Any:
        # Else it is read whole in there.
        streamed, request.stream_output = request.stream_output, True
        response = send(request)
        if not streamed:
            response._content = read_bounded(response.raw.stream())  # noqa: SLF001 - where botocore itself keeps it
        return response

    session.send = bounded


def _without_answer(error: Any, unclear: type[ProviderError], *, sent: bool) -> ProviderError:
    """The error where no answer came: whether the call may have been carried out decides."""
    from botocore import exceptions as e  # noqa: PLC0415 - see above

    text = " ".join(str(error).split())
    others_words = (e.CredentialRetrievalError, e.TokenRetrievalError, e.SSOTokenLoadError, e.MetadataRetrievalError)
    if isinstance(error, others_words):
        # What a credential process or a token's file said may hold secrets.
        source = error.kwargs.get("provider", "")
        return AuthFailed(f"{_NO_CREDENTIALS}: {type(error).__name__}" + (f" of {source}" if source else ""))
    no_credentials = (
        e.NoCredentialsError, e.PartialCredentialsError, e.ProfileNotFound, e.SSOError, e.NoAuthTokenError,
        e.InvalidConfigError, e.ConfigParseError, e.ConfigNotFound, e.UnknownCredentialError,
        e.RefreshWithMFAUnsupportedError, e.MissingDependencyException,
    )  # fmt: skip
    if isinstance(error, no_credentials):
        return AuthFailed(f"{_NO_CREDENTIALS}: {text}")
    if isinstance(error, (e.ParamValidationError, e.UnknownParameterError)):
        return error_for_code("ParamValidation", text, 400, unclear)
    unconnected = (e.EndpointConnectionError, e.ConnectTimeoutError, e.ProxyConnectionError)
    # TLS may break while the answer is read; a certificate is looked at before anything is sent.
    distrusted = isinstance(error, e.SSLError) and "CERTIFICATE_VERIFY_FAILED" in text
    if not sent or distrusted or isinstance(error, unconnected):
        return CloudUnavailable(f"Amazon cannot be reached: {text}")
    return unclear(f"no answer came: {text}")


def _unexpected_error(error: Exception, unclear: type[ProviderError], *, sent: bool) -> ProviderError:
    """The error where botocore raised what is none of its own. The words may hold an answer's body, or a secret."""
    kind = type(error).__name__
    if sent:
        return unclear(f"the answer is none of Amazon's, or is cut ({kind}): is there a proxy in between?")
    if isinstance(error, OSError) and error.filename:
        kind = f"{kind}: {error.filename}"
    return AuthFailed(f"{_NO_CREDENTIALS} ({kind}): look at its profile, its credential process and their files")
