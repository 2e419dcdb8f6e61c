"""A sandbox cloud in virtual time, without boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from providers.sandbox.cloud.catalog import Catalog, InstanceType
from providers.sandbox.cloud.cloud import Cloud
from providers.sandbox.cloud.resources import Machine, Request

START = 1_800_000_000.0
FIRST = "t1"


@dataclass
class Hand:
    """A clock that a test moves."""

    time: float = START

    def now(self) -> float:
        return self.time


@dataclass
class NoBoxes:
    """A backend that only remembers."""

    running: dict[str, Machine] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)

    def start(self, machine: Machine) -> None:
        assert machine.id not in self.running
        self.running[machine.id] = machine
        self.log.append(("start", machine.id))

    def stop(self, machine: Machine) -> None:
        self.running.pop(machine.id, None)
        self.log.append(("stop", machine.id))

    def console(self, machine: Machine) -> str:
        return f"booting {machine.request.name}\n" if machine.id in self.running else ""


def catalog(**changes: Any) -> Catalog:
    fields: dict[str, Any] = {
        "types": (
            InstanceType("small", 2, 2000, Decimal("0.10")),
            InstanceType("gpu4", 8, 16000, Decimal("3.06"), Decimal("0.92"), "v100", 4),
        ),
        "capacity": {"a": {"small": 4, "gpu4": 2}, "b": {"gpu4": 1}},
        "quota": 6,
        "boot_s": 10.0,
    }
    return Catalog(**{**fields, **changes})


def cloud(**changes: Any) -> tuple[Cloud, Hand, NoBoxes]:
    hand, boxes = Hand(), NoBoxes()
    return Cloud(catalog(**changes), hand.now, boxes), hand, boxes


def request(token: str = FIRST, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "token": token,
        "name": f"n-{token}",
        "zone": "a",
        "type": "small",
        "image": "debian",
        "user_data": "#cloud-config\n",
        "tags": {"cluster": "ours"},
    }
    return Request(**{**fields, **changes})
