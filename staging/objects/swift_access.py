"""How a session with Swift is opened: by tempauth's version 1, or by an entry of clouds.yaml. Imports openstacksdk."""

from __future__ import annotations

import threading
from typing import Any

import openstack.config
from keystoneauth1 import exceptions, plugin, session

from burstd.domain.plugins.stager import StoreRefused


class TempAuth(plugin.BaseAuthPlugin):  # type: ignore[misc, unused-ignore]
    """Version 1 of Swift's own authentication, which keystoneauth does not have."""

    def __init__(self, auth_url: str, user: str, key: str) -> None:
        super().__init__()
        self._auth_url = auth_url
        self._headers = {"X-Auth-User": user, "X-Auth-Key": key}
        self._lock = threading.Lock()
        self._known: tuple[str, str] | None = None

    def get_token(self, session: Any, **_: Any) -> str:
        """As BaseAuthPlugin."""
        return self._login(session)[0]

    def get_endpoint(self, session: Any, **_: Any) -> str:
        """The account's URL."""
        return self._login(session)[1]

    def invalidate(self) -> bool:
        """As BaseAuthPlugin."""
        with self._lock:
            known, self._known = self._known, None
        return known is not None

    def _login(self, session: Any) -> tuple[str, str]:
        with self._lock:
            if self._known is None:
                answer = session.get(self._auth_url, headers=self._headers, authenticated=False, log=False)
                found = answer.headers.get("X-Auth-Token"), answer.headers.get("X-Storage-Url")
                if not all(found):
                    raise exceptions.AuthorizationFailure("the answer has no X-Auth-Token and X-Storage-Url")
                self._known = found
            return self._known


def tempauth_session(auth_url: str, user: str, key: str, timeout_s: float, ca_file: str) -> Any:
    """A keystoneauth session."""
    auth = TempAuth(auth_url, user, key)
    return session.Session(auth=auth, timeout=timeout_s, verify=ca_file or True, redirect=False)


def cloud_session(cloud: str, file: str | None, region: str | None, timeout_s: float) -> Any:
    """A keystoneauth session. Raises StoreRefused."""
    try:
        found = openstack.config.OpenStackConfig(config_files=[file] if file else None).get_one(
            cloud, region_name=region or None, api_timeout=timeout_s
        )
        made = found.get_session()
    except (openstack.exceptions.ConfigException, exceptions.ClientException, OSError) as error:
        raise StoreRefused(f"the entry {cloud} of clouds.yaml cannot be used: {error}") from None
    # Login and discovery too: a redirect would be given our password, or our token, wherever it leads.
    made.redirect = False
    return made
