"""What is said to Azure of a machine: one request makes it, its disk, its network interface and its address.

All of them have ``deleteOption`` Delete, so that they go with it. The disk gets the machine's tags.
https://learn.microsoft.com/rest/api/compute/virtual-machines/create-or-update
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from burstd.domain.errors import BadRequest
from burstd.domain.plugins.provider import LaunchRequest
from providers.azure.catalog.sizes import AzureSize
from providers.azure.resources import zone_number
from providers.azure.settings import AzureSettings

_USER = "azureuser"
_NETWORK_VERSION = "2022-11-01"
"""The newest that Azure takes of ``networkApiVersion``."""
_USER_DATA_BYTES = 65535
_NAME_LENGTH = 64


def machine_body(
    settings: AzureSettings, request: LaunchRequest, image: Mapping[str, str], admin_key: str, size: AzureSize | None
) -> dict[str, Any]:
    """Of the PUT. Raises BadRequest for a name, user data or a zone that can be none.

    ``size`` None: nothing is known of it.
    """
    if len(request.name) > _NAME_LENGTH:
        raise BadRequest(f"'{request.name}' is too long for a machine of Azure, which takes {_NAME_LENGTH} characters")
    user_data = request.user_data.encode()
    if len(user_data) > _USER_DATA_BYTES:
        raise BadRequest(f"the user data has {len(user_data)} bytes, Azure takes {_USER_DATA_BYTES}")
    zone = zone_number(settings.location, request.offer.zone)
    tags = {**settings.tags, **request.tags}
    accelerated = size is not None and size.accelerated
    storage: dict[str, Any] = {"imageReference": dict(image), "osDisk": _disk(settings, request.name)}
    if size is not None and size.nvme_only:
        storage["diskControllerType"] = "NVMe"
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": request.offer.instance_type},
        "storageProfile": storage,
        "osProfile": {
            "computerName": request.name,
            "adminUsername": _USER,
            "customData": base64.b64encode(user_data).decode(),
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [{"path": f"/home/{_USER}/.ssh/authorized_keys", "keyData": admin_key}]},
            },
        },
        "networkProfile": {
            "networkApiVersion": _NETWORK_VERSION,
            "networkInterfaceConfigurations": [_interface(settings, request.name, tags, accelerated=accelerated)],
        },
        # On storage of Azure's own: the console, where host keys are learned.
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
    }
    if settings.security_type:
        properties["securityProfile"] = {"securityType": settings.security_type}
    if settings.secure_boot is not None:
        uefi = {"secureBootEnabled": settings.secure_boot, "vTpmEnabled": True}
        properties["securityProfile"]["uefiSettings"] = uefi
    if request.offer.spot:
        # -1: up to the price on demand, so that only want of capacity takes it back.
        properties |= {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}
    body: dict[str, Any] = {"location": settings.location, "tags": tags, "properties": properties}
    if settings.machine_identity:
        body["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {settings.machine_identity: {}}}
    return {**body, "zones": [zone]} if zone else body


def _disk(settings: AzureSettings, name: str) -> dict[str, Any]:
    disk = settings.disk
    managed: dict[str, Any] = {"storageAccountType": disk.type}
    if disk.encryption_set:
        managed["diskEncryptionSet"] = {"id": disk.encryption_set}
    found = {
        "name": f"{name}-os", "createOption": "FromImage", "deleteOption": "Delete", "caching": "ReadWrite",
        "managedDisk": managed,
    }  # fmt: skip
    return {**found, "diskSizeGB": disk.gib} if disk.gib else found


def _interface(settings: AzureSettings, name: str, tags: Mapping[str, str], *, accelerated: bool) -> dict[str, Any]:
    address: dict[str, Any] = {"primary": True, "subnet": {"id": settings.subnet}}
    if settings.public_address:
        address["publicIPAddressConfiguration"] = {
            "name": f"{name}-ip", "tags": dict(tags), "sku": {"name": "Standard"},
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
        }  # fmt: skip
    about: dict[str, Any] = {
        "primary": True, "deleteOption": "Delete", "enableAcceleratedNetworking": accelerated,
        "ipConfigurations": [{"name": "ip", "properties": address}],
    }  # fmt: skip
    if settings.security_group:
        about["networkSecurityGroup"] = {"id": settings.security_group}
    return {"name": f"{name}-nic", "tags": dict(tags), "properties": about}
