"""A sandbox cloud in virtual time, without boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog, SandboxInstanceType
from providers.sandbox.cloud.inventory.resources import SandboxLaunchRequest, SandboxMachine
from tests.doubles.immediate_disks import ImmediateDisks

START = 1_800_000_000.0
FIRST = "t1"


@dataclass
class ManualClock:
    """A clock that a test moves."""

    time: float = START

    def now(self) -> float:
        return self.time


@dataclass
class RecordingBackend(ImmediateDisks):
    """A backend that only remembers."""

    running: dict[str, SandboxMachine] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)

    def start(self, machine: SandboxMachine) -> None:
        assert machine.id not in self.running
        self.running[machine.id] = machine
        self.log.append(("start", machine.id))

    def stop(self, machine: SandboxMachine) -> None:
        self.running.pop(machine.id, None)
        self.log.append(("stop", machine.id))

    def console(self, machine: SandboxMachine) -> str:
        return f"booting {machine.request.name}\n" if machine.id in self.running else ""


def catalog(**changes: Any) -> SandboxCatalog:
    fields: dict[str, Any] = {
        "types": (
            SandboxInstanceType("small", 2, 2000, Decimal("0.10")),
            SandboxInstanceType("gpu4", 8, 16000, Decimal("3.06"), Decimal("0.92"), "v100", 4),
        ),
        "capacity": {"a": {"small": 4, "gpu4": 2}, "b": {"gpu4": 1}},
        "quota": 6,
        "boot_s": 10.0,
    }
    return SandboxCatalog(**{**fields, **changes})


def cloud(**changes: Any) -> tuple[SandboxCloud, ManualClock, RecordingBackend]:
    manual_clock, boxes = ManualClock(), RecordingBackend()
    return SandboxCloud(catalog(**changes), manual_clock.now, boxes), manual_clock, boxes


def request(token: str = FIRST, **changes: Any) -> SandboxLaunchRequest:
    fields: dict[str, Any] = {
        "token": token,
        "name": f"n-{token}",
        "zone": "a",
        "type": "small",
        "image": "debian",
        "user_data": "#cloud-config\n",
        "tags": {"cluster": "ours"},
    }
    return SandboxLaunchRequest(**{**fields, **changes})
