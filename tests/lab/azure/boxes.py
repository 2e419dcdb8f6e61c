"""Boxes behind the machines: each boots with cloud-init from its request's custom data, with metadata of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from providers.sandbox.boxes.lab import Lab
from tests.lab import boxes as lab_boxes
from tests.lab.azure.imds import ADDRESS, Guest, Imds
from tests.lab.azure.resource_group import Behind, Machine
from tests.lab.azure.specs import SIZES

_WATCH_S = 0.2


class Boxes(Behind):
    """One lab's. Made in the network of its hub; a machine that switches itself off is told to ``halted``."""

    def __init__(self, lab: Lab, layers: Sequence[Path]) -> None:
        self._lab = lab
        self._boxes = lab_boxes.Boxes(lab, layers)
        lab_boxes.ip("-n", lab.network.hub or "", "addr", "replace", f"{ADDRESS}/32", "dev", lab.network.bridge)
        self._imds = Imds()
        self._guests: dict[str, Guest] = {}
        self._work = ThreadPoolExecutor(1, "boxes")
        """Whoever asks the cloud does not wait for a box."""
        self._end = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="halted", daemon=True)
        self.halted: Callable[[str], None] = lambda _: None
        self._watcher.start()

    def running(self, machine: Machine, address: str) -> None:
        name, about = machine.said["name"], machine.said["properties"]
        self._guests[name] = self._imds.guests[address] = Guest(name, address)
        gpus = SIZES[about["hardwareProfile"]["vmSize"]].gpus
        self._work.submit(self._start, name, address, about["osProfile"]["computerName"], gpus, machine.user_data)

    def ended(self, name: str) -> None:
        guest = self._guests.pop(name, None)
        if guest is not None:
            del self._imds.guests[guest.address]
        self._work.submit(self._boxes.end, name)

    def console(self, name: str) -> str:
        return self._boxes.console(name)

    def notice(self, name: str, deadline: float) -> None:
        if deadline > time.time():
            self._guests[name].announce("Preempt", deadline)

    def close(self) -> None:
        """Ends all."""
        self._end.set()
        self._watcher.join()
        self._work.shutdown()
        self._boxes.close()
        self._imds.close()

    def _start(self, name: str, address: str, hostname: str, gpus: int, user_data: str) -> None:
        self._boxes.start(
            name, address, hostname=hostname, gpus=gpus, user_data=user_data, meta_data={"instance-id": name}
        )
        # A box has no gateway: the metadata address is on the link too.
        namespace = self._lab.network.host_namespace(name)
        lab_boxes.ip("-n", namespace, "route", "add", f"{ADDRESS}/32", "dev", "eth0")

    def _watch(self) -> None:
        while not self._end.wait(_WATCH_S):
            for name in self._boxes.halted():
                self.halted(name)
