"""All that exists in the sandbox cloud at one time: instances, their volumes and ports, and what is still free."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from providers.sandbox.cloud.catalog import Catalog
from providers.sandbox.cloud.faults import Fault, Kind
from providers.sandbox.cloud.refusals import Code, Refused
from providers.sandbox.cloud.resources import HELD, Machine, Page, Part, Request, State, T


class Stock:
    """The things themselves; the rules of their lives are in ``Cloud``."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.machines: dict[str, Machine] = {}
        self.parts: dict[str, Part] = {}
        self._made = 0
        self._addresses = [str(address) for address in ipaddress.ip_network(catalog.addresses).hosts()]
        self._last_address = -1

    def held(self) -> list[Machine]:
        """Instances that count against quota and capacity."""
        return [m for m in self.machines.values() if m.state in HELD]

    def alive(self) -> list[Machine]:
        """Instances to which something may still happen."""
        return [m for m in self.machines.values() if m.state is not State.TERMINATED]

    def parts_of(self, machine: Machine) -> list[Part]:
        """Its volume and its port."""
        return [part for part in self.parts.values() if part.attached_to == machine.id]

    def price_of(self, request: Request) -> Decimal:
        """The price of a request that can be met. Raises Refused where it cannot."""
        price = self.catalog.price(request.type, spot=request.spot)
        sold = self.catalog.capacity.get(request.zone, {}).get(request.type)
        if price is None or sold is None:
            raise Refused(Code.BAD_REQUEST, f"{request.type} is not sold in {request.zone} on this market")
        if request.image not in self.catalog.images:
            raise Refused(Code.BAD_REQUEST, f"there is no image {request.image!r}")
        held = self.held()
        if len(held) >= self.catalog.quota:
            raise Refused(Code.QUOTA, f"Quota exceeded for instances: {len(held)} of {self.catalog.quota} used")
        if sum(m.request.zone == request.zone and m.request.type == request.type for m in held) >= sold:
            raise Refused(Code.CAPACITY, f"there is no {request.type} left in {request.zone}")
        return price

    def make(self, request: Request, price: Decimal, now: float, ordered: Callable[[Kind], Fault | None]) -> Machine:
        """A new instance with volume and port, and with the faults that are ordered for it."""
        slow, lie = ordered(Kind.BOOT_SLOW), ordered(Kind.LIE)
        runs_at = now + self.catalog.boot_s + (slow.seconds if slow else 0.0)
        sold = self.catalog.type(request.type)
        address = self._free_address()
        self._made += 1
        machine = Machine(
            id=f"i-{self._made:07d}",
            request=request,
            address=address,
            gpus=sold.gpus if sold else 0,
            price=price,
            created=now,
            runs_at=runs_at,
            hangs=ordered(Kind.BOOT_HANG) is not None,
            fails=ordered(Kind.BOOT_FAIL) is not None,
            lies=lie is not None,
            dies_at=runs_at + lie.seconds if lie else None,
        )
        self.machines[machine.id] = machine
        for kind in ("volume", "port"):
            part = Part(f"{kind[0]}-{self._made:07d}", kind, dict(request.tags), now, machine.id)
            self.parts[part.id] = part
        return machine

    def _free_address(self) -> str:
        """The next one, so that an address rests before it is used again."""
        used = {m.address for m in self.held()}
        for step in range(1, len(self._addresses) + 1):
            index = (self._last_address + step) % len(self._addresses)
            if self._addresses[index] not in used:
                self._last_address = index
                return self._addresses[index]
        raise Refused(Code.CAPACITY, f"no address is left in {self.catalog.addresses}")

    def forget_user_data(self, machine: Machine) -> None:
        """Of an instance that nobody can look at any more."""
        if machine.request.user_data:
            machine.request = replace(machine.request, user_data="")

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "machines": [m.to_json() for m in self.machines.values()],
            "parts": [p.to_json() for p in self.parts.values()],
            "made": self._made,
            "last_address": self._last_address,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``to_json``, in place."""
        self.machines = {m.id: m for m in map(Machine.from_json, state["machines"])}
        self.parts = {p["id"]: Part(**p) for p in state["parts"]}
        self._made = state["made"]
        self._last_address = state["last_address"]


def has_tags(tags: Mapping[str, str], wanted: Mapping[str, str] | None) -> bool:
    """Whether all wanted tags are there."""
    return all(tags.get(name) == value for name, value in (wanted or {}).items())


def page(
    things: Iterable[T],
    tags_of: Callable[[T], Mapping[str, str]],
    tags: Mapping[str, str] | None,
    limit: int,
    marker: str,
) -> Page[T]:
    """At most ``limit`` of the things with these tags that come after ``marker``; ids grow in the order of making."""
    fitting = (t for t in things if t.id > marker and has_tags(tags_of(t), tags))
    found = sorted(fitting, key=lambda t: t.id)
    part = found[: max(1, limit)]
    return Page(tuple(replace(t) for t in part), part[-1].id if len(found) > len(part) else "")
