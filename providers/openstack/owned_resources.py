"""What bears the cluster's mark beside servers, in the project that burstd has: ports, floating IPs, volumes.

Whose a thing is, its mark says and its project: who owns a network sees, and may delete, the ports that other projects
have on it, which may be those of the same cluster, by another of its providers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from providers.openstack import metadata
from providers.openstack.calls import Calls
from providers.openstack.settings import OpenStackSettings

PORTS, FLOATING = "ports", "floatingips"
PART = 50
"""Words to one call: they must fit into its address."""
_FIELDS = {
    PORTS: ("id", "project_id", "description", "device_id", "network_id"),
    FLOATING: ("id", "project_id", "description", "port_id", "fixed_ip_address", "floating_ip_address"),
}
Thing = Mapping[str, Any]


class Ours:
    """Of one cluster."""

    def __init__(self, cluster: str, settings: OpenStackSettings, calls: Calls) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls

    def all(self, kind: str) -> Iterator[Thing]:
        """All ports or floating IPs."""
        return filter(self.has, self._listed(kind, project_id=self._calls.project(), limit=self._settings.page))

    def where(self, kind: str, key: str, words: Sequence[str]) -> Iterator[Thing]:
        """Those whose ``key`` is one of these."""
        project = self._calls.project() if words else ""
        for start in range(0, len(words), PART):
            some = {key: list(words[start : start + PART])}
            yield from filter(self.has, self._listed(kind, project_id=project, **some))

    def named(self, kind: str, ids: Sequence[str]) -> Iterator[Thing]:
        """Those with these ids, whoever's they are; ``has`` tells."""
        for start in range(0, len(ids), PART):
            some = list(ids[start : start + PART])
            yield from (one for one in self._listed(kind, id=some) if one["id"] in some)

    def has(self, thing: Thing) -> bool:
        """Whether a port or floating IP is ours."""
        mark = metadata.of_description(thing.get("description"))
        return metadata.is_ours(mark, self._cluster) and thing.get("project_id") == self._calls.project()

    def volumes(self) -> Iterator[Thing]:
        """All of them. Cinder shows those of the project only."""
        ours = str({TAG_CLUSTER: self._cluster})
        listed = self._calls.pages(
            "block_storage", "/volumes/detail", "volumes", "list volumes", limit=self._settings.page, metadata=ours
        )
        return (one for one in listed if metadata.is_ours(metadata.of_metadata(one.get("metadata")), self._cluster))

    def _listed(self, kind: str, **query: Any) -> Iterator[Thing]:
        fields = list(_FIELDS[kind])
        return self._calls.pages("network", f"/{kind}", kind, f"list {kind}", fields=fields, **query)


def claim_of(thing: Thing) -> str:
    """Of a port or floating IP of ours."""
    mark = metadata.of_description(thing.get("description"))
    return mark.claim if mark else ""
