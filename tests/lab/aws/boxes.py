"""Boxes behind the mock's instances, in the mock's network: each boots with cloud-init from its launch's user data.

The server must run in the network of the lab's hub. Its configuration is JSON: ``state`` (the lab's folder) and
``layers`` (the topmost first), and ``builds`` (layers of images whose name ends with ``-BUILD``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from providers.sandbox.boxes.errors import NetworkFailed
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.processes import Process
from tests.lab import boxes as lab_boxes
from tests.lab.aws.hooks import Halted
from tests.lab.aws.imds import ADDRESS, Guest, Imds, host_name

HANGS = "hangs"
"""The build of images of which no machine ever answers."""
_WATCH_S = 0.2


class Boxes:
    """One lab's machines; see ``hooks.Machines``. A box that switches itself off is told to ``halted``."""

    def __init__(self, lab: Lab, layers: list[Path], builds: Mapping[str, Sequence[Path]], halted: Halted) -> None:
        self._lab = lab
        self._builds = builds
        self._boxes = lab_boxes.Boxes(lab, layers)
        self._halted = halted
        self._end = threading.Event()
        lab_boxes.ip("-n", lab.network.hub or "", "addr", "replace", f"{ADDRESS}/32", "dev", lab.network.bridge)
        self._imds = Imds()
        self._watcher = threading.Thread(target=self._watch, name="boxes", daemon=True)
        self._watcher.start()

    def running(
        self, instance_id: str, address: str, user_data: bytes, instance_type: str, zone: str, name: str, gpus: int,
        image: str,
    ) -> None:  # fmt: skip
        """Starts its box. As on EC2, the host name comes from the address, whatever the tag says."""
        del name
        build = image.rpartition("-")[2]
        if build == HANGS:
            return
        self._imds.add(Guest(instance_id, address, instance_type, zone, user_data))
        self._boxes.start(
            instance_id,
            address,
            hostname=host_name(address),
            gpus=gpus,
            user_data=user_data.decode(),
            layers=self._builds.get(build),
            meta_data={"instance-id": instance_id, "availability-zone": zone, "instance-type": instance_type},
        )
        # A box has no gateway: EC2's metadata address is on the link too.
        namespace = self._lab.network.host_namespace(instance_id)
        lab_boxes.ip("-n", namespace, "route", "add", f"{ADDRESS}/32", "dev", "eth0")

    def ended(self, instance_id: str) -> None:
        """Stops its box and removes it."""
        self._imds.remove(instance_id)
        self._boxes.end(instance_id)

    def console(self, instance_id: str) -> str:
        """What its box has written to its console."""
        return self._boxes.console(instance_id)

    def notice(self, instance_id: str, kind: Literal["interruption", "rebalance"], deadline: float | None) -> None:
        """Its metadata says so from now on."""
        self._imds.notice(instance_id, kind, deadline)

    def close(self) -> None:
        """Ends all."""
        self._end.set()
        self._watcher.join()
        self._boxes.close()
        self._imds.close()

    def _watch(self) -> None:
        while not self._end.wait(_WATCH_S):
            for instance_id in self._boxes.halted():
                self._halted(instance_id)


def boxes(config: Path, halted: Halted) -> Boxes:
    """For ``--machines``: the mock is the lab's from now on. Raises SandboxError where there is no lab."""
    said = json.loads(config.read_text(encoding="utf-8"))
    lab = Lab.open(Path(said["state"]))
    if lab is None:
        raise NetworkFailed(f"there is no lab in {said['state']}", "take it up first")
    lab.record("ec2", Process.current())
    builds = {name: tuple(map(Path, layers)) for name, layers in said["builds"].items()}
    return Boxes(lab, [Path(layer) for layer in said["layers"]], builds, halted)
