"""Kubernetes' quantities, exactly: ``1500m``, ``64Gi``, ``2e3``.

Their grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from burstd.domain.errors import CloudUnavailable

MIB = 1 << 20
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,24}\.?[0-9]{0,24}|\.[0-9]{1,24}))(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<unit>[KMGTPE]i|[numkMGTPE])?)"
)
_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(10) ** power for unit, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
Amounts = Mapping[str, Decimal]
"""By name of the resource: cores, bytes, pieces."""


def parse_quantity(said: object) -> Decimal:
    """Raises CloudUnavailable for what is none: an API server gives no such."""
    found = _QUANTITY.fullmatch(str(said))
    if found is None:
        raise CloudUnavailable(f"the API server's '{said}' is no quantity: is there a proxy in between?")
    if found["exponent"]:
        return Decimal(found["number"]).scaleb(int(found["exponent"]))
    return Decimal(found["number"]) * _UNITS[found["unit"] or ""]


def parse_amounts(said: Mapping[str, Any] | None) -> dict[str, Decimal]:
    """Of a ResourceList."""
    return {name: parse_quantity(value) for name, value in (said or {}).items()}


def format_quantity(resource: str, value: Decimal) -> str:
    """For people: memory and storage in GiB, all else as it is."""
    if _in_bytes(resource):
        return f"{(value / (MIB * 1024)).quantize(Decimal('0.1')).normalize():f} GiB"
    return f"{value.normalize():f}"


def in_unit(resource: str, value: Decimal) -> tuple[Decimal, str]:
    """In what burstd counts it, and the word for that: MiB, cores, GPUs, pods."""
    if _in_bytes(resource):
        return value / MIB, "MiB"
    _, of_vendor, kind = resource.rpartition("/")
    kind = kind if of_vendor else kind.rpartition(".")[2]
    return value, {"cpu": "cores", "gpu": "GPUs"}.get(kind, kind)


def _in_bytes(resource: str) -> bool:
    kind = resource.rpartition("/")[2]
    return kind.endswith(("memory", "storage")) or kind.startswith("hugepages-")
