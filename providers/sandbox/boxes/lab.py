"""A lab: a network and its boxes, with all state in one directory, taken up and taken down by any later process."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from providers.sandbox.boxes.box import Box, BoxSpec, find_boxes
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.machine import loop_devices, need_root, output_of, remove_tree
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.boxes.processes import Process

_GRACE_S = 5.0


class Lab:
    """Everything under one name on this machine.

    ``state`` holds ``lab.json``, ``boxes/NAME/`` and ``processes/NAME.json`` (further processes of the lab, such as
    the cloud server, whose own files are ``cloud.*``). Whatever is recorded there ends with ``down``.
    """

    def __init__(self, state: Path, network: LabNetwork) -> None:
        self.state = state.resolve()
        self.network = network

    @classmethod
    def open(cls, state: Path) -> Lab | None:
        """The lab of a state directory, None when there is none."""
        try:
            fields = json.loads((state / "lab.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(state, LabNetwork(**fields["network"]))

    @property
    def boxes_directory(self) -> Path:
        """Where each box has its directory."""
        return self.state / "boxes"

    @property
    def disks_directory(self) -> Path:
        """Where the files of disks are."""
        return self.state / "disks"

    @property
    def processes_directory(self) -> Path:
        """Where further processes are recorded."""
        return self.state / "processes"

    def up(self) -> None:
        """Makes state directory and network; may be repeated. Raises NotRoot, MissingTool, NetworkFailed, BoxFailed."""
        need_root("a lab")
        before = Lab.open(self.state)
        if before is not None and before.network != self.network:
            raise BoxFailed(f"{self.state} belongs to another lab", "take that down first or choose another directory")
        self.processes_directory.mkdir(parents=True, exist_ok=True)
        # Before the network: what is made is always found again.
        (self.state / "lab.json").write_text(json.dumps({"network": asdict(self.network)}), encoding="utf-8")
        self.network.up()

    def start(self, spec: BoxSpec) -> Box:
        """Starts a box. See ``Box.start``."""
        return Box.start(self.network, self.boxes_directory, spec)

    def boxes(self) -> list[Box]:
        """All boxes, dead ones too, by name."""
        return find_boxes(self.boxes_directory)

    def box(self, name: str) -> Box:
        """The box of a name. Raises BoxFailed."""
        found = Box.load(self.boxes_directory / name)
        if found is None:
            raise BoxFailed(f"there is no box {name}", "start it first")
        return found

    def record(self, name: str, process: Process) -> None:
        """Remembers a process that is to end with the lab."""
        process.save(self.processes_directory / f"{name}.json")

    def end_process(self, name: str) -> None:
        """Ends a recorded process, kindly at first; no error where there is none."""
        file = self.processes_directory / f"{name}.json"
        process = Process.load(file)
        if process is not None:
            process.kill(grace_s=_GRACE_S)
        file.unlink(missing_ok=True)

    def down(self) -> None:
        """Ends all processes and removes all boxes, namespaces and links. May be repeated, also after kill -9."""
        need_root("taking a lab down")
        for file in sorted(self.processes_directory.glob("*.json")):
            self.end_process(file.stem)
        for directory in sorted(self.boxes_directory.glob("*")):
            # Not Box.load: a maker that was killed may have left less than that needs.
            Box(directory.name, "", self.network, directory).stop()
        self.network.down()
        for file in self.disks_directory.glob("*.img"):
            for loop in loop_devices(file):
                output_of(["losetup", "--detach", loop])
        for name in ("boxes", "processes", "disks"):
            remove_tree(self.state / name)
        for file in (self.state / "lab.json", *self.state.glob("cloud.*")):
            file.unlink(missing_ok=True)
