"""What the sandbox cloud sells, and how it behaves when nothing is out of order."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class SandboxInstanceType:
    """A kind of machine. Memory in MiB, prices for an hour; no spot price: not sold on the spot market."""

    name: str
    cpus: int
    memory_mib: int
    price: Decimal
    spot_price: Decimal | None = None
    gpu_type: str = ""
    gpus: int = 0
    fabric: str = ""
    """What its machines are said to have between them: ``ib``, ``none``; empty: nothing is said."""


@dataclass(frozen=True, slots=True)
class SandboxCatalog:
    """The whole cloud. Times in seconds.

    ``capacity`` counts machines by zone and type, both markets together; what is not named is not sold there.
    ``list_lag_s``: for so long a new instance is in no answer. ``ended_shown_s``: for so long an ended one still is.
    ``boot_s``: from the launch until it runs. ``stop_s``: from the request until it has ended.
    """

    types: tuple[SandboxInstanceType, ...]
    capacity: Mapping[str, Mapping[str, int]]
    images: frozenset[str] = frozenset({"debian"})
    addresses: str = "10.77.64.0/18"
    region: str = "here"
    currency: str = "EUR"
    quota: int = 20
    boot_s: float = 1.0
    stop_s: float = 0.0
    list_lag_s: float = 0.0
    ended_shown_s: float = 60.0
    token_s: float = 24 * 3600.0
    _by_name: dict[str, SandboxInstanceType] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        ipaddress.ip_network(self.addresses)
        self._by_name.update({t.name: t for t in self.types})
        unknown = {name for sold in self.capacity.values() for name in sold} - self._by_name.keys()
        if unknown:
            raise ValueError(f"capacity is given for unknown types: {', '.join(sorted(unknown))}")

    def type(self, name: str) -> SandboxInstanceType | None:
        """The type of a name."""
        return self._by_name.get(name)

    def price(self, name: str, *, spot: bool) -> Decimal | None:
        """Price for an hour, None where it is not sold."""
        found = self._by_name.get(name)
        return None if found is None else found.spot_price if spot else found.price
