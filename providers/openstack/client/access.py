"""How openstacksdk is set up for burstd, and what its errors mean. Imports it, which takes a second."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openstack.config
import requests
from keystoneauth1 import exceptions as ksa
from keystoneauth1 import session
from openstack import connection
from openstack import exceptions as sdk
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from burstd.domain.cloud.read_limits import AnswerTooLarge, read_bounded
from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, OutcomeUnknown, ProviderError
from providers.http_errors import HttpResponse
from providers.openstack.client.errors import error_for_login, error_for_response, error_without_response

_CONNECT_S = 5.0
_MAX_CONNECTIONS = 64
"""Connections to one service; requests keeps ten, and writes a line for each more that it throws away."""
_PIECE = 1 << 16
_OVERRIDE = "if that is meant, name the service's address in clouds.yaml (compute_endpoint_override and the like)"
_LOGIN = "/auth/tokens"
_NO_CREDENTIALS = "openstacksdk has no credentials for burstd's user"
_STALE = (
    ksa.CatalogException, ksa.DiscoveryFailure, sdk.EndpointNotFound, sdk.NotSupported, sdk.ServiceDisabledException,
    sdk.ServiceDiscoveryException,
)  # fmt: skip
OnRequest = Callable[[str, str], None]
"""Hears of each request on its way out: method and URL."""


class TrustedEndpoints:
    """What whoever set burstd up chose: hosts that clouds.yaml names, and whether Keystone is reached by TLS."""

    def __init__(self) -> None:
        self.hosts: Collection[str] = ()
        self.tls = False

    def read_config(self, config: Mapping[str, Any]) -> None:
        """From an entry of clouds.yaml."""
        auth_url = str((config.get("auth") or {}).get("auth_url") or "")
        urls = [auth_url, *(str(value) for key, value in config.items() if key.endswith("_endpoint_override"))]
        self.hosts = frozenset(urlsplit(url).hostname or "" for url in urls)
        self.tls = auth_url.lower().startswith("https:")

    def connection_pools(self) -> dict[str, type[HTTPConnectionPool]]:
        """For urllib3: connections that lead to this machine, or to its cloud's metadata, only where that was chosen.

        What goes through a proxy is the proxy's to let through.
        """
        chosen = self

        class Guarded:
            host: str

            def _new_conn(self) -> socket.socket:
                made: socket.socket = super()._new_conn()  # type: ignore[misc]
                here, there = (str(end[0]).partition("%")[0] for end in (made.getsockname(), made.getpeername()))
                address = ipaddress.ip_address(there)
                own = there == here or address.is_loopback or address.is_link_local
                if own and self.host.lower().strip("[]") not in chosen.hosts:
                    made.close()
                    raise CloudUnavailable(f"the cloud's catalogue leads to {there}, this machine's own: {_OVERRIDE}")
                return made

        class Plain(HTTPConnectionPool):
            ConnectionCls = type("Http", (Guarded, HTTPConnection), {})

        class Tls(HTTPSConnectionPool):
            ConnectionCls = type("Https", (Guarded, HTTPSConnection), {})

        return {"http": Plain, "https": Tls}


class _Watched(BaseAdapter):
    """The way out of a session, with somebody told of each request before it goes.

    What the catalogue and the services name is the cloud's word: it leads our token neither to this machine nor, where
    Keystone has TLS, over a wire without.
    """

    def __init__(self, inner: BaseAdapter, sends: OnRequest, chosen: TrustedEndpoints) -> None:
        super().__init__()
        self._inner = inner
        self._sends = sends
        self._chosen = chosen

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        url = urlsplit(request.url or "")
        if self._chosen.tls and url.scheme != "https" and url.hostname not in self._chosen.hosts:
            raise CloudUnavailable(f"the cloud's catalogue has {url.hostname} without TLS: {_OVERRIDE}")
        self._sends(request.method or "", request.url or "")
        response = self._inner.send(request, *args, **{**kwargs, "stream": True})
        try:
            response._content = read_bounded(response.iter_content(_PIECE))  # noqa: SLF001 - where requests itself keeps it
        except AnswerTooLarge as error:
            raise requests.exceptions.ConnectionError(str(error), request=request) from None
        finally:
            response.close()
        return response

    def close(self) -> None:
        self._inner.close()


class _Session(session.Session):  # type: ignore[misc, unused-ignore]
    """Every request has its limits, is tried once and goes where it was sent, whatever clouds.yaml or the cloud says:
    login and discovery too.
    """

    def __init__(self, sends: OnRequest, timeout_s: float, chosen: TrustedEndpoints, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        limits: Any = (_CONNECT_S, timeout_s)
        self.timeout = limits
        for prefix, adapter in list(self.session.adapters.items()):
            if isinstance(adapter, HTTPAdapter):
                adapter.init_poolmanager(connections=10, maxsize=_MAX_CONNECTIONS)
                adapter.poolmanager.pool_classes_by_scheme = chosen.connection_pools()
            self.session.mount(prefix, _Watched(adapter, sends, chosen))

    def request(self, *args: Any, **kwargs: Any) -> Any:
        # A redirect would be given our token, or our password, wherever it leads.
        kwargs.update(connect_retries=0, status_code_retries=0, redirect=False)
        return super().request(*args, **kwargs)


def open_connection(cloud: str, clouds_yaml: Path | None, region: str, timeout_s: float, sends: OnRequest) -> Any:
    """openstacksdk's connection; asks nothing of the cloud yet. Raises AuthFailed with the remedy."""
    where = f"entry {cloud} of {clouds_yaml or 'clouds.yaml'}" if cloud else "environment (OS_CLOUD, OS_AUTH_URL ...)"
    chosen = TrustedEndpoints()
    make: Any = partial(_Session, sends, timeout_s, chosen)
    try:
        files = None if clouds_yaml is None else [_readable(clouds_yaml)]
        # OS_CLIENT_CONFIG_FILE of whoever calls burstctl would go before the settings' own file.
        found = openstack.config.OpenStackConfig(
            config_files=files, load_envvars=files is None, app_name="burstd", session_constructor=make
        )
        entry = found.get_one(cloud or None, region_name=region or None)
        chosen.read_config(entry.config)
        return connection.Connection(config=entry)
    except (sdk.ConfigException, ksa.ClientException) as error:
        raise AuthFailed(f"{_NO_CREDENTIALS}: look at the {where}: {_one_line(error)}") from None
    except OSError as error:
        raise AuthFailed(f"{_NO_CREDENTIALS}: {error.filename or where} cannot be read: {error.strerror}") from None
    except Exception as error:  # noqa: BLE001 - whatever parsers raise, whose words may repeat a line with a secret
        raise AuthFailed(f"{_NO_CREDENTIALS}: the {where} cannot be understood ({type(error).__name__})") from None


def _readable(path: Path) -> str:
    """openstacksdk takes a file that is not there, or that it may not read, for an empty one."""
    with path.open(encoding="utf-8"):
        return str(path)


def is_stale(error: BaseException) -> bool:
    """Whether the connection's knowledge of the cloud's services is of no use: one may have been down just then."""
    return isinstance(error, _STALE)


def is_login(url: str) -> bool:
    """Whether it is Keystone's address for tokens."""
    return url.partition("?")[0].endswith(_LOGIN)


def read_response(response: requests.Response) -> HttpResponse:
    """As errors.py has it."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpResponse(response.status_code, headers, response.text)


def provider_error(error: Exception, what: str, *, changes: bool, sent: bool) -> ProviderError:
    """The error of the interface for whatever openstacksdk raised. ``sent``: a change was on its way out."""
    if isinstance(error, sdk.HttpException) and error.response is not None:
        return error_for_response(read_response(error.response), what, changes=changes)
    if isinstance(error, ksa.HttpError) and error.response is not None:
        answer = read_response(error.response)
        return (
            error_for_login(answer)
            if is_login(error.url or "")
            else error_for_response(answer, what, changes=changes and sent)
        )
    if isinstance(error, ksa.ConnectionError):
        return error_without_response(error, what, changes=changes, sent=sent)
    if isinstance(error, ksa.InvalidResponse):
        return CloudUnavailable(f"cannot {what}: Keystone's answer is no token: look at auth_url")
    if is_stale(error):
        return CloudUnavailable(f"cannot {what}: {_one_line(error)}; is the service there, and up?")
    if isinstance(error, ksa.MissingAuthMethods | ksa.AuthorizationFailure | ksa.AuthPluginException):
        return AuthFailed(f"{_NO_CREDENTIALS}: {_one_line(error)}")
    if isinstance(error, sdk.ConfigException):
        return AuthFailed(f"{_NO_CREDENTIALS}: {_one_line(error)}")
    if isinstance(error, sdk.SDKException) and not sent:
        return BadRequest(f"openstacksdk would not {what}: {_one_line(error)}")
    if isinstance(error, OSError) and not sent and not isinstance(error, requests.RequestException):
        return CloudUnavailable(f"cannot {what}: {error}")
    # Of an answer that is no answer. Its words may be anything.
    unclear = OutcomeUnknown if changes and sent else CloudUnavailable
    kind = type(error).__name__
    return unclear(
        f"cannot {what}: the answer is none of OpenStack's, or is cut ({kind}): is there a proxy in between?"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
