"""The only speaker to Azure: credentials, pages, time limits, one try for each call, errors as the interface has them.

Nothing is repeated here, with one exception: after a 401, which says that nothing was done, the credentials are read
again and the call is made once more. Things are the JSON that Azure Resource Manager speaks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from burstd.domain.cloud.read_limits import BoundedList
from burstd.domain.errors import AuthFailed, CloudUnavailable, NotFound, OutcomeUnknown, ProviderError
from providers.azure.errors import error_for_response, read_object
from providers.azure.settings import AzureSettings
from providers.http_errors import HttpResponse, short_message, surely_unsent
from providers.parsing import read_date

if TYPE_CHECKING:
    from providers.azure.access import AzureAccess

Resource = Mapping[str, Any]
_VERSIONS = {
    "Microsoft.Compute/virtualMachines": "2026-04-01",
    "Microsoft.Compute/locations": "2026-04-01",
    "Microsoft.Compute/images": "2026-04-01",
    "Microsoft.Compute/disks": "2026-03-02",
    "Microsoft.Compute/galleries": "2026-03-03",
    "Microsoft.Compute/skus": "2021-07-01",
    "Microsoft.Network/networkInterfaces": "2026-03-01",
    "Microsoft.Network/publicIPAddresses": "2026-03-01",
    "Microsoft.Network/virtualNetworks": "2026-03-01",
    "Microsoft.Network/networkSecurityGroups": "2026-03-01",
    "Microsoft.Authorization/permissions": "2022-04-01",
    "": "2021-04-01",
}
"""Of the interface, by provider and type of resource, as in azure-mgmt-compute 39 and azure-mgmt-network 33; the last
is of resource groups."""
_VERSION_OF = {kind.lower(): version for kind, version in _VERSIONS.items()}


class AzureCalls:
    """One subscription. Used from many threads; makes no call before the first that is asked for."""

    def __init__(self, settings: AzureSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._current: AzureAccess | None = None
        self._counting = threading.Lock()
        self.call_counts: Counter[str] = Counter()
        """Requests so far, by method and type of resource."""

    def in_group(self, kind: str, name: str = "") -> str:
        """Path of a type of resource in our group (``Microsoft.Compute/disks``), or of one of them."""
        group = f"{self.in_subscription()}/resourceGroups/{self._settings.resource_group}"
        return f"{group}/providers/{kind}" + (f"/{name}" if name else "") if kind else group

    def in_subscription(self, kind: str = "") -> str:
        """The same in our subscription as a whole."""
        return f"/subscriptions/{self._settings.subscription}" + (f"/providers/{kind}" if kind else "")

    def query(self, path: str, what: str, **query: Any) -> Resource:
        """One GET. ``what``, in the infinitive, is for people."""
        return self._call("GET", path, what, query, {}, None, changes=False)

    def read_by_post(self, path: str, what: str, **query: Any) -> Resource:
        """One POST that changes nothing."""
        return self._call("POST", path, what, query, {}, None, changes=False)

    def mutate(
        self,
        method: str,
        path: str,
        what: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Resource:
        """One call that changes something, sent once; empty where Azure answers nothing."""
        return self._call(method, path, what, query, dict(headers or {}), body, changes=True)

    def pages(self, path: str, what: str, **query: Any) -> Iterator[Resource]:
        """The things of every page, each page asked for when it is needed; ends early only by raising."""
        return chain.from_iterable(self.page_by_page(path, what, **query))

    def page_by_page(self, path: str, what: str, **query: Any) -> Iterator[Sequence[Resource]]:
        """As ``pages``, with the things of each page together."""
        seen, reading = set[str](), BoundedList(what)
        first = True
        while True:
            try:
                with reading.page():
                    answer = self.query(path, what, **query)
            except NotFound as error:
                if first:
                    raise
                raise CloudUnavailable(f"the list changed while it was read: {error}") from error
            yield reading.items(answer.get("value"))
            more = str(answer.get("nextLink") or "")
            if not more:
                return
            if more in seen:
                raise CloudUnavailable(f"cannot {what}: page after page is the same: is there a proxy in between?")
            seen.add(more)
            first = False
            path, query = self._next_page(more, what), {}

    def public(self, url: str, what: str, **query: Any) -> HttpResponse:
        """One GET of an address that needs no credentials, or that has them in itself: it is in no message."""
        return self._send(self._access(), "GET", url, what, query, {}, None, changes=False)

    def server_time(self) -> float:
        """Seconds since 1970 by Azure's clock, to the second."""
        answer = self._authorized("GET", self.in_group(""), "read Azure's clock", {}, {}, None, changes=False)
        return read_date(answer.headers.get("date", ""))

    def close(self) -> None:
        """Gives connections back."""
        with self._lock:
            known, self._current = self._current, None
        if known is not None:
            known.close()

    def _next_page(self, link: str, what: str) -> str:
        """Path and query of the next page, as Azure has them.

        Our token goes nowhere but to the endpoint, whatever an answer says.
        """
        url, ours = urlsplit(link), urlsplit(self._settings.endpoint)
        if (url.scheme, url.hostname, url.port or 443) != (ours.scheme, ours.hostname, ours.port or 443):
            raise CloudUnavailable(f"cannot {what}: the next page is at {url.hostname}, not at the endpoint")
        return url._replace(scheme="", netloc="").geturl()

    def _call(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, Any],
        headers: dict[str, str],
        body: Any,
        *,
        changes: bool,
    ) -> Resource:
        answer = self._authorized(method, path, what, query, headers, body, changes=changes)
        if answer.status >= 300:
            raise error_for_response(answer, what, changes=changes)
        if not answer.body:
            return {}
        said = read_object(answer.body)
        if said is None:
            unclear = OutcomeUnknown if changes else CloudUnavailable
            raise unclear(f"cannot {what}: the answer is no JSON object: is there a proxy in between?")
        return said

    def _authorized(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, Any],
        headers: dict[str, str],
        body: Any,
        *,
        changes: bool,
    ) -> HttpResponse:
        url, kind = self._settings.endpoint + path, _kind(path)
        # That of a next page says it itself.
        versioned = {} if "?" in path else {"api-version": _VERSION_OF[kind.lower()], **query}
        for again in (False, True):
            access = self._access()
            try:
                token = access.token()
            except ProviderError:
                # MSAL answers the same for a minute; a new secret may be in the file.
                self._forget(access)
                raise
            signed = {**headers, "Authorization": f"Bearer {token}", "Accept": "application/json"}
            with self._counting:
                self.call_counts[f"{method} {kind}"] += 1
            answer = self._send(access, method, url, what, versioned, signed, body, changes=changes)
            if answer.status != 401 or again:
                return answer
            self._forget(access)
        raise AssertionError

    def _send(
        self, access: AzureAccess, method: str, url: str, what: str, query: Mapping[str, Any],
        headers: dict[str, str], body: Any, *, changes: bool,
    ) -> HttpResponse:  # fmt: skip
        try:
            return access.send(method, url, query, headers, body)
        except ProviderError:
            raise
        except Exception as error:  # noqa: BLE001 - azure-core lets through what requests, urllib3 and ssl raise
            # Without the cause: an address that has its credentials in itself would be in a traceback.
            if surely_unsent(error):
                raise CloudUnavailable(f"Azure cannot be reached to {what}: {_words(error)}") from None
            unclear = OutcomeUnknown if changes else CloudUnavailable
            raise unclear(f"no answer came when burstd would {what}: {_words(error)}") from None

    def _access(self) -> AzureAccess:
        try:
            from providers.azure.access import AzureAccess  # noqa: PLC0415 - a site without Azure has none
        except ImportError:
            raise AuthFailed("providers of kind azure need azure-identity: pip install 'burstd[azure]'") from None
        with self._lock:
            if self._current is None:
                self._current = AzureAccess(self._settings)
            return self._current

    def _forget(self, access: AzureAccess) -> None:
        """The next call reads its credentials anew. Connections end with the calls of other threads that use them."""
        with self._lock:
            if self._current is access:
                self._current = None


def _words(error: BaseException) -> str:
    """Without the address, which may have credentials in its query."""
    return short_message(str(error).partition("?")[0], 200)


def _kind(path: str) -> str:
    """``Microsoft.Compute/disks`` of a path: the outermost type of resource. Letters may be of any case."""
    path = path.partition("?")[0]
    start = path.lower().rfind("/providers/")
    return "/".join(path[start:].split("/")[2:4]) if start >= 0 else ""
