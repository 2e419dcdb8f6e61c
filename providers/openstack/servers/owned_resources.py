"""What bears the cluster's mark beside servers, in the project that burstd has: ports, floating IPs, volumes.

Whose a thing is, its mark says and its project: who owns a network sees, and may delete, the ports that other projects
have on it, which may be those of the same cluster, by another of its providers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.servers import metadata
from providers.openstack.settings import OpenStackSettings

PORTS, FLOATING = "ports", "floatingips"
MAX_FILTER_VALUES = 50
"""Words to one call: they must fit into its address."""
_FIELDS = {
    PORTS: ("id", "project_id", "description", "device_id", "network_id"),
    FLOATING: ("id", "project_id", "description", "port_id", "fixed_ip_address", "floating_ip_address"),
}
Resource = Mapping[str, Any]


class OwnedResources:
    """Of one cluster."""

    def __init__(self, cluster: str, settings: OpenStackSettings, calls: OpenStackCalls) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls

    def list_all(self, kind: str) -> Iterator[Resource]:
        """All ports or floating IPs."""
        return filter(self.owns, self._listed(kind, project_id=self._calls.project_id(), limit=self._settings.page))

    def list_where(self, kind: str, key: str, words: Sequence[str]) -> Iterator[Resource]:
        """Those whose ``key`` is one of these."""
        project = self._calls.project_id() if words else ""
        for start in range(0, len(words), MAX_FILTER_VALUES):
            some = {key: list(words[start : start + MAX_FILTER_VALUES])}
            yield from filter(self.owns, self._listed(kind, project_id=project, **some))

    def list_by_id(self, kind: str, ids: Sequence[str]) -> Iterator[Resource]:
        """Those with these ids, whoever's they are; ``has`` tells."""
        for start in range(0, len(ids), MAX_FILTER_VALUES):
            some = list(ids[start : start + MAX_FILTER_VALUES])
            yield from (one for one in self._listed(kind, id=some) if one["id"] in some)

    def owns(self, resource: Resource) -> bool:
        """Whether a port or floating IP is ours."""
        owner = metadata.parse_description(resource.get("description"))
        return (
            metadata.belongs_to_cluster(owner, self._cluster) and resource.get("project_id") == self._calls.project_id()
        )

    def list_volumes(self) -> Iterator[Resource]:
        """All of them. Cinder shows those of the project only."""
        cluster_metadata = str({TAG_CLUSTER: self._cluster})
        listed = self._calls.pages(
            "block_storage",
            "/volumes/detail",
            "volumes",
            "list volumes",
            limit=self._settings.page,
            metadata=cluster_metadata,
        )
        return (
            one
            for one in listed
            if metadata.belongs_to_cluster(metadata.parse_metadata(one.get("metadata")), self._cluster)
        )

    def _listed(self, kind: str, **query: Any) -> Iterator[Resource]:
        fields = list(_FIELDS[kind])
        return self._calls.pages("network", f"/{kind}", kind, f"list {kind}", fields=fields, **query)


def claim_id_of(resource: Resource) -> str:
    """Of a port or floating IP of ours."""
    owner = metadata.parse_description(resource.get("description"))
    return owner.claim if owner else ""
