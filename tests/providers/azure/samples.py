"""Settings of a provider that nobody answers."""

from __future__ import annotations

from typing import Any

from providers.azure.settings import AzureSettings

GUID = "5ab5c1de-0000-4000-8000-0123456789ab"
WORDS = {
    "subscription": GUID, "resource_group": "burst", "location": "westeurope", "instance_types": ["*"],
    "subnet": f"/subscriptions/{GUID}/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/s",
}  # fmt: skip


def settings(**words: Any) -> AzureSettings:
    """With these beside."""
    return AzureSettings.model_validate(WORDS | words)
