"""The only speaker of Google's libraries: credentials, calls, pages, time limits, and errors as the interface has them.

Nothing is repeated here: what is tried again, and when, is burstd's business. There is one exception: after a 401,
which says that nothing was done, google-auth asks for a new token and then once more.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from burstd.domain.cloud.read_limits import AnswerTooLarge, BoundedList, read_bounded
from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, OutcomeUnknown, ProviderError
from providers.google.errors import error_for_response
from providers.google.settings import GoogleSettings
from providers.http_errors import HttpResponse, short_message, surely_unsent
from providers.parsing import read_date

_CONNECT_S = 5.0
_PIECE = 1 << 16
_MAX_CONNECTIONS = 64
"""requests keeps ten, and writes a line for each more that it throws away."""
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_VERSIONS = {"compute": ("v1", "compute/v1/"), "cloudbilling": ("v1", ""), "cloudresourcemanager": ("v1", "")}
"""Of each service, and where it begins behind the endpoint."""
_NO_CREDENTIALS = "burstd's user has no credentials of Google's"


class GoogleCalls:
    """One project. Used from many threads; makes no call before the first ``query`` or ``mutate``."""

    def __init__(self, settings: GoogleSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._http: _Http | None = None
        self._answered = ""
        """The date of the last answer, as it says it."""
        self._services: dict[str, Any] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        self.call_counts: Counter[str] = Counter()
        """Calls so far, by Google's id of the method: ``compute.instances.insert``."""

    def query(self, method: str, what: str, **words: Any) -> Mapping[str, Any]:
        """A call that changes nothing. ``method`` is Google's id of it; ``what``, in the infinitive, is for people."""
        return self._call(method, what, words, changes=False)

    def mutate(self, method: str, what: str, **words: Any) -> Mapping[str, Any]:
        """A call that changes something, sent once. Without a clear answer its outcome is unknown."""
        return self._call(method, what, words, changes=True)

    def items(
        self, method: str, what: str, *, list_key: str = "items", keeps_items: bool = True, **words: Any
    ) -> Iterator[Mapping[str, Any]]:
        """The things of every page, each asked for when it is needed; ends early only by raising.

        Raises CloudUnavailable where Google warns: some may be missing. ``keeps_items``: as ``BoundedList`` has it.
        """
        reading = BoundedList(what, keeps_items=keeps_items)
        seen: set[str] = set()
        more: dict[str, str] = {}
        while True:
            with reading.page():
                answer = self.query(method, what, **words, **more)
            warning = (answer.get("warning") or {}).get("code")
            if warning not in (None, "NO_RESULTS_ON_PAGE"):
                raise CloudUnavailable(f"cannot {what}: Google gives a part of the list ({warning})")
            yield from reading.items(answer.get(list_key, []))
            token = answer.get("nextPageToken")
            if not token:
                return
            if token in seen:
                raise CloudUnavailable(f"cannot {what}: the list has no end: is there a proxy in between?")
            seen.add(token)
            more["pageToken"] = token

    def server_time(self) -> float:
        """Seconds since 1970 by Google's clock, to the second."""
        words = {"project": self._settings.project, "region": self._settings.region, "fields": "name"}
        self.query("compute.regions.get", "read Google's clock", **words)
        return self.answered_at()

    def answered_at(self) -> float:
        """When the last answer was given, in seconds since 1970 by Google's clock."""
        return read_date(self._answered)

    def close(self) -> None:
        """Gives connections back. The next call reads the credentials anew: there may be others."""
        with self._lock:
            http, self._http = self._http, None
            self._services.clear()
            self._methods.clear()
        if http is not None:
            http.close()

    def _call(self, method: str, what: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        unclear = OutcomeUnknown if changes else CloudUnavailable
        call = self._method(method)
        try:
            request = call(**words)
        except (TypeError, ValueError) as error:
            # googleapiclient refuses what Google's schema does.
            raise BadRequest(f"Google has no such thing: cannot {what}: {short_message(str(error))}") from error
        self.call_counts[method] += 1
        from googleapiclient.errors import HttpError  # noqa: PLC0415 - a site without Google has none

        try:
            answer = request.execute()
        except HttpError as error:
            said = _response(error)
            if said.status == HTTPStatus.UNAUTHORIZED:
                self.close()
            raise error_for_response(said, what, changes=changes) from None
        except AnswerTooLarge as error:
            raise unclear(f"cannot {what}: the answer is none of Google's: {error}") from None
        except Exception as error:  # noqa: BLE001 - google-auth, requests, files and parsers raise whatever they like
            found = _error_without_answer(error, what, unclear)
            if isinstance(found, AuthFailed):
                self.close()
            raise found from None
        if not isinstance(answer, dict):
            raise unclear(f"cannot {what}: the answer is no JSON object: is there a proxy in between?")
        return answer

    def _method(self, name: str) -> Callable[..., Any]:
        with self._lock:
            found = self._methods.get(name)
            if found is None:
                try:
                    found = self._methods[name] = self._find_method(name)
                except ImportError:
                    need = "providers of kind google need google-api-python-client: pip install 'burstd[google]'"
                    raise AuthFailed(need) from None
            return found

    def _find_method(self, name: str) -> Callable[..., Any]:
        service, *path, last = name.split(".")
        if service not in self._services:
            self._services[service] = self._make_service(service)
        at = self._services[service]
        for part in path:
            at = getattr(at, part)()
        found: Callable[..., Any] = getattr(at, last)
        return found

    def _make_service(self, name: str) -> Any:
        from googleapiclient import discovery  # noqa: PLC0415 - see above

        if self._http is None:
            self._http = _Http(_session(self._settings), self._settings.timeout_s, self._note)
        version, base = _VERSIONS[name]
        endpoint = self._settings.endpoint.replace("{service}", name)
        options = {"api_endpoint": f"{endpoint}/{base}"} if endpoint else None
        return discovery.build(
            name, version, http=self._http, client_options=options, cache_discovery=False, static_discovery=True
        )

    def _note(self, date: str) -> None:
        self._answered = date


class _Http:
    """What googleapiclient wants of httplib2, which no two threads may use, and which sends things again unseen.

    ``note`` hears of the date of each answer.
    """

    def __init__(self, session: Any, timeout_s: float, note: Callable[[str], None]) -> None:
        self.session = session
        self._timeout = (_CONNECT_S, timeout_s)
        self._note = note

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, bytes]:
        import httplib2  # noqa: PLC0415 - see above

        # A redirect would be given our token, wherever it leads.
        with self.session.request(
            method, uri, data=body, headers=dict(headers or {}), timeout=self._timeout, stream=True,
            allow_redirects=False,
        ) as response:  # fmt: skip
            content = read_bounded(response.iter_content(_PIECE))
        self._note(response.headers.get("date", ""))
        info = httplib2.Response({name.lower(): value for name, value in response.headers.items()})
        info.status, info.reason = response.status_code, response.reason
        return info, content

    def close(self) -> None:
        self.session.close()


def _session(settings: GoogleSettings) -> Any:
    """Raises AuthFailed where there are no credentials."""
    import google.auth  # noqa: PLC0415 - see above
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415
    from requests.adapters import HTTPAdapter  # noqa: PLC0415

    file = settings.credentials_file
    try:
        credentials = google.auth.default(scopes=_SCOPES)[0] if file is None else _read_credentials(file)
    except (GoogleAuthError, AuthFailed) as error:
        raise AuthFailed(f"{_NO_CREDENTIALS}: {short_message(_first(error))}") from None
    except OSError as error:
        raise AuthFailed(f"{_NO_CREDENTIALS}: {file} cannot be read: {error.strerror}") from None
    except Exception as error:  # noqa: BLE001 - whatever parsers raise, whose words may repeat a line with a secret
        raise AuthFailed(f"{_NO_CREDENTIALS}: {file} cannot be understood ({type(error).__name__})") from None
    session = AuthorizedSession(credentials, refresh_timeout=settings.timeout_s)  # type: ignore[no-untyped-call, unused-ignore]
    session.mount("https://", HTTPAdapter(pool_maxsize=_MAX_CONNECTIONS))
    return session


def _read_credentials(file: Path) -> Any:
    from google.auth import identity_pool  # noqa: PLC0415 - see above
    from google.oauth2 import service_account  # noqa: PLC0415

    said = json.loads(file.read_text(encoding="utf-8"))
    kinds: dict[str, Any] = {
        "service_account": service_account.Credentials.from_service_account_info,
        "external_account": identity_pool.Credentials.from_info,
    }
    make = kinds.get(said["type"])
    if make is None:
        raise AuthFailed(f"{file} is of type {said['type']}: use one of {', '.join(kinds)}")
    return make(said, scopes=_SCOPES)


def _error_without_answer(error: Exception, what: str, unclear: type[ProviderError]) -> ProviderError:
    from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415 - see above

    if isinstance(error, GoogleAuthError):
        # A token is got before a call goes out, or again after a 401: nothing was done.
        text = f"cannot {what}: Google gives no token: {short_message(_first(error))}"
        if isinstance(error, TransportError) or getattr(error, "retryable", False):
            return CloudUnavailable(text)
        return AuthFailed(f"{text}; look at the credentials and at this machine's clock")
    if surely_unsent(error):
        return CloudUnavailable(f"cannot {what}: Google cannot be reached: {short_message(str(error))}")
    if isinstance(error, OSError):
        return unclear(f"no answer came when burstd would {what}: {short_message(str(error))}")
    kind = type(error).__name__
    return unclear(f"cannot {what}: the answer is none of Google's, or is cut ({kind}): is there a proxy in between?")


def _first(error: Exception) -> str:
    """What google-auth says; behind it may stand an answer's body."""
    return str(error.args[0]) if error.args else type(error).__name__


def _response(error: Any) -> HttpResponse:
    headers = {name.lower(): str(value) for name, value in error.resp.items()}
    return HttpResponse(int(error.resp.status), headers, error.content.decode(errors="replace"))
