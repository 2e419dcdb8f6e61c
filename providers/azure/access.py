"""Credentials and connections as Microsoft's libraries make them. Imports those, which takes a moment."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import requests
from azure.core import PipelineClient
from azure.core.exceptions import AzureError
from azure.core.pipeline.policies import UserAgentPolicy
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest
from azure.identity import (
    CertificateCredential,
    ClientSecretCredential,
    CredentialUnavailableError,
    ManagedIdentityCredential,
)
from requests.adapters import HTTPAdapter

from burstd.domain.cloud.read_limits import read_bounded
from burstd.domain.errors import AuthFailed, CloudUnavailable
from providers.azure.errors import error_for_login
from providers.azure.settings import AzureSettings
from providers.http_errors import HttpResponse, short_message

_CONNECT_S = 5.0
_MAX_CONNECTIONS = 64
_PUBLIC = "https://login.microsoftonline.com"
_REFUSED = re.compile(r"AADSTS\d|Unable to get authority configuration")
"""Codes of Microsoft Entra ID, and MSAL's words where there is no such tenant."""
_UNANSWERED = re.compile(r"no response from the IMDS endpoint\.\s*$")
"""azure-identity's words where the metadata service of the head's machine cannot be reached; else they go on."""
# What it warns of, our errors say.
logging.getLogger("azure.identity").setLevel(logging.CRITICAL)


class _Credential(Protocol):
    def get_token(self, *scopes: str) -> Any:
        """A token, or the one that is known while it is good."""
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...


class AzureAccess:
    """One identity, read from its files when this is made, and connections. Used from many threads."""

    def __init__(self, settings: AzureSettings) -> None:
        """Raises AuthFailed where a file cannot be read."""
        self._scope = f"{settings.endpoint}/.default"
        verify = str(settings.ca_file) if settings.ca_file else True
        # Nothing is repeated by Microsoft's libraries: what is tried again, and when, is burstd's business.
        limits: dict[str, Any] = {
            "connection_timeout": _CONNECT_S, "read_timeout": settings.timeout_s, "connection_verify": verify,
        }  # fmt: skip
        self._credential = _credential(settings, {**limits, "retry_total": 0})
        self._client: PipelineClient[Any, Any] = PipelineClient(
            settings.endpoint,
            policies=[UserAgentPolicy("burstd")],
            transport=RequestsTransport(session=_session(), **limits),
        )

    def token(self) -> str:
        """Raises AuthFailed, and CloudUnavailable where nobody answers: nothing else has been sent by then."""
        try:
            return str(self._credential.get_token(self._scope).token)
        except CredentialUnavailableError as error:
            if _UNANSWERED.search(str(error)):
                raise CloudUnavailable(f"no token can be had: {short_message(str(error), 300)}") from None
            raise error_for_login(str(error)) from None
        except AzureError as error:
            # azure-identity wraps whatever happens on the way, broken connections too.
            if _REFUSED.search(str(error)):
                raise error_for_login(str(error)) from None
            raise CloudUnavailable(f"no token can be had: {short_message(str(error), 300)}") from None

    def send(self, method: str, url: str, query: Mapping[str, Any], headers: dict[str, str], body: Any) -> HttpResponse:
        """One request, sent once. Raises what azure-core does where no whole answer comes."""
        # azure-core sends them as they are.
        quoted = {key: quote(str(value), safe="") for key, value in query.items()}
        request = HttpRequest(method, url, params=quoted, headers=headers, json=body)
        response: Any = self._client.send_request(request, stream=True)
        try:
            text = read_bounded(response.iter_bytes()).decode(errors="replace")
        finally:
            response.close()
        return HttpResponse(response.status_code, {k.lower(): v for k, v in response.headers.items()}, text)

    def close(self) -> None:
        """Gives connections back."""
        self._client.close()
        self._credential.close()


def _session() -> requests.Session:
    """Requests keeps ten connections, and writes a line for each more that it throws away."""
    made = requests.Session()
    made.mount("https://", HTTPAdapter(pool_maxsize=_MAX_CONNECTIONS))
    return made


def _credential(settings: AzureSettings, limits: dict[str, Any]) -> _Credential:
    if not settings.tenant:
        return ManagedIdentityCredential(client_id=settings.client_id or None, **limits)
    # Another authority is no party to Microsoft's list of authorities.
    limits |= {"authority": settings.authority, "disable_instance_discovery": settings.authority != _PUBLIC}
    try:
        if settings.secret_file:
            secret = _read(settings.secret_file).decode().strip()
            return ClientSecretCredential(settings.tenant, settings.client_id, secret, **limits)
        content = _read(settings.certificate_file or Path())
        return CertificateCredential(settings.tenant, settings.client_id, certificate_data=content, **limits)
    except ValueError:
        # Without its words, in which the content may be.
        raise AuthFailed(
            "secret_file holds no secret, or certificate_file no certificate with its private key of RSA as PEM"
        ) from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise AuthFailed(f"{file} cannot be read: {error.strerror}: burstd's user needs it") from None
