"""What Azure says of a size of machine, and what its name says of its GPUs.

Names: https://learn.microsoft.com/azure/virtual-machines/vm-naming-conventions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from typing import Any

_ARCHITECTURES = {"x64": "x86_64", "Arm64": "aarch64"}
_GPUS = (
    ("Standard_ND*sr_v4", "a100", 40), ("Standard_ND*_A100_v4", "a100", 80), ("Standard_NC*_A100_v4", "a100", 80),
    ("Standard_NC*_H100_v5", "h100", 94), ("Standard_ND*_H100_v5", "h100", 80), ("Standard_ND*_H200_v5", "h200", 141),
    ("Standard_NC*_T4_v3", "t4", 16), ("Standard_ND*rs_v2", "v100", 32), ("Standard_NC*s_v3", "v100", 16),
    ("Standard_NV*_A10_v5", "a10", 0), ("Standard_NV*s_v3", "m60", 8), ("Standard_ND*_MI300X_v5", "mi300x", 192),
)  # fmt: skip
"""Pattern, type and GiB of each GPU, where the name does not say it in the one place; 0: parts of one are sold.
https://learn.microsoft.com/azure/virtual-machines/sizes/overview"""


@dataclass(frozen=True, slots=True)
class AzureSize:
    """One of Azure's. ``gpus`` are those of ``gpu_name``, each of ``gpu_memory_mib``."""

    name: str
    family: str
    """By which quotas count it."""
    vcpus: int
    memory_mib: int
    gpus: int
    gpu_name: str
    """In small letters; empty: burstd does not know it."""
    gpu_memory_mib: int
    architecture: str
    """As ``uname -m`` has it."""
    local_disk_gib: int
    spot: bool
    accelerated: bool
    """It has accelerated networking."""
    nvme_only: bool
    """Its disks have NVMe controllers, and no others."""
    generations: tuple[str, ...]
    """Of images that it boots: ``V1``, ``V2``."""
    zones: tuple[str, ...]
    """That sell it to this subscription."""
    regional: bool
    """It is to be had in no zone in particular."""
    withheld: str = ""
    """Why this subscription cannot have it anywhere in the location; empty: it can."""


def parse_size(said: Mapping[str, Any], location: str) -> AzureSize:
    """An entry of the list of SKUs."""
    can = {one["name"]: one["value"] for one in said.get("capabilities") or ()}
    gpus = ceil(float(can.get("GPUs", 0)))
    name, memory = gpu_of(said["name"]) if gpus else ("", 0)
    places = [one for one in said.get("locationInfo") or () if one.get("location", "").lower() == location]
    zones = {zone for one in places for zone in one.get("zones") or ()}
    kept: set[str] = set()
    withheld = ""
    for restriction in said.get("restrictions") or ():
        if restriction.get("type") == "Zone":
            kept.update((restriction.get("restrictionInfo") or {}).get("zones") or ())
        else:
            withheld = str(restriction.get("reasonCode", "")) or "restricted"
    return AzureSize(
        name=said["name"], family=said.get("family", ""), vcpus=int(can.get("vCPUsAvailable", can["vCPUs"])),
        memory_mib=int(float(can["MemoryGB"]) * 1024), gpus=gpus, gpu_name=name, gpu_memory_mib=memory * 1024,
        architecture=_ARCHITECTURES.get(can.get("CpuArchitectureType", "x64"), ""),
        local_disk_gib=_local_disk_gib(can), spot=can.get("LowPriorityCapable") == "True",
        accelerated=can.get("AcceleratedNetworkingEnabled") == "True",
        nvme_only=can.get("DiskControllerTypes") == "NVMe",
        generations=tuple(can.get("HyperVGenerations", "V1,V2").split(",")), zones=tuple(sorted(zones - kept)),
        regional=not (zones - kept), withheld=withheld,
    )  # fmt: skip


def gpu_of(size: str) -> tuple[str, int]:
    """Type of a size's GPUs, and GiB of each; 0: not known."""
    for pattern, name, memory in _GPUS:
        if fnmatchcase(size, pattern):
            return name, memory
    # Between the letters of what a size can and its version; an accelerator's name begins with a capital.
    words = [word for word in size.split("_")[2:] if word[:1].isupper()]
    return (words[-1].lower() if words else "", 0)


def gres_type(size: AzureSize, named: Mapping[str, str]) -> str | None:
    """Of its GPUs in slurm.conf, by the settings' patterns first; None: they are to be no GRES."""
    own: Sequence[str] = [name for pattern, name in named.items() if fnmatchcase(size.name, pattern)]
    return (own[0] or None) if own else size.gpu_name or "gpu"


def _local_disk_gib(can: Mapping[str, str]) -> int:
    """Of NVMe where there is some, else of the temporary disk."""
    nvme = int(can.get("NvmeDiskSizeInMiB", 0))
    return (nvme or int(can.get("MaxResourceVolumeMB", 0))) // 1024
