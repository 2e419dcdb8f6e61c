"""Ids, tags and zones between Azure's form and ours. Ids are alike whatever the case of their letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.errors import BadRequest

MACHINES = "Microsoft.Compute/virtualMachines"
DISKS = "Microsoft.Compute/disks"
INTERFACES = "Microsoft.Network/networkInterfaces"
ADDRESSES = "Microsoft.Network/publicIPAddresses"


def tags_of(said: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource."""
    return {str(key): str(value) for key, value in (said.get("tags") or {}).items()}


def belongs_to_cluster(said: Mapping[str, Any], cluster: str) -> bool:
    """Whether it bears exactly our cluster's tag."""
    return tags_of(said).get(TAG_CLUSTER) == cluster


def machine_of(resource_id: str) -> str:
    """Name of the machine that the id is of; empty: none."""
    kind = f"/providers/{MACHINES}/".lower()
    start = resource_id.lower().find(kind)
    return resource_id[start + len(kind) :].partition("/")[0] if start >= 0 else ""


def properties_of(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """All that is particular to its type."""
    found: Mapping[str, Any] = said.get("properties") or {}
    return found


def zone_name(location: str, zone: str) -> str:
    """As offers have it: ``westeurope-1``; the location where a machine is in no zone in particular."""
    return f"{location}-{zone}" if zone else location


def zone_number(location: str, name: str) -> str:
    """The inverse. Raises BadRequest for a name that is none of the location's."""
    for zone in ("", "1", "2", "3"):
        if name == zone_name(location, zone):
            return zone
    raise BadRequest(f"'{name}' is no zone of {location}: look at the offer's zone")
