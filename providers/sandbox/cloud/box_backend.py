"""The cloud's machines as boxes of a lab."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.cloud.box_disks import BoxDisks
from providers.sandbox.cloud.disks import SandboxDisk
from providers.sandbox.cloud.inventory.resources import SandboxInstanceState, SandboxMachine

_WORKERS = 4
_Work = Callable[[SandboxMachine], None]


class BoxBackend:
    """Starts and stops boxes in the background, those of one machine in the order asked for.

    ``images`` gives the layers of each image, the topmost first.
    """

    def __init__(self, lab: Lab, images: Mapping[str, Sequence[Path]]) -> None:
        self._lab = lab
        self._images = images
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="box")
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[None]] = {}
        self._failed: dict[str, str] = {}
        self._disks = BoxDisks(lab)
        self._moving: dict[str, Future[None]] = {}
        """By disk."""

    def start(self, machine: SandboxMachine) -> None:
        """Starts its box, soon."""
        self._then(machine, self._start)

    def stop(self, machine: SandboxMachine) -> None:
        """Stops its box, soon."""
        self._then(machine, self._stop)

    def image_fault(self, image: str) -> str:
        """Which of an image's layers is not there; empty: all are."""
        missing = [str(layer) for layer in self._images[image] if not layer.is_dir()]
        return f"no folder {' and '.join(missing)}" if missing else ""

    def console(self, machine: SandboxMachine) -> str:
        """What its box has written to the console."""
        box = Box.load(self._lab.boxes_directory / machine.id)
        return "" if box is None else box.console()

    def attach_disk(self, disk: SandboxDisk, machine: SandboxMachine) -> None:
        """Has its device appear in the box."""
        self._move(disk, lambda: self._disks.attach(disk, machine.id))

    def detach_disk(self, disk: SandboxDisk) -> None:
        """Takes the device away, once nobody has it mounted."""
        self._move(disk, lambda: self._disks.detach(disk))

    def remove_disk(self, disk: SandboxDisk) -> None:
        """Removes its file."""
        self._disks.remove(disk)

    def disk_is_moving(self, disk: SandboxDisk) -> bool:
        """Whether it is on its way into a box or out of one."""
        with self._lock:
            work = self._moving.get(disk.id)
        return (work is not None and not work.done()) or (not disk.attached_to and self._disks.is_attached(disk))

    def _move(self, disk: SandboxDisk, work: Callable[[], None]) -> None:
        with self._lock:
            before = self._moving.get(disk.id)
            self._moving[disk.id] = self._pool.submit(self._move_after, before, work, disk.id)

    def _move_after(self, before: Future[None] | None, work: Callable[[], None], disk_id: str) -> None:
        if before is not None:
            wait([before])
        try:
            work()
        except (SandboxError, OSError) as error:
            with self._lock:
                self._failed[disk_id] = str(error)

    def death_reason(self, machine: SandboxMachine) -> str:
        """Empty while its box runs or is being started, else a sentence on what became of it."""
        with self._lock:
            work = self._under_way.get(machine.id)
            if work is not None and not work.done():
                return ""
            failed = self._failed.get(machine.id, "")
        if work is not None and work.exception() is not None:
            failed = repr(work.exception())
        if failed:
            return failed
        box = Box.load(self._lab.boxes_directory / machine.id)
        return "" if box is not None and box.alive else "the machine has switched itself off"

    def resume_machines(self, machines: Iterable[SandboxMachine]) -> None:
        """After a restart: starts what should run and was never started, stops what nobody knows."""
        known = {machine.id: machine for machine in machines}
        there = {box.name for box in self._lab.boxes() if box.name.startswith("i-")}
        for name in there:
            machine = known.get(name)
            if machine is None or machine.state is SandboxInstanceState.TERMINATED:
                self._lab.box(name).stop()
        for machine in known.values():
            died = machine.lies and machine.dies_at is None
            if machine.state is SandboxInstanceState.RUNNING and machine.id not in there and not died:
                self.start(machine)

    def close(self) -> None:
        """Finishes what is under way; boxes run on."""
        self._pool.shutdown(wait=True)

    def _then(self, machine: SandboxMachine, work: _Work) -> None:
        with self._lock:
            before = self._under_way.get(machine.id)
            self._under_way[machine.id] = self._pool.submit(self._after, before, work, machine)

    def _after(self, before: Future[None] | None, work: _Work, machine: SandboxMachine) -> None:
        if before is not None:
            wait([before])  # never a deadlock: the pool begins its work in the order in which it was given
        try:
            work(machine)
        except (SandboxError, OSError) as error:
            with self._lock:
                self._failed[machine.id] = str(error)

    def _start(self, machine: SandboxMachine) -> None:
        request = machine.request
        self._lab.start(
            BoxSpec(
                name=machine.id,
                hostname=request.name,
                address=machine.address,
                layers=self._images[request.image],
                gpus=machine.gpus,
                user_data=None if machine.hangs else request.user_data,
                meta_data={"instance-id": machine.id, "availability-zone": request.zone, "instance-type": request.type},
                ssh=not machine.hangs,
            )
        )

    def _stop(self, machine: SandboxMachine) -> None:
        box = Box.load(self._lab.boxes_directory / machine.id)
        if box is not None:
            box.stop()
