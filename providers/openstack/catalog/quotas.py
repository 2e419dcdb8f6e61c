"""Limits of the project, and what of them is used. What is not limited is left out.

https://docs.openstack.org/api-ref/compute/#limits-limits, the same of block storage, and
https://docs.openstack.org/api-ref/network/v2/#quotas-details-extension-quota-details
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.errors import NotFound
from burstd.domain.plugins.provider import Quota
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings

_COMPUTE = (
    ("instances", "maxTotalInstances", "totalInstancesUsed", "instances"),
    ("cores", "maxTotalCores", "totalCoresUsed", "cores"),
    ("ram", "maxTotalRAMSize", "totalRAMUsed", "MiB"),
)
_GROUPS = (("server-groups", "maxServerGroups", "totalServerGroupsUsed", "server groups"),)
_VOLUMES = (
    ("volumes", "maxTotalVolumes", "totalVolumesUsed", "volumes"),
    ("gigabytes", "maxTotalVolumeGigabytes", "totalGigabytesUsed", "GiB"),
)
"""Name for ``openstack quota set``, the service's names of limit and use, unit."""
_NETWORK = (("ports", "port", "ports"), ("floating-ips", "floatingip", "floating IPs"))


class OpenStackQuotas:
    """Those that bear on what the settings have burstd make."""

    def __init__(self, settings: OpenStackSettings, calls: OpenStackCalls) -> None:
        self._settings = settings
        self._calls = calls

    def read_quotas(self) -> Sequence[Quota]:
        """One call for each service."""
        found = [*self._limits("compute", (*_COMPUTE, *(_GROUPS if self._settings.gang_policy else ())))]
        found += self._network(_NETWORK if self._settings.floating_network else _NETWORK[:1])
        if self._settings.root is not None:
            found += self._limits("block_storage", _VOLUMES)
        return found

    def _limits(self, service: str, wanted: Sequence[tuple[str, str, str, str]]) -> Iterator[Quota]:
        said = self._calls.query(service, "/limits", f"read the limits of {service.replace('_', ' ')}")
        absolute = said["limits"]["absolute"]
        for name, limit, used, unit in wanted:
            if absolute.get(limit, -1) >= 0:
                yield Quota(name, absolute[limit], max(absolute.get(used, 0), 0), unit)

    def _network(self, wanted: Sequence[tuple[str, str, str]]) -> Iterator[Quota]:
        connection = self._calls.connection
        with self._calls.translate_errors(changes=False, what="read which project this is"):
            project = connection.current_project_id
        try:
            said = self._calls.query("network", f"/quotas/{project}/details.json", "read the quotas of network")[
                "quota"
            ]
        except NotFound:
            return  # A Neutron without the extension does not say what is used.
        for name, key, unit in wanted:
            one = said.get(key)
            if one is not None and one["limit"] >= 0:
                yield Quota(name, one["limit"], one["used"] + one["reserved"], unit)
