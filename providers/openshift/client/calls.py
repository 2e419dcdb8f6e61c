"""The only maker of connections: credentials, time limits, one try for each call, errors as the interface has them.

Nothing is repeated here, with one exception: where the API server does not know who asks, it has done nothing, so the
credentials are read again and the call is made once more. What is tried again otherwise, and when, is burstd's
business. Things are the JSON that the API server speaks: dicts.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

from burstd.domain.cloud.read_limits import BoundedList, read_bounded
from burstd.domain.errors import AuthFailed, CloudUnavailable, OutcomeUnknown, ProviderError
from providers.http_errors import HttpResponse
from providers.openshift.client.time_limit import TimeLimitedCall
from providers.openshift.errors import ResourceVersionExpired, error_for_response, error_without_response
from providers.parsing import read_date

if TYPE_CHECKING:
    from pathlib import Path

    from providers.openshift.client.access import KubeconfigAccess
    from providers.openshift.client.watch_stream import WatchStream
    from providers.openshift.client.websocket import Channels

_READS = ("GET", "HEAD")
_JSON = "application/json"
_PIECE = 1 << 16
KubeObject = dict[str, Any]
Query = Mapping[str, Any]
Answered = TypeVar("Answered")


class ClusterSettings(Protocol):
    """Of those of a provider, or of a store, what is needed to reach the cluster. See OpenShiftSettings."""

    @property
    def kubeconfig(self) -> Path | None:
        """None: that of burstd's own pod, or of its home."""
        ...

    @property
    def context(self) -> str:
        """Empty: the kubeconfig's current one."""
        ...

    @property
    def namespace(self) -> str:
        """Where everything is."""
        ...

    @property
    def page(self) -> int:
        """Things to one page of a list."""
        ...

    @property
    def side_by_side(self) -> int:
        """Calls under way at a time."""
        ...

    @property
    def timeout_s(self) -> float:
        """Seconds for the answer to one call."""
        ...


class OpenShiftCalls:
    """One namespace of one cluster. Used from many threads; makes no call before the first that is asked for."""

    def __init__(
        self,
        settings: ClusterSettings,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` need not know the date; ``date`` holds until the first answer that tells it."""
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._current_access: KubeconfigAccess | None = None
        self._reader = TimeLimitedCall(self._read, settings.timeout_s)
        self._skew = date() - clock()
        self._counting = threading.Lock()
        self.call_counts: Counter[str] = Counter()
        """Calls so far, by verb and kind: ``LIST pods``, ``WATCH pods``, ``POST pods``, ``GET pods/exec``."""

    @property
    def namespace(self) -> str:
        """Where everything is."""
        return self._settings.namespace

    def path_of(self, kind: str, name: str = "", sub: str = "", *, api: str = "v1") -> str:
        """Path of the namespace's ``pods``, of one of them, or of its ``log``. ``api``: ``apps/v1`` ..."""
        root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
        words = ["namespaces", self.namespace, kind, *(word for word in (name, sub) if word)]
        return "/".join((root, *(quote(word, safe="") for word in words)))

    def request_json(
        self,
        method: str,
        path: str,
        body: KubeObject | Sequence[Any] | None = None,
        query: Query | None = None,
        *,
        what: str,
        changes: bool | None = None,
        content_type: str = _JSON,
    ) -> KubeObject:
        """One call; the JSON that it answers. ``what``, in the infinitive, is for people. ``changes``: by the method,
        unless said otherwise; a change whose answer is lost is OutcomeUnknown.
        """
        changing = method not in _READS if changes is None else changes
        text = self._text(method, path, body, query, what, changing, content_type)
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            kind = OutcomeUnknown if changing else CloudUnavailable
            raise kind(f"cannot {what}: the answer is no JSON: is there a proxy in between?")
        return said

    def list_objects(self, path: str, query: Query | None = None, *, what: str) -> tuple[list[KubeObject], str]:
        """All things of a list as they were at one moment, and its resourceVersion, to watch from.

        The pages are those of one moment: where the server no longer has it, the list is read once more from the
        beginning. Whatever is in the answer is all that there was; else it raises.
        """
        try:
            return self._listed(path, query or {}, what)
        except ResourceVersionExpired:
            return self._listed(path, query or {}, what)

    def pages(self, path: str, query: Query | None = None, *, what: str) -> Iterator[KubeObject]:
        """The things of a list, once all of its pages are there."""
        return iter(self.list_objects(path, query, what=what)[0])

    def watch(self, path: str, query: Query, *, what: str, quiet_s: float) -> WatchStream:
        """Events as they come: iterate over it. ``quiet_s``: after that long without a byte it counts as broken."""
        from providers.openshift.client.watch_stream import WatchStream  # noqa: PLC0415 - see _access

        asked = {**query, "watch": "true"}

        def begin(access: KubeconfigAccess) -> Any:
            response = self._response(access, "GET", path, None, asked, _JSON, quiet_s)
            return response if response.status < 300 else self._answer(response)

        self._count("WATCH", path)
        got = self._with_fresh_credentials(begin, what, changes=False)
        if isinstance(got, HttpResponse):
            raise error_for_response(got, what, changes=False)
        return WatchStream(got, what)

    def exec_socket(self, pod: str, argv: Sequence[str], *, container: str = "", tty: bool = False) -> Channels:
        """Runs a command in a pod: channels STDIN, STDOUT, STDERR, STATUS of sockets.py. Standard input has no end.

        ``container``: needed where a pod has several, such as those that a service mesh adds. ``tty``: on a
        terminal, which has no STDERR, and which RESIZE gives its size.
        """
        query = [("command", word) for word in argv]
        query += [("stdin", "true"), ("stdout", "true"), ("tty", "true") if tty else ("stderr", "true")]
        query += [("container", container)] if container else []
        return self._channels(self.path_of("pods", pod, "exec"), query, f"run a command in pod {pod}")

    def forward_socket(self, pod: str, port: int) -> Channels:
        """Connects to a port of a pod: bytes on channel 0; what comes on channel 1 is why it failed, in words."""
        what = f"connect to port {port} of pod {pod}"
        # The first message of each channel repeats the port's number.
        return self._channels(self.path_of("pods", pod, "portforward"), [("ports", str(port))], what, skip=(0, 1))

    def server_time(self) -> float:
        """Seconds since 1970 by the API server's clock, to the second, as its last answer told it."""
        return self._clock() + self._skew

    def close(self) -> None:
        """Gives connections back."""
        with self._lock:
            known, self._current_access = self._current_access, None
        if known is not None:
            known.close()

    def _listed(self, path: str, query: Query, what: str) -> tuple[list[KubeObject], str]:
        found: list[KubeObject] = []
        more, seen, reading = "", set[str](), BoundedList(what)
        while True:
            asked = {**query, "limit": self._settings.page} | ({"continue": more} if more else {})
            with reading.page():
                page = self.request_json("GET", path, query=asked, what=what)
            items, about = reading.items(page.get("items")), page.get("metadata")
            if not isinstance(about, dict) or not about.get("resourceVersion"):
                raise CloudUnavailable(f"cannot {what}: the answer is no list: is there a proxy in between?")
            found += items
            more = str(about.get("continue") or "")
            if not more:
                return found, str(about["resourceVersion"])
            if more in seen:
                raise CloudUnavailable(f"cannot {what}: page after page is the same: is there a proxy in between?")
            seen.add(more)

    def _text(
        self,
        method: str,
        path: str,
        body: KubeObject | Sequence[Any] | None,
        query: Query | None,
        what: str,
        changes: bool,
        content_type: str,
    ) -> str:
        sent = None if body is None else json.dumps(body).encode()

        def once(access: KubeconfigAccess) -> HttpResponse:
            return self._answer(
                self._response(access, method, path, sent, query or {}, content_type, self._settings.timeout_s)
            )

        self._count(method, path)
        answer = self._with_fresh_credentials(once, what, changes=changes)
        if answer.status >= 300:
            raise error_for_response(answer, what, changes=changes)
        return answer.body

    def _channels(self, path: str, query: Sequence[tuple[str, str]], what: str, skip: Sequence[int] = ()) -> Channels:
        self._access()  # says so where the client is not installed
        from websocket import WebSocketBadStatusException  # noqa: PLC0415 - see _access

        from providers.openshift.client.websocket import Channels, open_websocket  # noqa: PLC0415 - see _access

        def begin(access: KubeconfigAccess) -> Any:
            try:
                return open_websocket(access, f"{path}?{urlencode(query)}", self._settings.timeout_s)
            except WebSocketBadStatusException as error:
                said = getattr(error, "resp_body", None) or b""
                headers = {key.lower(): value for key, value in (error.resp_headers or {}).items()}
                return HttpResponse(error.status_code, headers, bytes(said).decode(errors="replace"))

        self._count("GET", path)
        got = self._with_fresh_credentials(begin, what, changes=False)
        if isinstance(got, HttpResponse):
            raise error_for_response(got, what, changes=False)
        return Channels(got, self._settings.timeout_s, skip)

    def _with_fresh_credentials(
        self, once: Callable[[KubeconfigAccess], Answered], what: str, *, changes: bool
    ) -> Answered:
        """What a call comes to; made again once, with credentials that were read again, where it did not know us."""
        access = self._access()
        got = self._translate_errors(once, access, what, changes)
        if isinstance(got, HttpResponse) and _is_unauthenticated(got):
            with self._lock:
                if self._current_access is access:
                    # Its connections end with the calls of other threads that still use it.
                    self._current_access = None
            got = self._translate_errors(once, self._access(), what, changes)
            if isinstance(got, HttpResponse) and got.status == 403 and _is_unauthenticated(got):
                raise AuthFailed(
                    f"Kubernetes would not {what}: it does not know burstd; "
                    "look at the user of the kubeconfig's context"
                )
        return got

    @staticmethod
    def _translate_errors(
        once: Callable[[KubeconfigAccess], Answered], access: KubeconfigAccess, what: str, changes: bool
    ) -> Answered:
        try:
            return once(access)
        except ProviderError:
            raise
        except Exception as error:  # noqa: BLE001 - urllib3, websocket-client, ssl and sockets have each their own
            raise error_without_response(error, what, changes=changes) from None

    def _response(
        self,
        access: KubeconfigAccess,
        method: str,
        path: str,
        body: bytes | None,
        query: Query,
        content_type: str,
        quiet_s: float,
    ) -> Any:
        import urllib3  # noqa: PLC0415 - comes with the client

        headers = {**access.headers(), "accept": _JSON, "user-agent": "burstd"}
        if body is not None:
            headers["content-type"] = content_type
        return access.pool.request(
            method,
            access.host + path + (f"?{urlencode(query, doseq=True)}" if query else ""),
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=self._settings.timeout_s, read=quiet_s),
            preload_content=False,
            redirect=False,
            retries=False,
        )

    def _answer(self, response: Any) -> HttpResponse:
        try:
            body = read_bounded(response.stream(_PIECE, decode_content=True))
        finally:
            response.release_conn()
        headers = {key.lower(): value for key, value in response.headers.items()}
        self._read_clock(headers.get("date", ""))
        return HttpResponse(response.status, headers, body.decode(errors="replace"))

    def _read_clock(self, date: str) -> None:
        try:
            self._skew = read_date(date) - self._clock()
        except (ValueError, TypeError):
            return

    def _access(self) -> KubeconfigAccess:
        """Raises AuthFailed where the credentials cannot be read, or not in time."""
        with self._lock:
            if self._current_access is not None:
                return self._current_access
        try:
            return self._reader.result()
        except TimeoutError:
            raise AuthFailed(
                f"the credentials cannot be read within {self._settings.timeout_s:.0f} s: "
                "look at the program that the kubeconfig's user names"
            ) from None

    def _read(self) -> KubeconfigAccess:
        try:
            from providers.openshift.client.access import KubeconfigAccess  # noqa: PLC0415 - a site without Kubernetes has no client
        except ImportError:
            raise AuthFailed("providers of kind openshift need kubernetes: pip install 'burstd[openshift]'") from None
        settings = self._settings
        made = KubeconfigAccess(settings.kubeconfig, settings.context, settings.side_by_side + 4, settings.timeout_s)
        with self._lock:
            self._current_access = made
        return made

    def _count(self, verb: str, path: str) -> None:
        kind, one = _resource_of_path(path)
        with self._counting:
            self.call_counts[f"{'LIST' if verb == 'GET' and not one else verb} {kind}"] += 1


def _is_unauthenticated(answer: HttpResponse) -> bool:
    """Whether the API server did not take the credentials; without any, some servers say what nobody may do."""
    return answer.status == http.client.UNAUTHORIZED or (
        answer.status == http.client.FORBIDDEN and '"system:anonymous"' in answer.body.replace("\\", "")
    )


def _resource_of_path(path: str) -> tuple[str, bool]:
    """``pods`` or ``pods/exec`` of a path, and whether it is of one thing by its name."""
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:]
    if len(words) > 2 and words[0] == "namespaces":
        words = words[2:]
    return "/".join((words[:1] or [path]) + words[2:3]), len(words) > 1
