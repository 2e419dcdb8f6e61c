"""Which actions a request takes of Azure's role-based access control, and whether burstd's roles have them.

https://learn.microsoft.com/azure/role-based-access-control/resource-provider-operations
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

_ROLES = Path(__file__).parents[3] / "config" / "azure"
_VERBS = {"GET": "read", "PUT": "write", "DELETE": "delete", "POST": "action"}
_VERSIONS = "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read"
Needed = tuple[str, str]
"""An action, and the id of what it is done to."""


def role_actions(name: str) -> frozenset[str]:
    """Those of one of burstd's roles: ``role`` (in its resource group), ``role-subscription``."""
    found: list[str] = json.loads((_ROLES / f"{name}.json").read_text(encoding="utf-8"))["Actions"]
    return frozenset(found)


def allowed(roles: Mapping[str, frozenset[str]], action: str, scope: str) -> bool:
    """``roles``: actions by the path, in small letters, below which they hold; ``*`` stands for anything."""
    return any(
        fnmatchcase(action.lower(), one.lower())
        for at, actions in roles.items()
        if f"{scope.lower()}/".startswith(f"{at}/")
        for one in actions
    )


def needed(method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[Needed]:
    """All that a request takes: for its own path, and for what its body makes and uses."""
    group, found, rest = path.rpartition("/providers/")
    if not found:
        yield f"Microsoft.Resources/subscriptions{'/resourceGroups' if 'resourceGroups' in path else ''}/read", path
        return
    provider, *words = rest.split("/")
    if words[0] == "locations":
        yield _VERSIONS if "publishers" in words else f"{provider}/locations/{words[2]}/{_VERBS[method]}", path
        return
    yield "/".join((provider, words[0], *words[2::2], _VERBS[method])), path
    if words[-1] == "attachDetachDataDisks":
        yield "Microsoft.Compute/disks/write", group
    if method == "PUT" and words[0] == "disks" and body is not None and "encryption" in body["properties"]:
        yield "Microsoft.Compute/diskEncryptionSets/read", body["properties"]["encryption"]["diskEncryptionSetId"]
    if method == "PUT" and words[0] == "virtualMachines" and body is not None:
        yield from _linked(body["properties"], group)
        for identity in body.get("identity", {}).get("userAssignedIdentities", {}):
            yield "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action", identity


def _linked(machine: Mapping[str, Any], group: str) -> Iterator[Needed]:
    """https://learn.microsoft.com/azure/role-based-access-control/permissions/compute, and what ARM asks of links."""
    yield "Microsoft.Compute/disks/write", group
    image = machine["storageProfile"]["imageReference"].get("id", "")
    if image:
        kind = "galleries/images/versions" if "/galleries/" in image else "images"
        yield f"Microsoft.Compute/{kind}/read", image
    if key := machine["storageProfile"]["osDisk"]["managedDisk"].get("diskEncryptionSet"):
        yield "Microsoft.Compute/diskEncryptionSets/read", key["id"]
    for interface in machine["networkProfile"]["networkInterfaceConfigurations"]:
        yield "Microsoft.Network/networkInterfaces/write", group
        yield "Microsoft.Network/networkInterfaces/join/action", group
        about = interface["properties"]
        if "networkSecurityGroup" in about:
            yield "Microsoft.Network/networkSecurityGroups/join/action", about["networkSecurityGroup"]["id"]
        for one in about["ipConfigurations"]:
            yield "Microsoft.Network/virtualNetworks/subnets/join/action", one["properties"]["subnet"]["id"]
            if "publicIPAddressConfiguration" in one["properties"]:
                yield "Microsoft.Network/publicIPAddresses/write", group
                yield "Microsoft.Network/publicIPAddresses/join/action", group
