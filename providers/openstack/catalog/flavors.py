"""What a flavor is, read from Nova's words: its size, and the devices that its extra specs ask for.

Extra specs: https://docs.openstack.org/nova/latest/configuration/extra-specs.html
Numbered groups: https://docs.openstack.org/nova/latest/admin/resource-classes.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burstd.domain.slurm.shape import Gres, Shape

_GROUPED = re.compile(r"(?P<what>resources|trait)(?P<group>[A-Za-z0-9_-]{0,64}):(?P<name>.+)")
_ALIAS = "pci_passthrough:alias"
_PROFILE = "accel:device_profile"
_DEVICES = ("PCI_DEVICE", "SRIOV_NET_VF", "VGPU", "PGPU", "FPGA")
"""Of Placement's own resource classes; the others are processors, memory, disk, addresses, bandwidth."""
_CUSTOM, _MEMORY = "CUSTOM_", "CUSTOM_PMEM_NAMESPACE_"
_ARCHITECTURE = re.compile(r"(?:HW|COMPUTE)_ARCH_(?P<name>.+)")


@dataclass(frozen=True, slots=True)
class FlavorDevice:
    """What a flavor asks for beside processors, memory and disk, with the traits that are required of it."""

    name: str
    """PCI alias, resource class, or device profile of Cyborg."""
    count: int
    """1 for a profile, whatever there is in it: only its owner can see that."""
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Flavor:
    """One of the cloud's."""

    id: str
    name: str
    vcpus: int
    memory_mib: int
    disk_gib: int
    """For the operating system; 0: as large as the image, or none as the machine boots from a volume."""
    ephemeral_gib: int
    """A further disk of the machine's own."""
    devices: tuple[FlavorDevice, ...] = ()
    architecture: str = ""
    """As ``uname -m`` has it; empty: the flavor does not say."""

    def unmapped_devices(self, gpus: Mapping[str, str]) -> tuple[str, ...]:
        """Devices of which ``gpus``, the settings', does not say what they are to Slurm."""
        return tuple(sorted({device.name for device in self.devices if _type(device, gpus) is None}))

    def shape(self, gpus: Mapping[str, str], usable_memory: float) -> Shape:
        """What a job finds on it. Devices that are not named, or named ``""``, are no GRES."""
        counts: Counter[str] = Counter()
        for device in self.devices:
            counts[_type(device, gpus) or ""] += device.count
        gres = tuple(Gres("gpu", kind, count) for kind, count in sorted(counts.items()) if kind)
        return Shape(self.vcpus, int(self.memory_mib * usable_memory), gres)


def parse_flavor(said: Mapping[str, Any], specs: Mapping[str, str]) -> Flavor:
    """An entry of ``/flavors/detail``, with its extra specs."""
    grouped = [(found["what"], found["group"], found["name"], value) for found, value in _grouped(specs)]
    traits: dict[str, set[str]] = {}
    for what, group, name, value in grouped:
        if what == "trait" and value == "required":
            traits.setdefault(group, set()).add(name)
    counts: Counter[tuple[str, str]] = Counter()
    for what, group, name, value in grouped:
        if what == "resources" and _is_device(name):
            counts[name, group] += _number(value)
    for name, number in _aliases(specs.get(_ALIAS, "")):
        counts[name, ""] += number
    if specs.get(_PROFILE):
        counts[specs[_PROFILE], ""] += 1
    return Flavor(
        id=said["id"], name=said["name"], vcpus=said["vcpus"], memory_mib=said["ram"], disk_gib=said["disk"],
        ephemeral_gib=said.get("OS-FLV-EXT-DATA:ephemeral") or 0,
        devices=tuple(
            FlavorDevice(name, count, frozenset(traits.get(group, ())))
            for (name, group), count in sorted(counts.items())
            if count
        ),
        architecture=_architecture(sorted(traits.get("", ()))),
    )  # fmt: skip


def _type(device: FlavorDevice, gpus: Mapping[str, str]) -> str | None:
    """By the most exact of its names: a trait says which GPU a resource class is. But what is said to be no GRES is
    none, whatever the traits of a flavor that has other devices as well.
    """
    own = gpus.get(device.name)
    if own == "":
        return own
    return next((gpus[trait] for trait in sorted(device.traits) if trait in gpus), own)


def _grouped(specs: Mapping[str, str]) -> Iterator[tuple[re.Match[str], str]]:
    for key, value in specs.items():
        found = _GROUPED.fullmatch(key)
        if found is not None:
            yield found, value


def _is_device(name: str) -> bool:
    return name in _DEVICES or (name.startswith(_CUSTOM) and not name.startswith(_MEMORY))


def _aliases(text: str) -> Iterator[tuple[str, int]]:
    """Of ``h100:4, nic:1``."""
    for part in text.split(","):
        name, _, number = part.strip().rpartition(":")
        if name:
            yield name, _number(number)


def _number(text: str) -> int:
    """0 for what is none: Nova checks it at no time."""
    return int(text) if text.strip().isdecimal() else 0


def _architecture(traits: Sequence[str]) -> str:
    return next((found["name"].lower() for trait in traits if (found := _ARCHITECTURE.fullmatch(trait))), "")
