"""All that exists in the sandbox cloud at one time: instances, their volumes and ports, and what is still free."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog
from providers.sandbox.cloud.inventory.resources import (
    COUNTED_STATES,
    AttachedResource,
    ResourcePage,
    SandboxInstanceState,
    SandboxLaunchRequest,
    SandboxMachine,
    T,
)
from providers.sandbox.cloud.refusals import RefusalCode, SandboxRefused


class Inventory:
    """The things themselves; the rules of their lives are in ``Cloud``."""

    def __init__(self, catalog: SandboxCatalog) -> None:
        self.catalog = catalog
        self.machines: dict[str, SandboxMachine] = {}
        self.resources: dict[str, AttachedResource] = {}
        self._made = 0
        self._addresses = [str(address) for address in ipaddress.ip_network(catalog.addresses).hosts()]
        self._last_address = -1

    def counted(self) -> list[SandboxMachine]:
        """Instances that count against quota and capacity."""
        return [m for m in self.machines.values() if m.state in COUNTED_STATES]

    def alive(self) -> list[SandboxMachine]:
        """Instances to which something may still happen."""
        return [m for m in self.machines.values() if m.state is not SandboxInstanceState.TERMINATED]

    def resources_of(self, machine: SandboxMachine) -> list[AttachedResource]:
        """Its volume and its port."""
        return [part for part in self.resources.values() if part.attached_to == machine.id]

    def price_of(self, request: SandboxLaunchRequest) -> Decimal:
        """The price of a request that can be met. Raises Refused where it cannot."""
        price = self.catalog.price(request.type, spot=request.spot)
        sold = self.catalog.capacity.get(request.zone, {}).get(request.type)
        if price is None or sold is None:
            raise SandboxRefused(
                RefusalCode.BAD_REQUEST, f"{request.type} is not sold in {request.zone} on this market"
            )
        if request.image not in self.catalog.images:
            raise SandboxRefused(RefusalCode.BAD_REQUEST, f"there is no image {request.image!r}")
        counted_machines = self.counted()
        if len(counted_machines) >= self.catalog.quota:
            raise SandboxRefused(
                RefusalCode.QUOTA, f"Quota exceeded for instances: {len(counted_machines)} of {self.catalog.quota} used"
            )
        if sum(m.request.zone == request.zone and m.request.type == request.type for m in counted_machines) >= sold:
            raise SandboxRefused(RefusalCode.CAPACITY, f"there is no {request.type} left in {request.zone}")
        return price

    def make(
        self,
        request: SandboxLaunchRequest,
        price: Decimal,
        now: float,
        ordered: Callable[[FaultKind], SandboxFault | None],
    ) -> SandboxMachine:
        """A new instance with volume and port, and with the faults that are ordered for it."""
        slow, lie = ordered(FaultKind.BOOT_SLOW), ordered(FaultKind.LIE)
        runs_at = now + self.catalog.boot_s + (slow.seconds if slow else 0.0)
        sold = self.catalog.type(request.type)
        address = self._free_address()
        self._made += 1
        machine = SandboxMachine(
            id=f"i-{self._made:07d}",
            request=request,
            address=address,
            gpus=sold.gpus if sold else 0,
            price=price,
            created=now,
            runs_at=runs_at,
            hangs=ordered(FaultKind.BOOT_HANG) is not None,
            fails=ordered(FaultKind.BOOT_FAIL) is not None,
            lies=lie is not None,
            dies_at=runs_at + lie.seconds if lie else None,
        )
        self.machines[machine.id] = machine
        for kind in ("volume", "port"):
            part = AttachedResource(f"{kind[0]}-{self._made:07d}", kind, dict(request.tags), now, machine.id)
            self.resources[part.id] = part
        return machine

    def free_addresses(self) -> int:
        """How many no instance holds."""
        return len({*self._addresses} - {m.address for m in self.counted()})

    def _free_address(self) -> str:
        """The next one, so that an address rests before it is used again."""
        used = {m.address for m in self.counted()}
        for step in range(1, len(self._addresses) + 1):
            index = (self._last_address + step) % len(self._addresses)
            if self._addresses[index] not in used:
                self._last_address = index
                return self._addresses[index]
        raise SandboxRefused(RefusalCode.CAPACITY, f"no address is left in {self.catalog.addresses}")

    def forget_user_data(self, machine: SandboxMachine) -> None:
        """Of an instance that nobody can look at any more."""
        if machine.request.user_data:
            machine.request = replace(machine.request, user_data="")

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "machines": [m.to_json() for m in self.machines.values()],
            "parts": [p.to_json() for p in self.resources.values()],
            "made": self._made,
            "last_address": self._last_address,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``to_json``, in place."""
        self.machines = {m.id: m for m in map(SandboxMachine.from_json, state["machines"])}
        self.resources = {p["id"]: AttachedResource(**p) for p in state["parts"]}
        self._made = state["made"]
        self._last_address = state["last_address"]


def has_tags(tags: Mapping[str, str], wanted: Mapping[str, str] | None) -> bool:
    """Whether all wanted tags are there."""
    return all(tags.get(name) == value for name, value in (wanted or {}).items())


def select_page(
    things: Iterable[T],
    tags_of: Callable[[T], Mapping[str, str]],
    tags: Mapping[str, str] | None,
    limit: int,
    marker: str,
) -> ResourcePage[T]:
    """At most ``limit`` of the things with these tags that come after ``marker``; ids grow in the order of making."""
    fitting = (t for t in things if t.id > marker and has_tags(tags_of(t), tags))
    found = sorted(fitting, key=lambda t: t.id)
    part = found[: max(1, limit)]
    return ResourcePage(tuple(replace(t) for t in part), part[-1].id if len(found) > len(part) else "")
