"""Disks of boxes: a file with holes for each, and a loop device of this machine where it is attached.

A box shares the kernel, so its device is the machine's loop device, under a name in the box's own /dev.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from providers.sandbox.boxes.box import Box
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.machine import loop_devices, output_of
from providers.sandbox.cloud.disks import SandboxDisk


class BoxDisks:
    """The files of all disks of a lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def attach(self, disk: SandboxDisk, box_name: str) -> None:
        """Makes the device in the box. Raises BoxFailed, OSError."""
        box = Box.load(self._lab.boxes_directory / box_name)
        if box is None:
            raise BoxFailed(f"there is no box {box_name}", "look at the cloud's log")
        file = self._file(disk)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with file.open("ab"):
            os.truncate(file, disk.size_bytes)
        loops = self._loops(disk)
        if not loops:
            made = output_of(["losetup", "--find", "--show", str(file)])
            if made.returncode:
                raise BoxFailed(f"{disk.id} has no loop device: {made.stderr.strip()}", "modprobe loop")
            loops = [made.stdout.strip()]
        inside = box.path(disk.device_path)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.unlink(missing_ok=True)
        os.mknod(inside, stat.S_IFBLK | 0o660, Path(loops[0]).stat().st_rdev)

    def detach(self, disk: SandboxDisk) -> None:
        """The loop device goes when its last user does: a file system that is mounted on it stays whole."""
        box = Box.load(self._lab.boxes_directory / disk.attached_to)
        if box is not None and box.alive:
            box.path(disk.device_path).unlink(missing_ok=True)
        for loop in self._loops(disk):
            output_of(["losetup", "--detach", loop])

    def remove(self, disk: SandboxDisk) -> None:
        """Removes the file."""
        self._file(disk).unlink(missing_ok=True)

    def is_attached(self, disk: SandboxDisk) -> bool:
        """Whether a loop device still has it."""
        return bool(self._loops(disk))

    def _file(self, disk: SandboxDisk) -> Path:
        return self._lab.disks_directory / f"{disk.id}.img"

    def _loops(self, disk: SandboxDisk) -> list[str]:
        return loop_devices(self._file(disk))
