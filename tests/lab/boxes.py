"""Boxes of a lab behind the instances of a cloud's API, by the instances' ids: for any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.errors import NetworkFailed
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.machine import output_of
from providers.sandbox.boxes.network import LabNetwork


class Boxes:
    """All of them boot from ``layers``, the topmost first. They end with the lab, if not before."""

    def __init__(self, lab: Lab, layers: Sequence[Path]) -> None:
        self.lab = lab
        self._layers = tuple(layers)
        self._lock = threading.Lock()
        self._up: dict[str, Box] = {}

    def start(self, instance_id: str, address: str, layers: Sequence[Path] | None = None, **more: Any) -> None:
        """Returns when it boots; ``layers`` instead of all boxes', ``more`` is for ``BoxSpec``. Raises SandboxError."""
        box = self.lab.start(BoxSpec(instance_id, address, tuple(layers or self._layers), **more))
        with self._lock:
            self._up[instance_id] = box

    def end(self, instance_id: str) -> None:
        """Stops it and removes it; no error where there is none."""
        with self._lock:
            self._up.pop(instance_id, None)
        box = Box.load(self.lab.boxes_directory / instance_id)
        if box is not None:
            box.stop()

    def console(self, instance_id: str) -> str:
        """What it has written to its console; empty where there is none."""
        box = Box.load(self.lab.boxes_directory / instance_id)
        return "" if box is None else box.console()

    def halted(self) -> list[str]:
        """Those that have switched themselves off since the last call."""
        with self._lock:
            dead = [instance_id for instance_id, box in self._up.items() if not box.alive]
            for instance_id in dead:
                del self._up[instance_id]
        return dead

    def close(self) -> None:
        """Ends all."""
        for instance_id in list(self._up):
            self.end(instance_id)


def ip(*words: str) -> None:
    """The program ip(8). Raises NetworkFailed."""
    done = output_of(["ip", *words])
    if done.returncode != 0:
        raise NetworkFailed(f"ip could not do '{' '.join(words)}': {done.stderr.strip()}", "take the lab down")


@contextmanager
def line_cut(network: LabNetwork, *hosts: str) -> Iterator[None]:
    """Nothing comes through to these hosts of a lab meanwhile, nor from them. No link goes down that a host sees."""
    hub = network.hub
    assert hub is not None, "the lab's network is the machine's own"
    for host in hosts:
        ip("-n", hub, "link", "set", network.cable(host), "nomaster")
    try:
        yield
    finally:
        for host in hosts:
            # A host that has ended meanwhile has no cable any more.
            output_of(["ip", "-n", hub, "link", "set", network.cable(host), "master", network.bridge])
