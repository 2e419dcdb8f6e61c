"""Names and ids of what there is in the subscription before burstd does anything."""

from __future__ import annotations

SUBSCRIPTION = "5ab5c1de-0000-4000-8000-0123456789ab"
GROUP = "burst"
ROOT = f"/subscriptions/{SUBSCRIPTION}"
HERE = f"{ROOT}/resourceGroups/{GROUP}"
_NET = f"{ROOT}/resourceGroups/net/providers/Microsoft.Network"
SUBNET = f"{_NET}/virtualNetworks/campus/subnets/nodes"
ENCRYPTION_SET = f"{ROOT}/resourceGroups/net/providers/Microsoft.Compute/diskEncryptionSets/nodes"
IDENTITY = f"{ROOT}/resourceGroups/net/providers/Microsoft.ManagedIdentity/userAssignedIdentities/nodes"
SECURITY_GROUP = f"{_NET}/networkSecurityGroups/nodes"
GALLERY = f"{ROOT}/resourceGroups/images/providers/Microsoft.Compute/galleries/site/images"
DEFINITION = f"{GALLERY}/slurm-node"
MANAGED = f"{ROOT}/resourceGroups/images/providers/Microsoft.Compute/images/by-hand"
MARKETPLACE = "Debian:debian-12:12-gen2:0.20260101.1"
THINGS = ("Microsoft.Compute/disks", "Microsoft.Network/networkInterfaces", "Microsoft.Network/publicIPAddresses")
"""Kinds of what a machine is made with."""
