"""Disks of a sandbox cloud without boxes: there is nothing to wait for."""

from __future__ import annotations

from providers.sandbox.cloud.disks import SandboxDisk
from providers.sandbox.cloud.inventory.resources import SandboxMachine


class ImmediateDisks:
    """A DiskBackend in name only."""

    def attach_disk(self, disk: SandboxDisk, machine: SandboxMachine) -> None:
        """It is there."""

    def detach_disk(self, disk: SandboxDisk) -> None:
        """It is not there any more."""

    def remove_disk(self, disk: SandboxDisk) -> None:
        """It is gone."""

    def disk_is_moving(self, disk: SandboxDisk) -> bool:
        """Never."""
        del disk
        return False
