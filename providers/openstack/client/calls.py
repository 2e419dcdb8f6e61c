"""The only maker of connections: credentials, time limits, one try for each call, errors as the interface has them.

Nothing is repeated here: what is tried again, and when, is burstd's business. There is one exception: after a 401,
which says that nothing was done, keystoneauth asks for a new token and then once more.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, urlsplit

from burstd.domain.cloud.read_limits import BoundedList
from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, NotFound, OutcomeUnknown, ProviderError
from providers.openstack.client.errors import error_for_response
from providers.openstack.settings import OpenStackSettings
from providers.parsing import read_date

_READS = ("GET", "HEAD")
_VERSION = re.compile(r"v\d+(\.\d+)?")
_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class OpenStackCalls:
    """One project of one cloud. Used from many threads; makes no call before the first that is asked for."""

    def __init__(self, settings: OpenStackSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Any = None
        self._newest: dict[str, tuple[int, ...]] = {}
        """Microversion, by service."""
        self._thread_state = threading.local()
        """``sent``: whether what this thread sent last was to change something."""
        self._counting = threading.Lock()
        self.call_counts: Counter[str] = Counter()
        """Requests so far, by method and kind of path: ``GET /servers/detail``, ``DELETE /ports/ID``."""

    @property
    def connection(self) -> Any:
        """openstacksdk's, for use within ``told``. Raises AuthFailed where the credentials cannot be read."""
        try:
            from providers.openstack.client import access  # noqa: PLC0415 - a site without OpenStack has none
        except ImportError:
            raise AuthFailed("providers of kind openstack need openstacksdk: pip install 'burstd[openstack]'") from None
        settings = self._settings
        with self._lock:
            if self._connection is None:
                self._connection = access.open_connection(
                    settings.cloud, settings.clouds_yaml, settings.region, settings.timeout_s, self._before_send
                )
            return self._connection

    @contextmanager
    def translate_errors(self, *, changes: bool, what: str) -> Iterator[None]:
        """Turns all that openstacksdk raises within into ProviderErrors. ``what``, in the infinitive, is for people.

        Has one call in it, where ``changes``.
        """
        self._thread_state.sent = False
        try:
            yield
        except ProviderError:
            raise
        except Exception as error:  # noqa: BLE001 - openstacksdk lets through what requests, files and parsers raise
            from providers.openstack.client import access  # noqa: PLC0415 - see above

            meant = access.provider_error(error, what, changes=changes, sent=self._thread_state.sent)
            if access.is_stale(error) or isinstance(meant, AuthFailed):
                self._drop_connection()
            # Without the cause: what Keystone said of a request may repeat it, and would be in a traceback.
            raise meant from None

    def query(self, service: str, path: str, what: str, *, version: str = "", **query: Any) -> Any:
        """One GET; the JSON that it answers. ``service``: an attribute of the connection, ``compute``, ``network``,
        ``block_storage``, ``image``, ``identity``. ``version``: microversion, or the newest older one that there is.
        """
        return self._call(service, "GET", path, what, version, params=query, skip_cache=True)

    def mutate(self, service: str, method: str, path: str, what: str, *, body: Any = None, version: str = "") -> Any:
        """One call that changes something, sent once; the JSON that it answers, or None."""
        return self._call(service, method, path, what, version, **({} if body is None else {"json": body}))

    def pages(
        self, service: str, path: str, key: str, what: str, *, version: str = "", **query: Any
    ) -> Iterator[Mapping[str, Any]]:
        """The things under ``key`` of every page, each page asked for when it is needed; ends early only by raising."""
        return chain.from_iterable(self.page_by_page(service, path, key, what, version=version, **query))

    def page_by_page(
        self, service: str, path: str, key: str, what: str, *, version: str = "", **query: Any
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        """As ``pages``, with the things of each page together."""
        first, seen, reading = True, set[str](), BoundedList(what)
        while True:
            try:
                with reading.page():
                    answer = self.query(service, path, what, version=version, **query)
            except (BadRequest, NotFound) as error:
                if first:
                    raise
                # What the page was to begin after is gone by now.
                raise CloudUnavailable(f"the list changed while it was read: {error}") from error
            yield reading.items((answer or {}).get(key))
            more = _next_page(answer, key)
            if not more:
                return
            # The address itself may be one that only the service behind a balancer knows.
            before, query, first = query, parse_qs(urlsplit(more).query), False
            if query == before or more in seen:
                raise CloudUnavailable(f"cannot {what}: page after page is the same: is there a proxy in between?")
            seen.add(more)

    def has_service(self, service_type: str) -> bool:
        """Whether the project's service catalogue has it: ``block-storage``, ``network`` ..."""
        return bool(self._regions(service_type))

    def region(self, service_type: str = "compute") -> str:
        """Of the settings, of clouds.yaml, or the only one. Raises BadRequest where this service is in several.

        Each service would be that of any region otherwise, today this and tomorrow that: servers would look gone.
        """
        found = self._settings.region or self.connection.config.get_region_name(service_type)
        if found:
            return str(found)
        several = self._regions(service_type)
        if len(several) > 1:
            raise BadRequest(f"this cloud has the regions {', '.join(several)}: set region, a provider for each")
        return "".join(several)

    def server_time(self) -> float:
        """Seconds since 1970 by Keystone's clock, to the second. Needs no credentials."""
        session = self.connection.session
        with self.translate_errors(changes=False, what="read Keystone's clock"):
            answer = session.get(session.auth.auth_url, authenticated=False)
        return read_date(answer.headers["Date"])

    def project_id(self) -> str:
        """Id of the one that the credentials are for."""
        connection = self.connection
        with self.translate_errors(changes=False, what="log in"):
            return str(connection.current_project_id)

    def close(self) -> None:
        """Gives connections back."""
        connection = self._drop_connection()
        if connection is not None:
            connection.close()

    def _regions(self, service_type: str) -> list[str]:
        """Where the service catalogue has it, of those that the credentials are for."""
        connection = self.connection
        with self.translate_errors(changes=False, what="read the service catalogue"):
            config = connection.config
            found = connection.session.auth.get_access(connection.session).service_catalog.get_endpoints_data(
                service_type=config.get_service_type(service_type),
                interface=config.get_interface(service_type),
                region_name=config.get_region_name(service_type),
            )
            return sorted({one.region_name or "" for several in found.values() for one in several})

    def _call(self, service: str, method: str, path: str, what: str, version: str, **words: Any) -> Any:
        connection, changes = self.connection, method not in _READS
        if service != "identity":
            self.region(service.replace("_", "-"))
        with self.translate_errors(changes=False, what=what):
            proxy = getattr(connection, service)
            headers = {"microversion": self._version(service, proxy, version)} if version else {}
        with self.translate_errors(changes=changes, what=what):
            response = proxy.request(path, method, raise_exc=False, **headers, **words)
            if response.status_code < 300:
                said = response.json() if response.content else None
                if said is not None and not isinstance(said, dict):
                    unclear = OutcomeUnknown if changes else CloudUnavailable
                    raise unclear(f"cannot {what}: the answer is no JSON object: is there a proxy in between?")
                return said
        from providers.openstack.client import access  # noqa: PLC0415 - see above

        raise error_for_response(access.read_response(response), what, changes=changes)

    def _version(self, service: str, proxy: Any, wanted: str) -> str:
        """Raises CloudUnavailable where the service does not say what it has."""
        newest = self._newest.get(service)
        if newest is None:
            data = proxy.get_endpoint_data()
            newest = None if data is None else data.max_microversion
            if newest is None:
                raise CloudUnavailable(f"the {service} service does not say which versions it has: is it up?")
            self._newest[service] = newest
        major, minor = min(tuple(map(int, wanted.split("."))), tuple(newest[:2]))
        return f"{major}.{minor}"

    def _before_send(self, method: str, url: str) -> None:
        """Hears of each request on its way out, those for tokens and versions too."""
        from providers.openstack.client import access  # noqa: PLC0415 - see above

        self._thread_state.sent = method not in _READS and not access.is_login(url)
        with self._counting:
            self.call_counts[f"{method} {_path_pattern(url)}"] += 1

    def _drop_connection(self) -> Any:
        """What was learned of the cloud may have been learned while a service was down: openstacksdk keeps it."""
        with self._lock:
            connection, self._connection = self._connection, None
            self._newest.clear()
        return connection


def _next_page(answer: Mapping[str, Any], key: str) -> str:
    """Address of the next page; empty: this is the last."""
    links = answer.get(f"{key}_links")
    named = [one for one in links if isinstance(one, dict)] if isinstance(links, list) else []
    more = next((one.get("href") for one in named if one.get("rel") == "next"), answer.get("next"))
    return more if isinstance(more, str) else ""


def _path_pattern(url: str) -> str:
    """The path from behind the version, without the project's id, with ``ID`` for ids."""
    words = [word for word in urlsplit(url).path.split("/") if word]
    start = next((place + 1 for place, word in enumerate(words) if _VERSION.fullmatch(word)), 0)
    rest = words[start:]
    if rest and _ID.fullmatch(rest[0]):
        rest = rest[1:]
    return "/" + "/".join("ID" if _ID.fullmatch(word) else word for word in rest)
