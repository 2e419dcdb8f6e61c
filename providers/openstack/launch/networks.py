"""Which networks and security groups the words of the settings mean.

Names are looked up, for Neutron's calls take ids only: https://docs.openstack.org/api-ref/network/v2/
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burstd.domain.errors import BadRequest
from providers.cache import CachedValue
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings

_CACHE_S = 300.0
NetworkJson = Mapping[str, Any]
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


class ProjectNetworks:
    """Those of one project's settings, kept for five minutes."""

    def __init__(
        self, settings: OpenStackSettings, calls: OpenStackCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._networks = CachedValue(lambda: self._read("networks", "network"), _CACHE_S, clock)
        self._groups = CachedValue(lambda: self._read("security_groups", "security-group"), _CACHE_S, clock)
        self._floating = CachedValue(lambda: self._read("floating_network", "network"), _CACHE_S, clock)

    def network_ids(self) -> tuple[str, ...]:
        """Ids in the settings' order. Raises BadRequest with the remedy."""
        return self._networks.get()

    def security_group_ids(self) -> tuple[str, ...]:
        """Ids; empty where the settings name none. Raises BadRequest with the remedy."""
        return self._groups.get() if self._settings.security_groups else ()

    def floating_network_id(self) -> str:
        """Id of the network for floating IPs; empty where the settings name none. Raises BadRequest."""
        return self._floating.get()[0] if self._settings.floating_network else ""

    def _read(self, key: str, kind: str) -> tuple[str, ...]:
        """What the settings' ``key`` names: one call for all names, one for all ids."""
        said = getattr(self._settings, key)
        words: tuple[str, ...] = (said,) if isinstance(said, str) else said
        ids = [word for word in words if _UUID.fullmatch(word)]
        names = [word for word in words if word not in ids]
        found = [*self._list(kind, "id", ids), *self._list(kind, "name", names)]
        return tuple(dict.fromkeys(self._one(key, word, found) for word in words))

    def _list(self, kind: str, by: str, words: Sequence[str]) -> list[NetworkJson]:
        if not words:
            return []
        key, what = f"{kind.replace('-', '_')}s", f"list {kind.replace('-', ' ')}s"
        query: dict[str, Any] = {by: list(words)}
        return list(self._calls.pages("network", f"/{kind}s", key, what, **query))

    def _one(self, key: str, word: str, found: Sequence[NetworkJson]) -> str:
        """Of several of a name the project's own; what others share with it counts only where it has none."""
        fitting = {one["id"]: one for one in found if word in (one["id"], one["name"])}
        if not fitting:
            raise BadRequest(f"'{word}' of the settings' {key} is nothing that this project sees: look at its name")
        if len(fitting) > 1:
            mine = self._calls.project_id()
            fitting = {key: one for key, one in fitting.items() if one["project_id"] == mine} or fitting
        if len(fitting) > 1:
            raise BadRequest(f"'{word}' of the settings' {key} is the name of {len(fitting)} things: write an id")
        return str(next(iter(fitting)))
